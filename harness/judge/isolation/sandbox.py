"""Start and end of an untrusted process in bubblewrap, with the files and devices that it can access.

The files are an allow-list: the system's libraries and compiler, the Python installation of this process, the runner's
own files, and the paths that the caller binds. The sandbox has no workspace, no ledger, no home directory, no network
and no other process. The kind `none` runs the same command without bubblewrap, for code that the user trusts; the
ledger entry records the kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import harness
from harness.errors import ConfigurationError
from harness.judge.isolation.resource_limits import (
    SandboxLimits,
    apply_limits,
    join_cgroups,
    reached_memory_limit,
    remove_cgroups,
)
from harness.judge.isolation.seccomp import program_file
from harness.model.config import SandboxKind
from harness.workspace.processes import oom_kills
from harness.workspace.sandbox_mounts import (
    ALLOW_USER_NAMESPACES,
    SYSTEM,
    python_binds,
    python_prefixes,
    system_binds,
)

STAGE = "/stage"
RUNNER_HOME = "/opt/judge"
"""Directory in the sandbox that contains the package `runner`."""
_RUNNER = Path(harness.__file__).resolve().parent / "runner"
_PROC_OF_THE_HOST = ("sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi")
_WITHOUT_SANDBOX = (
    "or, for code that you trust, --sandbox none (evaluate, baseline, profile) "
    "or `judge: {sandbox: none}` in harness.yaml"
)
_START_S = 20.0
_REAP_S = 2.0


@dataclass(frozen=True)
class Binds:
    """Paths of the host that a sandbox can access."""

    read_only: Mapping[Path, str] = field(default_factory=dict)
    """Host path -> path in the sandbox."""
    writable: Mapping[Path, str] = field(default_factory=dict)
    """Host path -> path in the sandbox."""
    devices: tuple[str, ...] = ()
    """Paths of device nodes, which remain usable."""
    tmpfs: Mapping[str, int] = field(default_factory=dict)
    """Path in the sandbox -> size in bytes of an empty, writable file system in memory."""
    shm_bytes: int = 256 << 20
    tmp_bytes: int = 512 << 20


def runner_home(kind: SandboxKind, directory: Path) -> str:
    """Return the directory that contains the package `runner`, as a process in the sandbox sees it.

    Args:
        kind: kind of sandbox; for `none` the package is linked in a new directory.
        directory: a directory of the process on this host.
    """
    if kind == "bubblewrap":
        return RUNNER_HOME
    home = directory / "home"
    if not home.exists():
        home.mkdir()
        (home / "runner").symlink_to(_RUNNER)
    return str(home)


def path_in_stage(kind: SandboxKind, stage: Path, path: Path) -> str:
    """Return the path of a file as a process in the sandbox sees it.

    Args:
        kind: kind of sandbox.
        stage: directory that the sandbox shows as `STAGE`.
        path: path of the file below it on this host.
    """
    return f"{STAGE}/{path.relative_to(stage)}" if kind == "bubblewrap" else str(path)


def shown_already(path: Path) -> bool:
    """Return true if every sandbox can read this path without a bind by the caller."""
    return any(path.is_relative_to(root) for root in (*python_prefixes(), *map(Path, SYSTEM)))


def _compiler_prefix() -> list[Path]:
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        return []
    home = Path(compiler).resolve().parent.parent
    return [] if any(home.is_relative_to(root) for root in SYSTEM) else [home]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of a sandboxed process. It inherits only HARNESS_FAILPOINT, for tests."""
    fixed = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "judged",  # noqa: S108
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": "/tmp",  # noqa: S108
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1",  # noqa: S108
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # 150 MB that cost more time than they save
        # Memory that a call frees stays in the process. Otherwise the time of page faults would be measured.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }  # fmt: skip
    if "HARNESS_FAILPOINT" in os.environ:
        fixed["HARNESS_FAILPOINT"] = os.environ["HARNESS_FAILPOINT"]
    return {**fixed, **extra}


def _guarded_proc(*, devices: bool) -> list[str]:
    """Return the options that make /proc read-only: uid 0 without capabilities could write the files below /proc/sys.

    CUDA writes the names of its threads to /proc/self. With devices, only the host's part of /proc is read-only.
    """
    if not devices:
        return ["--remount-ro", "/proc"]
    return [part for name in _PROC_OF_THE_HOST for part in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")]


def _binds(binds: Binds) -> list[str]:
    arguments = ["--proc", "/proc", "--dev", "/dev", *_guarded_proc(devices=bool(binds.devices)), *system_binds()]
    arguments += ["--size", str(binds.tmp_bytes), "--tmpfs", "/tmp", "--size", str(binds.shm_bytes), "--tmpfs"]  # noqa: S108
    arguments += ["/dev/shm"]  # noqa: S108
    arguments += python_binds(_compiler_prefix())
    arguments += ["--ro-bind", str(_RUNNER), f"{RUNNER_HOME}/runner"]
    for source, target in binds.read_only.items():
        arguments += ["--ro-bind", str(source), target]
    for source, target in binds.writable.items():
        arguments += ["--bind", str(source), target]
    for target, size in binds.tmpfs.items():
        arguments += ["--size", str(size), "--tmpfs", target]
    for node in binds.devices:
        arguments += ["--dev-bind-try", node, node]
    return arguments


def _bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise ConfigurationError(
            "bubblewrap is missing: it is the sandbox of every judged candidate",
            remedy=f"apt-get install bubblewrap; {_WITHOUT_SANDBOX}",
        )
    return path


def _cannot_run(cause: str) -> ConfigurationError:
    return ConfigurationError(
        f"bubblewrap cannot run here: {cause}",
        remedy=f"{ALLOW_USER_NAMESPACES}; {_WITHOUT_SANDBOX}",
    )


def command_line(binds: Binds, env: Mapping[str, str], seccomp: int, info: int, block: int) -> list[str]:
    """Return bwrap and its options, to which the command is appended. The process must inherit the three descriptors.

    Args:
        binds: paths that the sandbox can access.
        env: environment of the command.
        seccomp: descriptor of the system-call filter.
        info: descriptor that bwrap writes the id of the first process to.
        block: descriptor that bwrap reads before it starts the command.

    Raises:
        ConfigurationError: bubblewrap is missing.
    """
    arguments = [
        _bwrap(), "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts",
        "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv",
        "--hostname", "judged", "--seccomp", str(seccomp), "--info-fd", str(info), "--block-fd", str(block),
    ]  # fmt: skip
    for name, value in env.items():
        arguments += ["--setenv", name, value]
    return [*arguments, *_binds(binds), "--remount-ro", "/", "--chdir", "/tmp", "--"]  # noqa: S108


@dataclass
class Sandboxed:
    """A running sandbox."""

    popen: subprocess.Popen[bytes]
    first: int
    """Id of the sandbox's pid 1 on this host; for `none` of the process itself."""
    first_fd: int
    """Descriptor (pidfd) of that process, because its id may be reused for another process."""
    kind: SandboxKind
    groups: tuple[Path, ...]
    oom_kills_before: int
    """This machine's count of out-of-memory kills when the sandbox was started."""
    _is_killed: bool = False
    _has_ended: bool = False

    def was_killed_for_others(self, *, while_stopped: bool = False) -> bool:
        """Return true if the kernel may have killed a process of the sandbox because this machine was out of memory.

        It is false if the sandbox reached its own limit. Call it before `kill`.

        Args:
            while_stopped: the process was stopped when it was killed, so another one requested the memory. Otherwise
                the result is false for a sandbox without a control group, whose memory has no limit.
        """
        reached = reached_memory_limit(self.groups)
        return (reached is False or (reached is None and while_stopped)) and oom_kills() > self.oom_kills_before

    def begin_kill(self) -> None:
        """Kill every process of the sandbox (without bubblewrap, of its session) without waiting for their end."""
        if self._is_killed:
            return
        self._is_killed = True
        with contextlib.suppress(ProcessLookupError):
            if self.kind == "none":
                os.killpg(self.first, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self.first_fd, signal.SIGKILL)  # the kernel kills all others with pid 1

    def kill(self) -> None:
        """Kill every process of the sandbox (without bubblewrap, of its session) and wait until they have ended."""
        if self._has_ended:
            return
        self.begin_kill()
        self._has_ended = True
        ended = select.poll()
        ended.register(self.first_fd, select.POLLIN)
        ended.poll(_START_S * 1e3)
        os.close(self.first_fd)
        if self.exit_signal_or_code(_REAP_S) is None:  # bwrap itself exits after its child has ended
            self.popen.kill()
            self.popen.wait(timeout=_START_S)
        remove_cgroups(self.groups)

    def exit_signal_or_code(self, timeout_s: float) -> int | None:
        """Return -signal or the exit code of the command; None if it has not ended within `timeout_s` seconds."""
        try:
            code = self.popen.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code > 128 and self.kind != "none" else code  # bwrap exits with 128 + signal


def launch(
    kind: SandboxKind,
    command: Sequence[str],
    *,
    binds: Binds,
    limits: SandboxLimits,
    env: Mapping[str, str],
    stderr: IO[bytes],
    inherit: Sequence[int] = (),
    cwd: Path | None = None,
) -> Sandboxed:
    """Start a command in a sandbox, with its limits applied before its first instruction.

    The calling thread must outlive the sandbox, because the sandbox ends with it.

    Args:
        kind: `bubblewrap`, or `none` for code that the user trusts.
        command: program and arguments, with paths of the sandbox; for `none` with paths of the host.
        binds: paths that the sandbox can access.
        limits: resource limits.
        env: environment, added to a fixed one.
        stderr: file that the command's stderr is written to; stdout is discarded.
        inherit: file descriptors that the command inherits.
        cwd: working directory for `none`; in bubblewrap it is /tmp.

    Raises:
        ConfigurationError: bubblewrap is missing or cannot run on this machine; the message has its output.
    """
    before = oom_kills()
    gate_read, gate_write = os.pipe()
    info_read, info_write = os.pipe()
    filter_file = program_file(shares_pages=not binds.devices) if kind == "bubblewrap" else None
    try:
        if filter_file is not None:
            bwrap_descriptors = [filter_file, info_write, gate_read]
            full_command = [*command_line(binds, environment(env), filter_file, info_write, gate_read), *command]
        else:
            bwrap_descriptors = []
            full_command = ["/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "sh", *command]
        popen = subprocess.Popen(
            full_command,
            stdin=subprocess.DEVNULL if filter_file is not None else gate_read,
            stdout=subprocess.DEVNULL,  # a candidate may print without limit
            stderr=stderr,
            pass_fds=[*bwrap_descriptors, *inherit],
            env=environment(env),
            cwd=cwd if kind == "none" else "/",
            start_new_session=kind == "none",
        )
        os.close(info_write)
        info_write = -1
        first = popen.pid if kind == "none" else _first_process(info_read, popen, stderr)
        sandbox = Sandboxed(popen, first, os.pidfd_open(first), kind, (), before)
        try:
            apply_limits(first, limits)
            sandbox.groups = join_cgroups(first, limits, uuid.uuid4().hex[:12])
        except BaseException:
            sandbox.kill()  # else it would start the command without limits when the gate is closed
            raise
        os.write(gate_write, b"\n")
        return sandbox
    finally:
        for descriptor in (gate_read, gate_write, info_read, info_write, filter_file):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)


def _first_process(info: int, popen: subprocess.Popen[bytes], stderr: IO[bytes]) -> int:
    text = b""
    while chunk := os.read(info, 4096):
        text += chunk
        with contextlib.suppress(ValueError):
            return int(json.loads(text)["child-pid"])
    popen.wait(timeout=_START_S)
    raise _cannot_run(_printed(stderr) or f"exit code {popen.returncode}")


def _printed(stderr: IO[bytes]) -> str:
    return os.pread(stderr.fileno(), 2000, 0).decode(errors="replace").strip()


def check(kind: SandboxKind) -> None:
    """Start a command in the sandbox once.

    Raises:
        ConfigurationError: bubblewrap is missing or cannot run on this machine.
    """
    if kind == "none":
        return
    with tempfile.TemporaryFile() as stderr:
        sandbox = launch(kind, ["/bin/true"], binds=Binds(), limits=SandboxLimits(), env={}, stderr=stderr)
        code = sandbox.exit_signal_or_code(_START_S)
        sandbox.kill()
        if code != 0:
            raise _cannot_run(_printed(stderr) or f"exit code {code}")
