"""The sandbox of an agent: its mounts, its writable directories, and its only connection, the gateway.

The sandbox is an allow-list in bubblewrap:

- read-only: the system's libraries and tools, a CUDA toolkit if one is installed, the description of the processors in
  /sys, and the Python of this process;
- read-only: the problem, COORDINATION.md, solutions of other workers, and the documentation pack;
- writable: the solution directory, a private home and /tmp.

It has no `.git`, no ledger, no other worktree, no device, no other process and no credential. Its network is a private
loopback, on which one port leads to the gateway's socket.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from harness.agents.documentation import PACK
from harness.errors import ConfigurationError
from harness.model.paths import SOLUTIONS, problem_path, solution_path
from harness.workspace.sandbox_mounts import (
    ALLOW_USER_NAMESPACES,
    SYSTEM,
    python_binds,
    python_prefixes,
    system_binds,
)

TASK = "/task"
"""The agent's working directory inside the sandbox."""
HOME = "/home/agent"
SOCKET = "/run/harness/gateway/socket"
REQUESTS = "/run/harness/requests"
TOOLS = "/opt/harness"
PORT = 8377
"""A port of the loopback inside; each sandbox has a private loopback."""
BASE_URL = f"http://127.0.0.1:{PORT}"
_CERTIFICATES = ("ssl/certs", "ca-certificates")
_OF_HOST = ("resolv.conf", "hosts", "nsswitch.conf", "ssl", "passwd", "group")
_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_TMP_BYTES = 2 << 30
_TRY_S = 20.0
_COMPILERS = ("g++", "clang++", "gdb", "objdump", "lscpu")
_CUDA = ("nvcc", "ptxas", "cuobjdump", "nvdisasm")
_PROCESSORS = (Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node"))
"""Directories that lscpu reads, besides /proc/cpuinfo."""


@dataclass(frozen=True)
class View:
    """The host paths that the sandbox of one agent shows."""

    problem: str
    directory: Path
    """The problem's directory in the worktree, mounted read-only."""
    solution: Path
    """A writable directory outside the worktree, mounted in place of the worktree's solution directory."""
    target: str
    """Names the solution directory."""
    reading: Path
    """Mounted read-only as `/task`; contains COORDINATION.md and solutions of other workers."""
    home: Path
    """Kept between the sessions of one worker, so that a session can be resumed."""
    sockets: Path | None = None
    """The directory of the gateway's socket."""
    requests: Path | None = None
    """The directory of a command agent's requests and their answers."""
    network: Literal["gateway", "host"] = "gateway"
    binds: tuple[Path, ...] = ()
    """Additional host paths, mounted read-only at the same place."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Additional variables. They contain no credential, unless `network` is `host`."""

    @property
    def shown(self) -> str:
        """Return the path of the writable solution directory inside the sandbox."""
        return f"{TASK}/{solution_path(self.problem, self.target)}"


@dataclass(frozen=True)
class LocalTools:
    """Programs, and the paths that a sandbox needs to run them."""

    programs: tuple[str, ...]
    """Names of the installed programs, for prompts."""
    path: tuple[str, ...]
    """Directories for PATH, in addition to the system's."""
    binds: tuple[Path, ...]
    """Paths to mount read-only at the same place, in addition to the system and this Python."""


@cache
def find_local_tools() -> LocalTools:
    """Return the programs on PATH, in CUDA_HOME or CUDA_PATH, in NVIDIA's wheels and in /usr/local/cuda."""
    homes = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if on_path := shutil.which("nvcc"):
        homes.append(Path(on_path).resolve().parent.parent)
    homes += [Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13", Path("/usr/local/cuda")]
    directories = dict.fromkeys(home.resolve() / "bin" for home in homes if (home / "bin").is_dir())
    cuda_directories = [directory for directory in directories if any((directory / name).is_file() for name in _CUDA)]
    shown = [*map(Path, SYSTEM), *python_prefixes()]
    hidden = [path.parent for path in cuda_directories if not any(path.is_relative_to(root) for root in shown)]
    search = os.pathsep.join([*map(str, cuda_directories), *_PATH])
    programs = [name for name in (*_COMPILERS, *_CUDA) if shutil.which(name, path=search)]
    return LocalTools(
        programs=(*(["python3 with torch"] if find_spec("torch") else ["python3"]), *programs),
        path=tuple(map(str, cuda_directories)),
        binds=(*hidden, *(path for path in _PROCESSORS if path.is_dir())),
    )


def empty_view(root: Path, *, binds: tuple[Path, ...] = ()) -> View:
    """Return a view without a problem's files, for running test programs in the sandbox.

    Args:
        root: existing directory for the view's empty directories.
        binds: additional host paths, mounted read-only.
    """
    return View(
        problem="suite/name",
        directory=root / "problem",
        solution=root / "solution",
        target="cpu",
        reading=root / "reading",
        home=root / "home",
        binds=binds,
    )


def command_line(view: View, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command line that runs a command in the sandbox.

    The command inherits the standard streams of the caller and is killed when the calling thread ends.

    Args:
        command: the program and its arguments, as inside the sandbox.
        environment: variables that override those of the view.

    Raises:
        ConfigurationError: bubblewrap is missing.
    """
    variables = {**_environment(view), **view.environment, **environment}
    relay = [sys.executable, "-I", "-S", f"{TOOLS}/relay.py", str(PORT), SOCKET]
    network = [] if view.network == "host" else ["--unshare-net"]
    return [
        "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in variables.items()),
        _bwrap(), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", *network,
        "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "agent",
        *_binds(view), "--remount-ro", "/", "--chdir", TASK, "--", *relay, *command,
    ]  # fmt: skip


def _bwrap() -> str:
    path = shutil.which("bwrap")
    if path is None:
        raise ConfigurationError(
            "bubblewrap is missing: agents run in its sandbox only", remedy="apt-get install bubblewrap"
        )
    return path


def _environment(view: View) -> dict[str, str]:
    tools = find_local_tools()
    variables = {
        "PATH": ":".join([f"{TOOLS}/bin", str(Path(sys.executable).parent), *tools.path, *_PATH]),
        "HOME": HOME,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",  # noqa: S108 - a private one
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "HARNESS_PROBLEM": view.problem,
    }
    if view.network == "gateway":
        # The CLI refuses to start without a key. This one is a placeholder.
        variables |= {"ANTHROPIC_BASE_URL": BASE_URL, "ANTHROPIC_API_KEY": "the-gateway-adds-the-credential"}
    return variables


def _binds(view: View) -> list[str]:
    of_etc = (*_CERTIFICATES, *(_OF_HOST if view.network == "host" else ()))
    arguments = ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", *system_binds(of_etc)]
    arguments += ["--size", str(_TMP_BYTES), "--tmpfs", "/tmp", *python_binds()]  # noqa: S108
    tool_paths = find_local_tools().binds
    arguments += [word for path in tool_paths for word in ("--ro-bind", str(path), str(path))]
    arguments += [word for path in view.binds for word in ("--ro-bind", str(path.resolve()), str(path))]
    inside = Path(__file__).resolve().parent / "inside"
    arguments += ["--ro-bind", str(inside / "relay.py"), f"{TOOLS}/relay.py"]
    arguments += ["--ro-bind", str(_harness_script(view)), f"{TOOLS}/bin/harness"]
    arguments += ["--ro-bind", str(inside / "harness.py"), f"{TOOLS}/harness.py"]
    return [*arguments, *_view_binds(view)]


def _view_binds(view: View) -> list[str]:
    """Return the mounts of one agent: its problem, its home, its sockets and requests."""
    problem = f"{TASK}/{problem_path(view.problem)}"
    view.solution.mkdir(parents=True, exist_ok=True)
    (view.directory / SOLUTIONS / view.target).mkdir(parents=True, exist_ok=True)
    for mount_point in (view.reading / problem_path(view.problem), view.reading / "docs", view.home):
        mount_point.mkdir(parents=True, exist_ok=True)
    arguments = ["--ro-bind", str(view.reading), TASK, "--ro-bind", str(view.directory), problem]
    arguments += ["--bind", str(view.solution), view.shown]
    arguments += ["--ro-bind", str(PACK), f"{TASK}/docs", "--bind", str(view.home), HOME]
    if view.sockets is not None:
        arguments += ["--ro-bind", str(view.sockets), str(Path(SOCKET).parent)]
    if view.network == "host":
        login = ".claude/.credentials.json"
        arguments += ["--ro-bind-try", str(Path.home() / login), f"{HOME}/{login}"]
    if view.requests is not None:
        arguments += ["--bind", str(view.requests), REQUESTS]
    return arguments


def _harness_script(view: View) -> Path:
    """Write the script `harness` for the sandbox's PATH and return its path."""
    script = view.reading / ".harness-verb"
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {TOOLS}/harness.py "$@"\n'
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return script


def check() -> str:
    """Run bubblewrap in bubblewrap once and return its version.

    Raises:
        ConfigurationError: bubblewrap is missing or cannot run on this machine.
    """
    bwrap = _bwrap()
    trial = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", bwrap, "--version"]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=_TRY_S, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"bubblewrap cannot run here: {done.stderr.strip()}",
            remedy=ALLOW_USER_NAMESPACES,
        )
    return done.stdout.strip()
