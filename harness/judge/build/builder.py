"""Builds of solutions: the sources are compiled in a sandbox, and the artefact is cached by content.

A compiler executes code that an attacker has chosen (macros, includes, compiler plug-ins). The sandbox therefore has no
network, no device, read-only sources, and only in-memory file systems of limited size for writing. A shell copies the
results into memory files that the judge has opened, and the sandbox's limit on file sizes limits each of them. The name
of an artefact in the cache is a hash of everything that it depends on, and an index that no sandbox can reach has its
own hash. A build holds no lock: a candidate may be timed on another device meanwhile.
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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO

from harness.errors import ConfigurationError, FormatError
from harness.failpoints import failpoint
from harness.formats.bounded import load_json_file
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.isolation.sandbox import RUNNER_HOME, Binds, launch, shown_already
from harness.model.axes import ConstAxis
from harness.model.config import SandboxKind
from harness.model.problem import Problem
from harness.model.solution import ParamValue, Solution, macros

BUILD_CPU_S = 60
"""Processor seconds of one compiler process. A process that takes longer is stopped, with COMPILE_ERROR."""
BUILD_S = 180.0
"""Wall-clock seconds of a build. It is much longer than `BUILD_CPU_S`, because a compiler waits on a busy host."""
LARGEST_ARTEFACT = 64 << 20
ARTEFACT = "artefact.so"
MESSAGES = "messages"
"""Name of the file with the compiler's messages, in the directory of the artefact."""
QUIET = ("-fdiagnostics-color=never", "-fno-diagnostics-show-caret")
"""Flags of g++ and clang++ that make an error one line."""
_OUTPUT_BYTES = 256 << 20
"""Size of a build's output directory: objects of all sources, and the artefact."""
_TRIAL_S = 20.0
_MESSAGE_BYTES = 64 << 10
_KEPT_MESSAGES = 16 << 10
_REASON_LINES = 3
_FORMAT = 1
_KILLED = "Killed"
"""The C library's name of SIGKILL, which g++ and nvcc print if it ended one of their processes."""
_OUT_OF_TIME = "CPU time limit exceeded"
"""The C library's name of SIGXCPU, which g++ and nvcc print if it ended one of their processes."""
_ERROR = re.compile(r"\b(error|undefined reference|cannot find -l\S+|fatal)\b", re.IGNORECASE)


class BuildFailed(Exception):  # noqa: N818 - an outcome
    """The build failed; `reason` is the compiler's first error, with the user's file and line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Built:
    """An artefact on this host whose hash has been checked."""

    path: Path
    cached: bool
    messages: str = ""
    """The compiler's messages of the build; untrusted."""


@dataclass(frozen=True)
class BuildPaths:
    """Paths of a build's directories and files in its sandbox."""

    sources: str
    output: str
    request: str


@dataclass(frozen=True)
class Compilation:
    """Command that builds an artefact, and its limits."""

    command: Callable[[BuildPaths], list[str]]
    """Returns the command, which writes the files `makes` into the output directory."""
    limits: SandboxLimits
    within_s: float
    """Wall-clock seconds after which it is stopped."""
    shown: Sequence[Path] = ()
    """Paths that its sandbox shows in addition to the system and this Python installation."""
    makes: Sequence[str] = (ARTEFACT,)
    extras: Sequence[str] = ()
    """Files that it may write into the output directory as well."""
    log: str = ""
    """File in the output directory with its messages; "" if it prints them on stderr."""
    request: Callable[[BuildPaths], object] | None = None
    """Returns the content of the request file, which is written as JSON."""
    unusable_code: int | None = None
    """Exit code that means that the compiler cannot be used on this machine, whatever the sources are."""


@cache
def compiler() -> tuple[str, str]:
    """Return the path and the version line of the system's C++ compiler: $CXX, else c++, else g++.

    Raises:
        ConfigurationError: there is none.
    """
    program = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if program is None:
        raise ConfigurationError("no C++ compiler", remedy="apt-get install g++")
    output = subprocess.run([program, "--version"], capture_output=True, check=True, timeout=20).stdout
    return str(Path(program).resolve()), output.decode(errors="replace").splitlines()[0]


def build_cpp(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> Built:
    """Compile a `cpp` solution to a shared object, or take it from the cache.

    Args:
        problem: its constant axes become macros.
        solution: the solution.
        cache_dir: directory of the build cache.
        sandbox: kind of sandbox in which the compiler runs.

    Raises:
        BuildFailed: the compiler reported an error, took too long, or wrote too large an artefact.
        ConfigurationError: no compiler works on this machine.
        OSError: the host's disk is full.
    """
    arguments = ["-std=c++17", "-O3", "-march=native", "-Wall", "-fPIC", "-shared", *solution.spec.compile.flags]
    arguments += [*defines(problem, solution.spec.params), *QUIET]

    def command(paths: BuildPaths) -> list[str]:
        options = [*arguments, "-I", paths.sources, "-o", f"{paths.output}/{ARTEFACT}"]
        return [program, *options, f"{paths.sources}/{solution.spec.file}"]

    program, _ = compiler()
    key = content_key(solution, [compiler(), _machine(), solution.spec.file, arguments])
    limits = replace(build_limits(8 * GIB, processes=64), address_space_bytes=8 * GIB)
    compilation = Compilation(command, limits, BUILD_S)
    try:
        return cached_artefact(
            cache_dir, key, lambda scratch: compiled(files_of(solution), compilation, scratch, sandbox) / ARTEFACT
        )
    except BuildFailed:
        compile_one_function(program, sandbox)
        raise


def compile_one_function(program: str, sandbox: SandboxKind) -> None:
    """Compile one function in a sandbox like that of builds, to detect a failure that no source causes.

    Args:
        program: path of the compiler.
        sandbox: kind of sandbox.

    Raises:
        ConfigurationError: the compiler does not work on this machine; the message has its output.
        OSError: the host's disk is full.
    """

    def command(paths: BuildPaths) -> list[str]:
        return [program, "-shared", "-fPIC", f"{paths.sources}/trial.cpp", "-o", f"{paths.output}/{ARTEFACT}"]

    with tempfile.TemporaryDirectory(prefix="kernel-harness-") as scratch:
        source = Path(scratch) / "trial.cpp"
        source.write_text('extern "C" int trial() { return 0; }\n')
        try:
            compiled({source.name: source}, Compilation(command, SandboxLimits(), _TRIAL_S), source.parent, sandbox)
        except BuildFailed as failure:
            message = f"the C++ compiler {program} does not compile one function: {failure.reason}"
            raise ConfigurationError(message, remedy="apt-get install g++") from None


def build_limits(memory_bytes: int, processes: int) -> SandboxLimits:
    """Return the limits of a build's sandbox.

    Args:
        memory_bytes: memory of all processes together.
        processes: largest number of processes.
    """
    return SandboxLimits(memory_bytes=memory_bytes, file_bytes=LARGEST_ARTEFACT, processes=processes, cpu_s=BUILD_CPU_S)


def cached_artefact(cache_dir: Path, key: str, make: Callable[[Path], Path]) -> Built:
    """Return a shared object from the cache if its hash is that of its index, else build it and store it there.

    Args:
        cache_dir: directory of the build cache.
        key: name in the cache; see `content_key`.
        make: builds the shared object in a scratch directory, and returns its path.

    Raises:
        BuildFailed: from `make`; nothing is stored.
    """
    store = cache_dir / "artefacts"
    artefact, index = store / f"{key}.so", store / f"{key}.json"
    with suppress(OSError, FormatError, KeyError, TypeError):  # missing, or damaged by a loss of power
        facts = load_json_file(index)
        if facts["sha256"] == _digest(artefact):
            return Built(artefact, cached=True, messages=str(facts.get("messages", "")))
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store, prefix="build-") as scratch:
        output = make(Path(scratch))
        failpoint("judge.built")
        messages_file = output.with_name(MESSAGES)
        messages = messages_file.read_text(errors="replace")[:_KEPT_MESSAGES] if messages_file.is_file() else ""
        facts = {"format": _FORMAT, "sha256": _digest(output), "compiler": compiler()[1], "messages": messages}
        index_text = json.dumps(facts)
        output.chmod(0o444)
        output.replace(artefact)
        (Path(scratch) / "index").write_text(index_text)
        (Path(scratch) / "index").replace(index)
    failpoint("judge.artefact_kept")
    return Built(artefact, cached=False, messages=messages)


def defines(problem: Problem, params: Mapping[str, ParamValue]) -> list[str]:
    """Return compiler options that define the macros of a problem's constant axes and of the params.

    Args:
        problem: the problem.
        params: the solution's parameters by name.
    """
    axes = problem.definition.axes.items()
    return macros({name: axis.value for name, axis in axes if isinstance(axis, ConstAxis)}, params)


def content_key(solution: Solution, settings: Sequence[object]) -> str:
    """Return a hash of everything that an artefact depends on, as its name in the cache.

    Args:
        solution: its sources are hashed.
        settings: everything else that the artefact depends on, as JSON values.
    """
    digest = hashlib.sha256(json.dumps([_FORMAT, *settings]).encode())
    for name, file in files_of(solution).items():
        data = file.read_bytes()
        digest.update(f"\n{name}\n{len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()[:40]


@cache
def _machine() -> str:
    """Return a hash of the properties of this processor that -march=native depends on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    properties = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return hashlib.sha256("\n".join(sorted(properties)).encode()).hexdigest()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def files_of(solution: Solution) -> dict[str, Path]:
    """Return the paths of a solution's sources by name."""
    return {name: solution.directory / name for name in solution.sources}


def copy_files(files: Mapping[str, Path], directory: Path) -> None:
    """Copy files to a directory.

    Args:
        files: relative path in the directory -> the file.
        directory: directories below it are created.
    """
    for name, file in files.items():
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def compiled(files: Mapping[str, Path], compilation: Compilation, scratch: Path, sandbox: SandboxKind) -> Path:
    """Run a compilation in a new sandbox, and return its output directory, which is below `scratch`.

    Without a sandbox the compiler writes to that directory itself, without a limit on the size of all files together.

    Args:
        files: sources by name, which are shown to the compiler, read-only.
        compilation: the command and its limits.
        scratch: directory on the host, which the caller removes.
        sandbox: kind of sandbox.

    Raises:
        BuildFailed: the compiler reported an error, took too long, or wrote too large an artefact.
        ConfigurationError: the compiler cannot be used on this machine.
        OSError: the host's disk is full.
        MemoryError: this machine ran out of memory, and the build is not the cause.
    """
    sources, output, request = scratch / "sources", scratch / "output", scratch / "request.json"
    output.mkdir()
    sources.mkdir()
    copy_files(files, sources)
    confined = sandbox == "bubblewrap"
    on_host = BuildPaths(str(sources), str(output), str(request))
    paths = BuildPaths("/sources", "/output", "/request.json") if confined else on_host
    request.write_text(json.dumps(compilation.request(paths) if compilation.request else None))
    shown = {path: str(path) for path in compilation.shown if not shown_already(path)}
    names = [*compilation.makes, *compilation.extras, *filter(None, [compilation.log])]
    begin = time.monotonic()
    with ExitStack() as stack:
        messages = stack.enter_context(_memory_file("messages"))
        results = {name: stack.enter_context(_memory_file(name)) for name in names} if confined else {}
        process = launch(
            sandbox,
            _copying(compilation.command(paths), paths.output, results),
            binds=Binds(
                read_only={sources: paths.sources, request: paths.request, **shown}, tmpfs={paths.output: _OUTPUT_BYTES}
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
        messages_text = os.pread(messages.fileno(), _MESSAGE_BYTES, 0).decode(errors="replace")
        _keep(results, output)
    log = output / compilation.log
    if compilation.log and log.is_file() and not log.is_symlink():
        messages_text = log.read_text(errors="replace")[:_MESSAGE_BYTES] or messages_text
    if code is None:
        raise BuildFailed(f"the compiler was stopped after {time.monotonic() - begin:.0f} s")
    if code == -signal.SIGXCPU or (code != 0 and _OUT_OF_TIME in messages_text):
        raise BuildFailed(f"the compiler was stopped after {compilation.limits.cpu_s} s of processor time")
    if starved and code != 0 and (code == -signal.SIGKILL or _KILLED in messages_text):
        raise MemoryError("the kernel killed a compiler, which was within its memory limit")
    reason = reason_of(messages_text, paths.sources)
    if code == compilation.unusable_code:
        raise ConfigurationError(f"the compiler cannot be used here: {reason}")
    outputs = [output / name for name in compilation.makes]
    if code != 0 or any(path.is_symlink() or not path.is_file() for path in outputs):
        raise BuildFailed(reason or f"the compiler exited with code {code} and printed nothing")
    if sum(path.stat().st_size for path in outputs) > LARGEST_ARTEFACT:
        raise BuildFailed(f"the artefact is larger than {LARGEST_ARTEFACT >> 20} MiB")
    (output / MESSAGES).write_text(messages_text)
    return output


def _memory_file(name: str) -> IO[bytes]:
    """Return an anonymous file in memory."""
    return os.fdopen(os.memfd_create(name, os.MFD_CLOEXEC), "w+b")


def _keep(results: Mapping[str, IO[bytes]], output: Path) -> None:
    """Write the content of memory files to a directory on the host; empty ones are omitted."""
    for name, file in results.items():
        if size := os.fstat(file.fileno()).st_size:
            (output / name).write_bytes(os.pread(file.fileno(), size, 0))


def _copying(command: Sequence[str], directory: str, files: Mapping[str, IO[bytes]]) -> list[str]:
    """Return a command that runs a build, copies its results, and exits with the build's exit code.

    Args:
        command: the build.
        directory: the build's output directory in the sandbox.
        files: name in that directory -> the open file that receives the content, which the sandbox inherits. It stays
            empty if the build did not write the file.
    """
    copies = [
        f'test -f "{directory}/{name}" && cat "{directory}/{name}" > /proc/self/fd/{file.fileno()}'
        for name, file in files.items()
    ]
    return ["/bin/sh", "-c", "; ".join(['"$@"', "code=$?", *copies, "exit $code"]), "sh", *command]


def runs(module: ModuleType, sandbox: SandboxKind) -> list[str]:
    """Return the beginning of a command that runs a module of the runner.

    Args:
        module: a module of `harness.runner`.
        sandbox: kind of sandbox; in bubblewrap the module has another path.
    """
    file = Path(str(module.__file__))
    return [sys.executable, "-I", "-B", f"{RUNNER_HOME}/runner/{file.name}" if sandbox == "bubblewrap" else str(file)]


def reason_of(messages: str, sources: str) -> str:
    """Return the compiler's first error lines with the user's own file names, without warnings and notes.

    Args:
        messages: of the compiler.
        sources: directory of the sources in the sandbox, which is removed from file names.
    """
    lines = [line.replace(f"{sources}/", "") for line in messages.splitlines()]
    errors = [line for line in lines if _ERROR.search(line)]
    chosen = (errors or [line for line in lines if line.strip()])[:_REASON_LINES]
    return " | ".join("".join(letter for letter in line if letter.isprintable())[:200] for line in chosen)
