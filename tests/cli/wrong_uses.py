"""The table of wrong uses: what is typed, on which machine, what the line of error says, and what the fix names."""

from __future__ import annotations

import shutil
import sys
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
# With a limit of time: a use that is not refused, against what its row says, must not run on.
START = ("start", "--workers", "1", "--max-minutes", "0.01")
ON_CPU = (*START, "--device", "cpu")


@dataclass(frozen=True)
class Place:
    """Where a wrong use is typed."""

    site: Site
    scratch: Path
    stack: ExitStack
    """Ends what an arrangement has started."""

    def configure(self, text: str) -> None:
        file = self.site.workspace.config_file
        file.write_text(f"{file.read_text()}\n{text}\n")


@dataclass(frozen=True)
class Situation:
    """What an arrangement made: variables, and the program that stands for `harness` where that is another process."""

    environment: Mapping[str, str]
    program: tuple[str, ...] | None = None
    directory: Path | None = None


Arrange = Callable[[Place], Situation]


@dataclass(frozen=True)
class WrongUse:
    """One row."""

    name: str
    arguments: tuple[str, ...]
    says: str
    """A regular expression for the line of error."""
    fix: str
    """What the fix contains."""
    arrange: Arrange = lambda _: Situation({})
    doctor: str | None = None
    """The requirement that `harness doctor` calls missing in the same situation."""
    within_s: float = 3.0


def variables(**environment: str) -> Arrange:
    return lambda _: Situation(environment)


def configured(text: str) -> Arrange:
    def arrange(place: Place) -> Situation:
        place.configure(text)
        return Situation({})

    return arrange


def claude(arrange: Arrange) -> Arrange:
    """Also ask for agents of kind claude."""

    def both(place: Place) -> Situation:
        place.configure("agent: {kind: claude}")
        return arrange(place)

    return both


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
    ours = [path for path in sys.path if path.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in ours]
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


NO_DEVICE, DEVICES = r"--device: no such device: {}$", "devices: cpu, cuda, cuda:0"
ROWS = (
    # Devices.
    *(
        WrongUse(f"device {name or 'empty'}", (*START, "--device", name), NO_DEVICE.format(shown), DEVICES)
        for name, shown in {
            "tpu": "tpu",
            "GPU": "GPU",
            "cuda:x": "cuda:x",
            "cuda:-1": "cuda:-1",
            "cuda:²": "cuda:²",
            "cuda:0,": "cuda:",
            "cpu:1": "cpu:1",
            "": "an empty name",
            "cuda:99999": "cuda:99999",
        }.items()
    ),
    WrongUse("device in harness.yaml", START, NO_DEVICE.format("gpu"), DEVICES, configured("devices: [gpu]")),
    WrongUse("device twice", (*START, "--device", "cuda,0", "--device", "cuda:0"), NO_DEVICE.format("cuda,0"), DEVICES),
    WrongUse("device by two names", (*START, "--device", "cuda", "--device", "cuda:0"), "named twice: cuda:0", "once"),
    WrongUse(
        "no GPU", (*START, "--device", "cuda"), "no GPU that nvidia-smi lists", "--device cpu", without("nvidia-smi")
    ),
    WrongUse("fewer GPUs", (*START, "--device", "cuda:0,3"), NO_DEVICE.format("cuda:3"), "GPUs here: cuda:0", one_gpu),
    # The machine.
    WrongUse(
        "no bubblewrap", ON_CPU, "bubblewrap is missing", "apt-get install bubblewrap", without("bwrap"), "bubblewrap"
    ),
    WrongUse(
        "no compiler", ON_CPU, "there is no C\\+\\+ compiler", "apt-get install g++", without("c++", "g++", "clang++")
    ),
    WrongUse(
        "CXX is no compiler", ON_CPU, "CXX: the C\\+\\+ compiler `cxx` does not run", "unset CXX", variables(CXX="cxx")
    ),
    WrongUse("no git", ON_CPU, "git is not installed", "apt-get install git", without("git")),
    WrongUse(
        "torch is not in the sandbox",
        ON_CPU,
        "torch cannot be imported inside the sandbox: ModuleNotFoundError: No module named 'torch'",
        "pip install torch",
        torch_outside_the_sandbox,
        "torch",
    ),
    # Agents.
    WrongUse("unknown agent", (*ON_CPU, "--agent", "nobody"), "'nobody' is not one of 'claude'", "start --help"),
    WrongUse(
        "no key",
        ON_CPU,
        "no credential for the model",
        "export ANTHROPIC_API_KEY=",
        claude(variables()),
        "model key",
    ),
    WrongUse(
        "endpoint is down",
        ON_CPU,
        "cannot be reached: .*refused",
        "ANTHROPIC_BASE_URL",
        claude(nobody_listens),
        "model endpoint",
    ),
    WrongUse(
        "endpoint is no address",
        ON_CPU,
        "cannot be reached: not an address",
        "ANTHROPIC_BASE_URL",
        claude(variables(ANTHROPIC_BASE_URL="localhost:1", ANTHROPIC_API_KEY="k")),
        "model endpoint",
    ),
    WrongUse(
        "key is refused",
        ON_CPU,
        r"refuses the key \(401\): .*invalid x-api-key",
        "one that is valid",
        claude(key_is_refused),
        "model endpoint",
    ),
    WrongUse(
        "no command",
        ON_CPU,
        "agent `command` needs a command line",
        "for example: agent: {kind: command",
        configured("agent: {kind: command}"),
        "default agent",
    ),
    WrongUse(
        "unknown placeholder",
        ON_CPU,
        "agent.command: unknown placeholder wrong; known: prompt_file",
        "write {{ and }}",
        configured("agent: {kind: command, command: 'run {wrong}'}"),
        "default agent",
    ),
    WrongUse(
        "no such program",
        ON_CPU,
        "there is no program `no-such-agent`",
        "install it",
        configured("agent: {kind: command, command: 'no-such-agent {prompt_file}'}"),
        "agent program",
    ),
    WrongUse(
        "program is hidden",
        ON_CPU,
        "sandbox does not show `/.*/my-agent`",
        "shows: /usr",
        hidden_program,
        "agent program",
    ),
    WrongUse(
        "script is hidden",
        ON_CPU,
        "sandbox does not show `/.*/my_agent.py`",
        "shows: /usr",
        hidden_script,
        "agent program",
    ),
    WrongUse(
        "quotation mark is open",
        ON_CPU,
        "not a command line of a shell: No closing quotation",
        "close every",
        configured("""agent: {kind: command, command: "sh -c 'x {prompt_file}"}"""),
        "agent program",
    ),
    # The workspace.
    WrongUse(
        "read-only",
        ON_CPU,
        "work space: cannot be written: Read-only file system",
        "make it writable",
        read_only,
        "files",
    ),
    WrongUse(
        "full disk",
        ON_CPU,
        "the disk is full: 0.0 GB are free, a run needs 1",
        "rm -r .harness/cache",
        full_disk,
        "disk",
    ),
    WrongUse(
        "full directory",
        ON_CPU,
        r"\.harness: cannot be written: No space left",
        "free some space",
        full_directory,
        "files",
    ),
    WrongUse(
        "second start",
        ON_CPU,
        r"another run is in progress.*: held by pid \d+ \(harness start\)",
        "harness stop",
        another_run,
    ),
    WrongUse(
        "no git repository", ON_CPU, "no workspace here: .* is a git checkout", "harness init DIR", no_git_repository
    ),
    WrongUse("no workspace", ON_CPU, "no workspace here", "harness init DIR", outside),
    WrongUse(
        "no problems", ON_CPU, "there are: none at all", "git add problems && git commit", no_problems, "problems"
    ),
    WrongUse(
        "unknown problem",
        (*ON_CPU, "--problem", "no/*"),
        "no problem on main matches `no/.*there are: t/one",
        "git add",
    ),
    WrongUse(
        "no such branch",
        ON_CPU,
        "there is no branch trunk; branches: main",
        "git branch trunk",
        another_branch,
        "repository",
    ),
    # Configuration and options.
    WrongUse(
        "unknown target", ON_CPU, "no such target: h300", "targets: cpu, a100", configured("target: h300"), "target"
    ),
    WrongUse(
        "unknown key",
        ON_CPU,
        r"harness.yaml:\d+: `wrokers` is not a key here; did you mean `workers`",
        "edit that line",
        configured("wrokers: 2"),
        "harness.yaml",
    ),
    WrongUse("broken YAML", ON_CPU, r"harness.yaml:\d+: ", "edit that line", configured("workers: [2"), "harness.yaml"),
    WrongUse("no YAML text", ON_CPU, "harness.yaml: cannot be read", "repair it", not_text, "harness.yaml"),
    WrongUse(
        "negative limit in YAML",
        ON_CPU,
        r"harness.yaml:\d+: `agent.overall.usd` is -1",
        "edit that line",
        configured("agent: {overall: {usd: -1}}"),
        "harness.yaml",
    ),
    WrongUse(
        "run name",
        (*ON_CPU, "--run", "../main"),
        'the command line: `run` is "../main"; expected a name',
        "another value",
    ),
    WrongUse(
        "no workers", (*ON_CPU, "--workers", "-2"), "start: Invalid value for '--workers': -2", "harness start --help"
    ),
    WrongUse("negative money", (*ON_CPU, "--max-usd", "-1"), "'--max-usd': -1", "harness start --help"),
    WrongUse("no minutes", (*ON_CPU, "--max-minutes", "0"), "'--max-minutes': 0", "harness start --help"),
    WrongUse(
        "evaluations in words",
        (*ON_CPU, "--max-evaluations", "many"),
        "'many' is not a valid integer",
        "harness start --help",
    ),
    WrongUse("unknown option", (*ON_CPU, "--gpus", "2"), "No such option.*--gpus", "harness start --help"),
    WrongUse("unknown command", ("begin",), "No such command 'begin'", "harness --help"),
)
SLOW_ROWS = (
    WrongUse(
        "torch.compile is broken",
        ON_CPU,
        "torch.compile does not work inside the sandbox: .*C\\+\\+ compile error: error: no$",
        "apt-get install g++ python3-dev",
        compiler_that_fails,
        "torch",
        within_s=20.0,
    ),
    WrongUse("endpoint is silent", ON_CPU, "no connection within 1.5 s", "ANTHROPIC_BASE_URL", claude(nobody_answers)),
)
