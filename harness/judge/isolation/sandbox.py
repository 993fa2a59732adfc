"""One untrusted process in bubblewrap: what it sees, what it may use, how it is started and ended.

An allow-list: the system's libraries and compiler, the Python this process runs on, the runner's own files, and what
the caller binds. No workspace, no ledger, no home, no network, no other process. `kind="none"` runs the same command
without bubblewrap, for code the user trusts; the entry says so.
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
from harness.workspace.host_memory import oom_kills
from harness.workspace.sandbox_mounts import SYSTEM, python_binds, python_prefixes, system_binds

RUNNER_HOME = "/opt/judge"
"""Inside: the directory that holds the package `runner`."""
_PROC_OF_THE_HOST = ("sys", "sysrq-trigger", "irq", "bus", "fs", "scsi", "acpi")
_START_S = 20.0
_REAP_S = 2.0


@dataclass(frozen=True)
class Binds:
    """Paths that the caller shows a sandbox: host path -> path inside. `devices` keep their device nodes usable."""

    read_only: Mapping[Path, str] = field(default_factory=dict)
    writable: Mapping[Path, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    tmpfs: Mapping[str, int] = field(default_factory=dict)
    """Path inside -> size in bytes of an empty, writable file system in memory."""
    shm_bytes: int = 256 << 20
    tmp_bytes: int = 512 << 20


def shown_already(path: Path) -> bool:
    """Return true if every sandbox shows this path without being asked to."""
    return any(path.is_relative_to(root) for root in (*python_prefixes(), *map(Path, SYSTEM)))


def _compiler_prefix() -> list[Path]:
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        return []
    home = Path(compiler).resolve().parent.parent
    return [] if any(home.is_relative_to(root) for root in SYSTEM) else [home]


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a sandboxed process: nothing is inherited but a test's failpoint."""
    fixed = {
        "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "USER": "judged",  # noqa: S108
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TMPDIR": "/tmp",  # noqa: S108
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor", "TORCHINDUCTOR_COMPILE_THREADS": "1",  # noqa: S108
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",  # 150 MB that take longer than they save
        # What a call frees stays with the process: otherwise page faults, not arithmetic, are timed, on either side.
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }  # fmt: skip
    if "HARNESS_FAILPOINT" in os.environ:
        fixed["HARNESS_FAILPOINT"] = os.environ["HARNESS_FAILPOINT"]
    return {**fixed, **extra}


def _guarded_proc(*, devices: bool) -> list[str]:
    """Read-only: uid 0 without any capability still owns, and could write, every file below /proc/sys.

    CUDA writes to /proc/self (the names of its threads), so that with devices only what is the host's is read-only.
    """
    if not devices:
        return ["--remount-ro", "/proc"]
    return [part for name in _PROC_OF_THE_HOST for part in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")]


def _binds(binds: Binds) -> list[str]:
    arguments = ["--proc", "/proc", "--dev", "/dev", *_guarded_proc(devices=bool(binds.devices)), *system_binds()]
    arguments += ["--size", str(binds.tmp_bytes), "--tmpfs", "/tmp", "--size", str(binds.shm_bytes), "--tmpfs"]  # noqa: S108
    arguments += ["/dev/shm"]  # noqa: S108
    arguments += python_binds(_compiler_prefix())
    arguments += ["--ro-bind", str(Path(harness.__file__).resolve().parent / "runner"), f"{RUNNER_HOME}/runner"]
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
    found = shutil.which("bwrap")
    if found is None:
        raise ConfigurationError(
            "bubblewrap is missing: it is the sandbox of every judged candidate",
            remedy="apt-get install bubblewrap, or give --sandbox none for code you trust",
        )
    return found


def command_line(binds: Binds, env: Mapping[str, str], seccomp: int, info: int, block: int) -> list[str]:
    """Bwrap and its options up to the command. The three descriptors are inherited."""
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
    """A running sandbox. `first` is its pid 1 as this host sees it; for `none` the process itself."""

    popen: subprocess.Popen[bytes]
    first: int
    first_fd: int
    """Its pidfd: a process id could be somebody else's by the time it is used."""
    kind: SandboxKind
    groups: tuple[Path, ...]
    oom_kills_before: int
    """Of this machine, when it was started."""
    _killed: bool = False

    def was_killed_for_others(self) -> bool:
        """Return whether the kernel may have ended a process of it because this machine was out of memory.

        False where the sandbox met a limit of its own, or where there is no control group. Call it before `kill`.
        """
        return reached_memory_limit(self.groups) is False and oom_kills() > self.oom_kills_before

    def kill(self) -> None:
        """End every process of the sandbox and wait until they are gone. Without bubblewrap, those of its session."""
        if self._killed:
            return
        self._killed = True
        with contextlib.suppress(ProcessLookupError):
            if self.kind == "none":
                os.killpg(self.first, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(self.first_fd, signal.SIGKILL)  # pid 1's end is the end of them all
        ended = select.poll()
        ended.register(self.first_fd, select.POLLIN)
        ended.poll(_START_S * 1e3)
        os.close(self.first_fd)
        if self.exit_signal_or_code(_REAP_S) is None:  # bwrap itself ends when it has seen its child's end
            self.popen.kill()
            self.popen.wait(timeout=_START_S)
        remove_cgroups(self.groups)

    def exit_signal_or_code(self, timeout_s: float) -> int | None:
        """Exit status of the command: -signal or its exit code; None if it has not ended by then."""
        try:
            code = self.popen.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return 128 - code if code > 128 and self.kind != "none" else code  # bwrap says 128 + signal


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
    """Start `command`, limited before its first instruction. Call it from a thread that outlives the sandbox.

    Paths in `command` are those inside; with kind `none` the caller gives host paths.

    Raises:
        ConfigurationError: bubblewrap is missing or cannot run here; the message carries what it said.
    """
    before = oom_kills()
    gate_read, gate_write = os.pipe()
    info_read, info_write = os.pipe()
    filter_file = program_file(shares_pages=not binds.devices) if kind == "bubblewrap" else None
    try:
        if filter_file is not None:
            passed = [filter_file, info_write, gate_read]
            whole = [*command_line(binds, environment(env), filter_file, info_write, gate_read), *command]
        else:
            passed = []
            whole = ["/bin/sh", "-c", 'read -r _; exec "$@" </dev/null', "sh", *command]
        popen = subprocess.Popen(
            whole,
            stdin=subprocess.DEVNULL if filter_file is not None else gate_read,
            stdout=subprocess.DEVNULL,  # a candidate may print as much as it likes
            stderr=stderr,
            pass_fds=[*passed, *inherit],
            env=environment(env),
            cwd=cwd if kind == "none" else "/",
            start_new_session=kind == "none",
        )
        os.close(info_write)
        info_write = -1
        first = popen.pid if kind == "none" else _first_process(info_read, popen, stderr)
        first_fd = os.pidfd_open(first)
        name = uuid.uuid4().hex[:12]
        apply_limits(first, limits)
        groups = join_cgroups(first, limits, name)
        os.write(gate_write, b"\n")
        return Sandboxed(popen, first, first_fd, kind, groups, before)
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
    said = os.pread(stderr.fileno(), 2000, 0).decode(errors="replace").strip()
    raise ConfigurationError(
        f"bubblewrap cannot run here: {said or f'exit code {popen.returncode}'}",
        remedy="allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or run as root), "
        "or give --sandbox none for code you trust",
    )


def check(kind: SandboxKind) -> None:
    """Try the sandbox once.

    Raises:
        ConfigurationError: it is missing or cannot run here.
    """
    if kind == "none":
        return
    with tempfile.TemporaryFile() as said:
        sandbox = launch(kind, ["/bin/true"], binds=Binds(), limits=SandboxLimits(), env={}, stderr=said)
        code = sandbox.exit_signal_or_code(_START_S)
        sandbox.kill()
        if code != 0:
            text = os.pread(said.fileno(), 2000, 0).decode(errors="replace").strip()
            raise ConfigurationError(
                f"bubblewrap cannot run here: {text or f'exit code {code}'}",
                remedy="allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, or run as root), "
                "or give --sandbox none for code you trust",
            )
