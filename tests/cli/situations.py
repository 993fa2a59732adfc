"""Machines and workspaces that lack something, or have something that is broken."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import threading
import venv
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import create_server, socket

from harness.workspace.files import file_lock
from tests.cli.test_devices import see_gpu
from tests.site import Site, git

HARNESS = (sys.executable, "-m", "harness")
EVERYTHING = ("bwrap", "--dev-bind", "/", "/")
# With a limit of time: a use that is not refused, against its row, must not run on.
START = ("start", "--workers", "1", "--max-minutes", "0.01")
ON_CPU = (*START, "--device", "cpu")


@dataclass(frozen=True)
class Place:
    """The site and the scratch directory in which a wrong use is typed."""

    site: Site
    scratch: Path
    stack: ExitStack
    """Ends what an arrangement has started."""

    def configure(self, text: str) -> None:
        file = self.site.workspace.config_file
        file.write_text(f"{file.read_text()}\n{text}\n")


@dataclass(frozen=True)
class Situation:
    """The result of an arrangement: variables, and the program in place of `harness` where that is another process."""

    environment: Mapping[str, str]
    program: tuple[str, ...] | None = None
    directory: Path | None = None


Arrange = Callable[[Place], Situation]


def variables(**environment: str) -> Arrange:
    return lambda _: Situation(environment)


def configured(text: str) -> Arrange:
    def arrange(place: Place) -> Situation:
        place.configure(text)
        return Situation({})

    return arrange


def claude(arrange: Arrange) -> Arrange:
    """Also ask for agents of kind claude."""

    def with_claude(place: Place) -> Situation:
        place.configure("agent: {kind: claude}")
        return arrange(place)

    return with_claude


PROGRAMS = ("bwrap", "c++", "clang++", "cp", "env", "g++", "gcc", "git", "nvidia-smi", "sh")


def path_without(directory: Path, *missing: str) -> str:
    """A PATH with the programs that the harness starts, but these."""
    directory.mkdir()
    for name in PROGRAMS:
        program = shutil.which(name)
        if program is not None and name not in missing:
            (directory / name).symlink_to(program)
    return str(directory)


def without(*programs: str) -> Arrange:
    return lambda place: Situation({"PATH": path_without(place.scratch / "bin", *programs)})


def one_gpu(place: Place) -> Situation:
    return Situation({"PATH": see_gpu(place.scratch / "smi", "NVIDIA H200")})


def torch_outside_the_sandbox(place: Place) -> Situation:
    """A Python whose torch, like everything else, is in a directory that is not its own."""
    home = place.scratch / "python"
    venv.create(home, with_pip=False, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    site_packages = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in site_packages]
    (packages / "elsewhere.pth").write_text("\n".join([*lines, str(Path(__file__).parents[2])]) + "\n")
    return Situation({}, (str(home / "bin/python"), "-m", "harness"))


def compiler_that_fails(place: Place) -> Situation:
    """A machine whose compilers know their version and compile nothing."""
    broken = place.scratch / "compiler"
    broken.write_text(
        '#!/bin/sh\ncase "$*" in *-version*) echo "broken 12.0"; exit 0;; esac\necho "error: no" >&2; exit 1\n'
    )
    broken.chmod(0o755)
    names = [shutil.which(name) for name in ("c++", "g++", "gcc", "cc", "clang++", "clang")]
    real = {str(Path(name).resolve()) for name in names if name}
    binds = [part for path in sorted(real) for part in ("--ro-bind", str(broken), path)]
    return Situation({}, (*EVERYTHING, *binds, *HARNESS))


def no_python_headers(_: Place) -> Situation:
    """A machine without the headers that what torch.compile generates includes."""
    headers = sorted({sysconfig.get_path("include"), str(Path(sysconfig.get_path("include")).resolve())})
    hidden = [part for path in headers for part in ("--tmpfs", path)]
    return Situation({}, (*EVERYTHING, *hidden, *HARNESS))


def nobody_listens(_: Place) -> Situation:
    with closing(create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    return Situation({"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "ANTHROPIC_API_KEY": "sk-of-nobody"})


def nobody_answers(place: Place) -> Situation:
    """A listener whose queue is full, so that no further connection is made."""
    server = place.stack.enter_context(closing(create_server(("127.0.0.1", 0), backlog=0)))
    for _ in range(4):
        client = place.stack.enter_context(closing(socket()))
        client.settimeout(0)
        client.connect_ex(server.getsockname())
    address = f"http://127.0.0.1:{server.getsockname()[1]}"
    return Situation({"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "sk-of-nobody"})


class _Refuses(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(401)
        self.end_headers()
        self.wfile.write(b'{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key"}}')

    def log_message(self, *_: object) -> None:
        pass


def key_is_refused(place: Place) -> Situation:
    server = place.stack.enter_context(HTTPServer(("127.0.0.1", 0), _Refuses))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    place.stack.callback(thread.join)
    place.stack.callback(server.shutdown)
    address = f"http://127.0.0.1:{server.server_port}"
    return Situation({"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "sk-revoked"})


def hidden_program(place: Place) -> Situation:
    program = place.scratch / "my-agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    place.configure(f"agent: {{kind: command, command: 'MODE=fast {program} {{prompt_file}}'}}")
    return Situation({})


def hidden_script(place: Place) -> Situation:
    script = place.scratch / "my_agent.py"
    script.write_text("")
    place.configure(f"agent: {{kind: command, command: 'python3 {script} {{prompt_file}}'}}")
    return Situation({})


def read_only(place: Place) -> Situation:
    root = str(place.site.root)
    return Situation({}, (*EVERYTHING, "--ro-bind", root, root, *HARNESS))


def full_disk(place: Place) -> Situation:
    """The workspace on a file system of 32 MB."""
    disk = place.scratch / "disk"
    disk.mkdir()
    copy = f'cp -r "{place.site.root}" "{disk}/site" && cd "{disk}/site" && exec "$@"'
    return Situation({}, (*EVERYTHING, "--size", str(32 << 20), "--tmpfs", str(disk), "sh", "-c", copy, "sh", *HARNESS))


def full_directory(place: Place) -> Situation:
    """A file system of one page for everything derived."""
    place.site.workspace.derived.mkdir(exist_ok=True)
    return Situation({}, (*EVERYTHING, "--size", "4096", "--tmpfs", str(place.site.workspace.derived), *HARNESS))


def another_run(place: Place) -> Situation:
    place.stack.enter_context(file_lock(place.site.workspace.start_lock, owner="harness start"))
    return Situation({})


def no_git_repository(place: Place) -> Situation:
    place.scratch.joinpath("plain").mkdir()
    shutil.copy(place.site.workspace.config_file, place.scratch / "plain/harness.yaml")
    return Situation({}, directory=place.scratch / "plain")


def outside(place: Place) -> Situation:
    return Situation({}, directory=place.scratch)


def no_problems(place: Place) -> Situation:
    git(place.site.root, "rm", "-r", "--quiet", "problems")
    git(place.site.root, "commit", "--quiet", "-m", "Remove the problems")
    return Situation({})


def another_branch(place: Place) -> Situation:
    file = place.site.workspace.config_file
    file.write_text(file.read_text().replace("coordination_branch: main", "coordination_branch: trunk"))
    return Situation({})


def not_text(place: Place) -> Situation:
    place.site.workspace.config_file.write_bytes(b"\xff\xfe")
    return Situation({})
