"""The sandbox of a whole agent: its mounts, its writable directories, and its only connection, the gateway.

An allow-list, in bubblewrap: the system's libraries and tools, a CUDA toolkit where there is one, the description of
the processors in /sys, and the Python this process runs on (read-only); the problem (read-only) with the one solution
directory that may change; COORDINATION.md, solutions of other workers and the documentation pack (read-only); a
private home and /tmp. No `.git`, no ledger, no other worktree, no device, no other process, no
credential, and no network but a loopback of its own, on which one port leads to the gateway's socket.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.agents.local_tools import find_local_tools
from harness.errors import ConfigurationError
from harness.model.paths import SOLUTIONS, problem_path, solution_path
from harness.workspace.sandbox_mounts import python_binds, system_binds

TASK = "/task"
"""Inside: the agent's working directory."""
HOME = "/home/agent"
SOCKET = "/run/harness/gateway/socket"
REQUESTS = "/run/harness/requests"
TOOLS = "/opt/harness"
PORT = 8377
"""Of the loopback inside; every sandbox has a loopback of its own."""
BASE_URL = f"http://127.0.0.1:{PORT}"
_CERTIFICATES = ("ssl/certs", "ca-certificates")
_OF_HOST = ("resolv.conf", "hosts", "nsswitch.conf", "ssl", "passwd", "group")
_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
_TMP_BYTES = 2 << 30
_TRY_S = 20.0


@dataclass(frozen=True)
class View:
    """What one agent is shown: host paths."""

    problem: str
    directory: Path
    """The problem's directory in the worktree, shown read-only."""
    solution: Path
    """What the agent may write: shown in place of the solution directory, and never the worktree's own."""
    target: str
    """Names the solution directory."""
    reading: Path
    """COORDINATION.md and what else is to be read; becomes `/task`."""
    docs: Path
    home: Path
    """Kept between the sessions of one worker, for resuming."""
    sockets: Path | None = None
    """The directory of the gateway's socket."""
    requests: Path | None = None
    """Where a command agent's requests and answers lie."""
    network: Literal["gateway", "host"] = "gateway"
    binds: tuple[Path, ...] = ()
    """More paths of the host, shown read-only where they are."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables for the agent. Never a credential, unless `network` is `host`."""

    @property
    def shown(self) -> str:
        """Where the agent sees what it may write."""
        return f"{TASK}/{solution_path(self.problem, self.target)}"


def empty_view(root: Path, *, binds: tuple[Path, ...] = ()) -> View:
    """Return a view without a problem's files, below a directory of the caller: for trying programs in the sandbox."""
    view = View(
        problem="suite/name",
        directory=root / "problem",
        solution=root / "solution",
        target="cpu",
        reading=root / "reading",
        docs=root / "docs",
        home=root / "home",
        binds=binds,
    )
    view.docs.mkdir(parents=True)
    return view


def command_line(view: View, command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command, confined. Its standard streams are the caller's; it dies with the calling thread.

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
    found = shutil.which("bwrap")
    if found is None:
        raise ConfigurationError(
            "bubblewrap is missing: agents run in its sandbox only", remedy="apt-get install bubblewrap"
        )
    return found


def _environment(view: View) -> dict[str, str]:
    tools = find_local_tools()
    ours = {
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
        # The CLI asks for a key before it asks the gateway; this one opens nothing.
        ours |= {"ANTHROPIC_BASE_URL": BASE_URL, "ANTHROPIC_API_KEY": "the-gateway-adds-the-credential"}
    return ours


def _binds(view: View) -> list[str]:
    of_etc = (*_CERTIFICATES, *(_OF_HOST if view.network == "host" else ()))
    arguments = ["--proc", "/proc", "--remount-ro", "/proc", "--dev", "/dev", *system_binds(of_etc)]
    arguments += ["--size", str(_TMP_BYTES), "--tmpfs", "/tmp", *python_binds()]  # noqa: S108
    shown = find_local_tools().binds
    arguments += [word for path in shown for word in ("--ro-bind", str(path), str(path))]
    arguments += [word for path in view.binds for word in ("--ro-bind", str(path.resolve()), str(path))]
    inside = Path(__file__).resolve().parent / "inside"
    arguments += ["--ro-bind", str(inside / "relay.py"), f"{TOOLS}/relay.py"]
    arguments += ["--ro-bind", str(_verb(view)), f"{TOOLS}/bin/harness"]
    arguments += ["--ro-bind", str(inside / "harness.py"), f"{TOOLS}/harness.py"]
    return [*arguments, *_shown(view)]


def _shown(view: View) -> list[str]:
    """What is this agent's own: its problem, its home, its ways out."""
    problem = f"{TASK}/{problem_path(view.problem)}"
    view.solution.mkdir(parents=True, exist_ok=True)
    (view.directory / SOLUTIONS / view.target).mkdir(parents=True, exist_ok=True)
    for spot in (view.reading / problem_path(view.problem), view.reading / "docs", view.home):
        spot.mkdir(parents=True, exist_ok=True)
    arguments = ["--ro-bind", str(view.reading), TASK, "--ro-bind", str(view.directory), problem]
    arguments += ["--bind", str(view.solution), view.shown]
    arguments += ["--ro-bind", str(view.docs), f"{TASK}/docs", "--bind", str(view.home), HOME]
    if view.sockets is not None:
        arguments += ["--ro-bind", str(view.sockets), str(Path(SOCKET).parent)]
    if view.network == "host":
        login = ".claude/.credentials.json"
        arguments += ["--ro-bind-try", str(Path.home() / login), f"{HOME}/{login}"]
    if view.requests is not None:
        arguments += ["--bind", str(view.requests), REQUESTS]
    return arguments


def _verb(view: View) -> Path:
    """The `harness` of the sandbox: a script on its PATH."""
    script = view.reading / ".harness-verb"
    text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {TOOLS}/harness.py "$@"\n'
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(text)
        script.chmod(0o755)
    return script


def check() -> str:
    """Try the sandbox of agents once; its version.

    Raises:
        ConfigurationError: it is missing or cannot run here.
    """
    bwrap = _bwrap()
    wanted = [bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "/bin/true"]
    done = subprocess.run(wanted, capture_output=True, text=True, timeout=_TRY_S, check=False)
    if done.returncode:
        raise ConfigurationError(
            f"bubblewrap cannot run here: {done.stderr.strip()}",
            remedy="allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, or run as root",
        )
    return subprocess.run(
        [bwrap, "--version"], capture_output=True, text=True, timeout=_TRY_S, check=True
    ).stdout.strip()
