"""The table of wrong uses: the command, the machine, the text of the error, and the command of the fix."""

from __future__ import annotations

from dataclasses import dataclass

from tests.cli.situations import (
    ON_CPU,
    START,
    Arrange,
    Situation,
    another_branch,
    another_run,
    claude,
    compiler_that_fails,
    configured,
    full_directory,
    full_disk,
    full_listen_queue,
    hidden_program,
    hidden_script,
    key_is_refused,
    no_git_repository,
    no_listener,
    no_problems,
    no_python_headers,
    not_text,
    one_gpu,
    outside,
    read_only,
    torch_outside_the_sandbox,
    variables,
    without,
)


@dataclass(frozen=True)
class WrongUse:
    """A wrong use: a row of the table."""

    name: str
    arguments: tuple[str, ...]
    message: str
    """A regular expression for the line of error."""
    fix: str
    """A part of the fix."""
    arrange: Arrange = lambda _: Situation({})
    doctor: str | None = None
    """The requirement that `harness doctor` reports as missing in the same situation."""
    within_s: float = 3.0


NO_DEVICE, DEVICES = r"--device, or `devices` in harness.yaml: no such device: {}$", "devices: cpu, cuda, cuda:0"
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
    WrongUse("no GPU", (*START, "--device", "cuda"), "nvidia-smi lists no GPU", "--device cpu", without("nvidia-smi")),
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
    WrongUse("unknown agent", (*ON_CPU, "--agent", "unknown"), "'unknown' is not one of 'claude'", "start --help"),
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
        claude(no_listener),
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
        "a key that is valid",
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
        "the disk is full: 0.0 GB are free, a run needs 1 GB$",
        "/disk/site/.harness/cache can be deleted",
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
        r"a run is in progress.*: held by pid \d+ \(harness start\)",
        "harness stop",
        another_run,
    ),
    WrongUse(
        "no git repository", ON_CPU, "no workspace here: .* is a git checkout", "harness init DIR", no_git_repository
    ),
    WrongUse("no workspace", ON_CPU, "no workspace here", "harness init DIR", outside),
    WrongUse("no problems", ON_CPU, "problems there: none", "git add problems && git commit", no_problems, "problems"),
    WrongUse(
        "unknown problem",
        (*ON_CPU, "--problem", "no/*"),
        "no problem on main matches `no/.*problems there: t/one",
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
        "torch.compile does not work inside the sandbox: .* does not compile one function: error: no$",
        "apt-get install g++ python3-dev",
        compiler_that_fails,
        "torch",
        within_s=20.0,
    ),
    WrongUse(
        "torch.compile lacks headers",
        ON_CPU,
        "torch.compile does not work inside the sandbox: the headers of this Python are missing: .*/Python.h$",
        "apt-get install g++ python3-dev",
        no_python_headers,
        "torch",
        within_s=20.0,
    ),
    WrongUse(
        "endpoint is silent", ON_CPU, "no connection within 1.5 s", "ANTHROPIC_BASE_URL", claude(full_listen_queue)
    ),
)
