"""From a solution's sources to what a runner loads: compiled in a sandbox, kept by content.

Compiling executes attacker-chosen code (macros, includes, compiler plug-ins), so it happens with no network, no device,
the sources read-only, and nothing to write to but file systems in memory of limited size. What comes out is bounded,
hashed, and kept under a name made of everything it depends on; its hash stands in an index no sandbox can reach. A
build holds no lock: others may be timed meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType

from harness.errors import ConfigurationError
from harness.failpoints import failpoint
from harness.formats.bounded import load_json_file
from harness.judge.build.compiler_trial import compile_one_function
from harness.judge.build.output import OUTPUT_BYTES, copying, keep_results, memory_file
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.isolation.sandbox import RUNNER_HOME, Binds, launch, shown_already
from harness.model.axis_types import ConstAxis
from harness.model.config import SandboxKind
from harness.model.problem import Problem
from harness.model.solution import ParamValue, Solution, macros

BUILD_CPU_S = 60
"""Processor time of one compiler process. One that takes longer is stopped: COMPILE_ERROR."""
BUILD_S = 180.0
"""A whole build, by the wall clock: on a busy host a compiler waits, and the candidate is not the cause."""
LARGEST_ARTEFACT = 64 << 20
ARTEFACT = "artefact.so"
MESSAGES = "messages"
"""File beside an artefact with its compiler's messages."""
QUIET = ("-fdiagnostics-color=never", "-fno-diagnostics-show-caret")
"""For g++ and clang++: an error is one line."""
_MESSAGE_BYTES = 64 << 10
_KEPT_MESSAGES = 16 << 10
_REASON_LINES = 3
_FORMAT = 1
_KILLED = "Killed"
"""The C library's word for SIGKILL, with which g++ and nvcc name what ended a compiler process."""
_OUT_OF_TIME = "CPU time limit exceeded"
"""The C library's words for SIGXCPU, with which g++ and nvcc name what ended a compiler process."""
_ERROR = re.compile(r"\b(error|undefined reference|cannot find -l\S+|fatal)\b", re.IGNORECASE)


class BuildFailed(Exception):  # noqa: N818 - an outcome
    """The sources do not become an artefact; `reason` is the compiler's first error, with the user's file and line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Built:
    """An artefact on this host, checked against its hash."""

    path: Path
    cached: bool
    messages: str = ""
    """The compiler's messages of the build; untrusted."""


@dataclass(frozen=True)
class BuildPaths:
    """Directories and files of a build, as its sandbox sees them."""

    sources: str
    output: str
    request: str


@dataclass(frozen=True)
class Compilation:
    """Command that makes an artefact, and its limits."""

    command: Callable[[BuildPaths], list[str]]
    """Leaves `makes` in the output."""
    limits: SandboxLimits
    within_s: float
    """It is stopped then, by the wall clock."""
    shown: Sequence[Path] = ()
    """Paths that it must see besides the system and this Python."""
    makes: Sequence[str] = (ARTEFACT,)
    extras: Sequence[str] = ()
    """More files that it may leave in the output."""
    log: str = ""
    """The file in the output that has its messages, should these not come on stderr."""
    request: Callable[[BuildPaths], object] | None = None
    """Content of the request file, as JSON."""
    unusable_code: int | None = None
    """Exit code for a compiler that cannot be used here, whatever the sources are."""


@cache
def compiler() -> tuple[str, str]:
    """The system's C++ compiler and its version line ($CXX, else c++, else g++).

    Raises:
        ConfigurationError: there is none.
    """
    found = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if found is None:
        raise ConfigurationError("no C++ compiler", remedy="apt-get install g++")
    said = subprocess.run([found, "--version"], capture_output=True, check=True, timeout=20).stdout
    return str(Path(found).resolve()), said.decode(errors="replace").splitlines()[0]


def build_cpp(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> Built:
    """Compile a `cpp` solution to a shared object, or take it from the cache.

    Raises:
        BuildFailed: the compiler said no, took too long, or made too much.
        ConfigurationError: there is no compiler that works.
        OSError: the host's disk is full.
    """
    arguments = ["-std=c++17", "-O3", "-march=native", "-Wall", "-fPIC", "-shared", *solution.spec.compile.flags]
    arguments += [*defines(problem, solution.spec.params), *QUIET]

    def command(paths: BuildPaths) -> list[str]:
        whole = [found, *arguments, "-I", paths.sources, "-o", f"{paths.output}/{ARTEFACT}"]
        return [*whole, f"{paths.sources}/{solution.spec.file}"]

    found, _ = compiler()
    key = content_key(solution, [compiler(), _machine(), solution.spec.file, arguments])
    limits = replace(build_limits(8 * GIB, processes=64), address_space_bytes=8 * GIB)
    compilation = Compilation(command, limits, BUILD_S)
    try:
        return kept(cache_dir, key, lambda scratch: compiled(solution, compilation, scratch, sandbox) / ARTEFACT)
    except BuildFailed:
        compile_one_function(found, sandbox)
        raise


def build_limits(memory_bytes: int, processes: int) -> SandboxLimits:
    """Limits of a build's sandbox; `memory_bytes` are those of all of its processes together."""
    return SandboxLimits(memory_bytes=memory_bytes, file_bytes=LARGEST_ARTEFACT, processes=processes, cpu_s=BUILD_CPU_S)


def kept(cache_dir: Path, key: str, make: Callable[[Path], Path]) -> Built:
    """The shared object of this key, if it is in the cache as it was put there; else what `make` makes in a scratch.

    Raises:
        BuildFailed: from `make`; nothing is kept then.
    """
    store = cache_dir / "artefacts"
    artefact, index = store / f"{key}.so", store / f"{key}.json"
    if artefact.is_file() and index.is_file():
        known = load_json_file(index)
        if known["sha256"] == _digest(artefact):
            return Built(artefact, cached=True, messages=str(known.get("messages", "")))
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix="build-") as scratch:
        made = make(Path(scratch))
        failpoint("judge.built")
        written = made.with_name(MESSAGES)
        messages = written.read_text(errors="replace")[:_KEPT_MESSAGES] if written.is_file() else ""
        facts = {"format": _FORMAT, "sha256": _digest(made), "compiler": compiler()[1], "messages": messages}
        index_text = json.dumps(facts)
        made.chmod(0o444)
        made.replace(artefact)
        (Path(scratch) / "index").write_text(index_text)
        (Path(scratch) / "index").replace(index)
    failpoint("judge.artefact_kept")
    return Built(artefact, cached=False, messages=messages)


def defines(problem: Problem, params: Mapping[str, ParamValue]) -> list[str]:
    """The macros of a problem's constant axes and of the params."""
    axes = problem.definition.axes.items()
    return macros({name: axis.value for name, axis in axes if isinstance(axis, ConstAxis)}, params)


def content_key(solution: Solution, settings: Sequence[object]) -> str:
    """A name made of a solution's sources and of everything else (as JSON) that what is built depends on."""
    digest = hashlib.sha256(json.dumps([_FORMAT, *settings]).encode())
    for name in solution.sources:
        data = (solution.directory / name).read_bytes()
        digest.update(f"\n{name}\n{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:40]


@cache
def _machine() -> str:
    """Properties of this processor that -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return hashlib.sha256("\n".join(sorted(told)).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compiled(solution: Solution, compilation: Compilation, scratch: Path, sandbox: SandboxKind) -> Path:
    """The output of a compilation, carried out in a sandbox of its own: a directory below `scratch`.

    Without a sandbox the compiler writes to that directory itself, without a limit on all files together.

    Args:
        solution: whose sources it sees, read-only.
        compilation: what to run.
        scratch: a directory on the host, removed by the caller.
        sandbox: which.

    Raises:
        BuildFailed: the compiler said no, took too long, or made too much.
        ConfigurationError: the compiler cannot be used here.
        OSError: the host's disk is full.
        MemoryError: this machine ran out of memory, and the build is not to blame.
    """
    sources, output, request = scratch / "sources", scratch / "output", scratch / "request.json"
    output.mkdir()
    for name in solution.sources:
        target = sources / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(solution.directory / name, target)
    confined = sandbox == "bubblewrap"
    paths = BuildPaths("/sources", "/output", "/request.json") if confined else _on_host(sources, output, request)
    request.write_text(json.dumps(compilation.request(paths) if compilation.request else None))
    shown = {path: str(path) for path in compilation.shown if not shown_already(path)}
    names = [*compilation.makes, *compilation.extras, *filter(None, [compilation.log])]
    begin = time.monotonic()
    with ExitStack() as stack:
        messages = stack.enter_context(memory_file("messages"))
        results = {name: stack.enter_context(memory_file(name)) for name in names} if confined else {}
        process = launch(
            sandbox,
            copying(compilation.command(paths), paths.output, results),
            binds=Binds(
                read_only={sources: paths.sources, request: paths.request, **shown},
                tmpfs={paths.output: OUTPUT_BYTES},
            ),
            limits=compilation.limits,
            env={},
            stderr=messages,
            inherit=[file.fileno() for file in results.values()],
            cwd=scratch,
        )
        code = process.exit_signal_or_code(compilation.within_s)
        starved = process.was_killed_for_others()
        process.kill()
        said = os.pread(messages.fileno(), _MESSAGE_BYTES, 0).decode(errors="replace")
        keep_results(results, output)
    log = output / compilation.log
    if compilation.log and log.is_file() and not log.is_symlink():
        said = log.read_text(errors="replace")[:_MESSAGE_BYTES] or said
    if code is None:
        raise BuildFailed(f"the compiler was stopped after {time.monotonic() - begin:.0f} s")
    if code == -signal.SIGXCPU or (code != 0 and _OUT_OF_TIME in said):
        raise BuildFailed(f"the compiler was stopped after {compilation.limits.cpu_s} s of processor time")
    if starved and code != 0 and (code == -signal.SIGKILL or _KILLED in said):
        raise MemoryError("the kernel ended a compiler, which was within its limit of memory")
    if code == compilation.unusable_code:
        raise ConfigurationError(f"the compiler cannot be used here: {reason_of(said, paths.sources)}")
    made = [output / name for name in compilation.makes]
    if code != 0 or any(path.is_symlink() or not path.is_file() for path in made):
        raise BuildFailed(reason_of(said, paths.sources) or f"the compiler ended with code {code} and said nothing")
    if sum(path.stat().st_size for path in made) > LARGEST_ARTEFACT:
        raise BuildFailed(f"the artefact is larger than {LARGEST_ARTEFACT >> 20} MiB")
    (output / MESSAGES).write_text(said)
    return output


def _on_host(sources: Path, output: Path, request: Path) -> BuildPaths:
    return BuildPaths(str(sources), str(output), str(request))


def runs(module: ModuleType, sandbox: SandboxKind) -> list[str]:
    """The beginning of a command that runs a module of the runner's, as a sandbox shows it."""
    file = Path(str(module.__file__))
    return [sys.executable, "-I", "-B", f"{RUNNER_HOME}/runner/{file.name}" if sandbox == "bubblewrap" else str(file)]


def reason_of(said: str, sources: str) -> str:
    """The compiler's first error lines, in the user's own file names; warnings and notes left out."""
    lines = [line.replace(f"{sources}/", "") for line in said.splitlines()]
    errors = [line for line in lines if _ERROR.search(line)]
    chosen = (errors or [line for line in lines if line.strip()])[:_REASON_LINES]
    return " | ".join("".join(letter for letter in line if letter.isprintable())[:200] for line in chosen)
