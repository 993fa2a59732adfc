"""Sides of a race: a candidate or a baseline of the problem, each built, staged and loaded into a runner of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.judge.build.builder import Built, build_cpp, copy_files, files_of
from harness.judge.build.cuda_builder import architecture, build_cuda
from harness.judge.build.extension_builder import build_extension
from harness.judge.build.report import build_warnings
from harness.judge.deadline import Deadline
from harness.judge.devices.interface import Batch, Clock, Connection, Memory, RunnerTrust
from harness.judge.input_data.layout import Layout
from harness.judge.memory_plan import MemoryPlan
from harness.judge.runners import BaselineFailed, Runner, RunnerFailed, RunnerOutOfMemory
from harness.judge.stages import timed_as
from harness.model.config import SandboxKind
from harness.model.judging import BuildReport, JudgeStage, Variant
from harness.model.problem import Problem, Workload
from harness.model.solution import Solution
from harness.runner.messages import Program

COMPILED: tuple[Variant, ...] = ("compile", "compile_graph", "max_autotune")
"""Variants whose first call takes long."""
_COMPILED_S, _COMPILING_S, _REFERENCE_S = 10.0, 90.0, 240.0
"""Seconds that a first call may take: Python may compile then, compiled code may not."""


@dataclass
class Side:
    """One side of a race, loaded into its runner: `prepare` sets it up for a workload, `batch` makes calls."""

    clock: Clock
    connection: Connection
    first_call_s: float
    """Seconds that the first batch of a workload may take, which may include compilation."""
    launches: Mapping[str, Mapping[str, Any]]
    """Launch plans of a sealed solution by workload."""
    is_baseline: bool = False
    """A failure of this side is one of the problem, and not of a candidate."""
    _stage: JudgeStage = JudgeStage.CANDIDATE
    """Stage of the next batch."""
    _gives_memory_back: bool = False
    """True if device memory is so short that no process may keep it while another one works."""

    @property
    def runner(self) -> Runner:
        """The runner's process."""
        return self.connection.runner

    @property
    def is_trusted(self) -> bool:
        """True for the reference and for library baselines."""
        return self.connection.trust is RunnerTrust.REFERENCE

    def prepare(
        self, workload: Workload, layout: Layout, slots: int, variant: str = "", plan: MemoryPlan | None = None
    ) -> None:
        """Prepare the runner for a workload.

        Args:
            workload: the workload.
            layout: of its inputs and outputs in memory.
            slots: number of slots.
            variant: variant of the reference to run, as "compile"; "" for a solution.
            plan: the workload's use of memory; None: as much as usual.

        Raises:
            RunnerFailed: the runner crashed or did not answer.
            RunnerOutOfMemory, NoDeviceMemory: the device's memory does not suffice.
            BaselineFailed: the same as RunnerFailed, of a baseline.
        """
        launches = self.launches.get(workload.uuid)
        compiles = variant in COMPILED  # the runner imports the compiler now, and compiles in its first call
        with self._as_baseline(variant), timed_as(JudgeStage.COMPILE if compiles else JudgeStage.MEMORY):
            self.clock.prepare(self.connection, layout, slots, variant=variant, launches=launches, plan=plan)
        self._gives_memory_back = plan is not None and plan.sparing
        if self.is_baseline:
            self._stage = JudgeStage.COMPILE if compiles else JudgeStage.OPPONENT

    def batch(self, memory: Memory, slots: range | list[int], within_s: float) -> Batch:
        """Run one timed batch; see `Clock.time_calls`.

        Args:
            memory: of the workload.
            slots: slots whose calls are made, in order.
            within_s: seconds that the batch may take.

        Raises:
            RunnerFailed: the runner crashed, raised, or did not answer in time.
            RunnerOutOfMemory: it did not get device memory.
            BaselineFailed: the same as RunnerFailed, of a baseline.
        """
        if self._gives_memory_back:
            self.clock.hardware.release_caches(keep_reserve=False)
        with self._as_baseline(), timed_as(self._stage):
            batch = self.clock.time_calls(self.connection, memory, slots, within_s)
            if self._gives_memory_back:
                self.clock.release_memory(self.connection)
        if self.is_baseline:
            self._stage = JudgeStage.OPPONENT
        return batch

    @contextlib.contextmanager
    def _as_baseline(self, variant: str = "") -> Iterator[None]:
        """Raise `BaselineFailed` for a failure of a baseline's runner. A lack of memory remains what it is."""
        try:
            yield
        except RunnerOutOfMemory as lack:
            lack.of_baseline = self.is_baseline
            raise
        except RunnerFailed as failure:
            if not self.is_baseline:
                raise
            name = f" ({variant})" if variant else ""
            raise BaselineFailed(f"the baseline{name} failed: {failure.reason}", broken=failure) from failure

    @timed_as(JudgeStage.WAIT)
    def close(self) -> None:
        """End the runner."""
        self.clock.close(self.connection)


@dataclass(frozen=True)
class Stage:
    """A directory from which a runner loads its solution."""

    directory: Path
    inside: Callable[[Path], str]
    """Returns the path of a file in the directory, as the process in the sandbox sees it."""


@dataclass(frozen=True)
class Staged:
    """A solution or reference that a runner will load."""

    put: Callable[[Stage], Program]
    """Copies the files into a runner's stage, and returns what the runner loads."""
    first_call_s: float
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Launch plans of a sealed or recorded solution: workload uuid -> `ResolvedPlan` as plain data."""
    report: BuildReport = field(default_factory=BuildReport)
    """Warnings of the build, and resources of a sealed or recorded solution's kernels."""
    artefact: Path | None = None
    """Shared object of a compiled solution."""
    cubin: Path | None = None
    """Cubin of a sealed solution."""
    binary: str | None = None
    """`sha256:...` of the compiled code; of a sealed or recorded solution, of its code and launches."""
    needs_torch: bool = True
    """False for C functions, which are called with pointers."""

    @property
    def sealed(self) -> bool:
        """True for device code only: a trusted launcher makes its calls."""
        return bool(self.plans)


@timed_as(JudgeStage.BUILD)
def stage_solution(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> Staged:
    """Build a solution whose language needs it, and return it ready to be loaded.

    Args:
        problem: the problem that it solves.
        solution: the solution.
        cache_dir: directory of the build cache.
        sandbox: kind of sandbox in which compilers run.

    Raises:
        BuildFailed: it does not compile.
        FormatError: a sealed solution's launch plan is malformed.
    """
    spec = solution.spec
    program = Program(spec.language, spec.function)
    if spec.language == "cuda":
        cuda_build = build_cuda(problem, solution, cache_dir=cache_dir, sandbox=sandbox)

        def stage_cubin(stage: Stage) -> Program:
            for name in ("kernel.cubin", "names.json"):
                shutil.copyfile(cuda_build.directory / name, stage.directory / name)
            return replace(program, artefacts=(stage.inside(stage.directory),))

        cubin = cuda_build.directory / "kernel.cubin"
        plans = {uuid: plan.as_json() for uuid, plan in cuda_build.plans.items()}
        symbols = (cuda_build.directory / "names.json").read_bytes()
        binary = binary_hash([cubin.read_bytes(), symbols], plans)
        return Staged(stage_cubin, _COMPILED_S, plans, cuda_build.report, cubin=cubin, binary=binary)
    if spec.language == "cpp":
        built = build_cpp(problem, solution, cache_dir=cache_dir, sandbox=sandbox)
        return _stage_built(built, program, needs_torch=False)
    if spec.language == "cuda_cpp":
        built = build_extension(problem, solution, architecture=architecture, cache_dir=cache_dir, sandbox=sandbox)
        binding = spec.binding or "tvm_ffi"
        return _stage_built(built, replace(program, binding=binding, destination_passing=spec.destination_passing))

    def stage_sources(stage: Stage) -> Program:
        root = stage.directory / "solution"
        copy_files(files_of(solution), root)
        source, passing = stage.inside(root / spec.file), spec.destination_passing
        return replace(program, source=source, params=dict(spec.params), destination_passing=passing)

    return Staged(stage_sources, _COMPILING_S)


def _stage_built(built: Built, program: Program, *, needs_torch: bool = True) -> Staged:
    """Return a shared object, ready to be loaded."""

    def put(stage: Stage) -> Program:
        target = stage.directory / "artefact.so"
        shutil.copyfile(built.path, target)
        return replace(program, artefact=stage.inside(target))

    report = BuildReport(warnings=build_warnings(built.messages))
    binary = binary_hash([built.path.read_bytes()])
    return Staged(put, _COMPILED_S, report=report, artefact=built.path, binary=binary, needs_torch=needs_torch)


def binary_hash(files: Sequence[bytes], plans: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """Return the hash `sha256:...` of compiled code.

    Args:
        files: contents of the compiled files.
        plans: launch plans by workload uuid, of a solution that the harness launches.
    """
    digest = hashlib.sha256(json.dumps(plans or {}, sort_keys=True).encode())
    for content in files:
        digest.update(len(content).to_bytes(8, "little") + content)
    return f"sha256:{digest.hexdigest()}"


def stage_reference(source: str) -> Staged:
    """Return a reference or a library baseline, ready to be loaded."""

    def put(stage: Stage) -> Program:
        target = stage.directory / "reference.py"
        target.write_text(source)
        return Program("reference", "run", source=stage.inside(target))

    return Staged(put, _REFERENCE_S)


@timed_as(JudgeStage.WAIT)
def load(clock: Clock, runner: Runner, staged: Staged, trust: RunnerTrust, *, is_baseline: bool = False) -> Side:
    """Load a solution into a fresh runner, and end the runner if that fails.

    Args:
        clock: times the side's calls.
        runner: a runner without a solution.
        staged: the solution or reference.
        trust: whose code the runner executes.
        is_baseline: the side is a baseline.

    Raises:
        RunnerFailed: loading crashed, raised or took too long.
        RunnerOutOfMemory: the runner did not get device memory.
    """
    try:
        program = staged.put(Stage(runner.stage, runner.inside))
    except BaseException:
        clock.runners.end(runner)
        raise
    try:
        connection = clock.open(runner, program, trust)
    except RunnerOutOfMemory as lack:
        lack.of_baseline = is_baseline
        raise
    return Side(clock, connection, staged.first_call_s, staged.plans, is_baseline)


def load_solution_side(clock: Clock, staged: Staged, *, is_baseline: bool = False) -> Side:
    """Start a runner, and load a solution into it; see `load`."""
    trust = RunnerTrust.LAUNCHER if staged.sealed else RunnerTrust.CANDIDATE
    runner = clock.runners.take(trust, needs_torch=staged.needs_torch)
    return load(clock, runner, staged, trust, is_baseline=is_baseline)


class CandidateRunner:
    """The candidate's process. A new one replaces it after it broke.

    Args:
        clock: times its calls.
        staged: what it loads.
    """

    def __init__(self, clock: Clock, staged: Staged) -> None:
        self._clock, self._staged = clock, staged
        self._side: Side | None = None

    def side(self, deadline: Deadline) -> Side:
        """Return the running process, or start one.

        Args:
            deadline: extended by the start of a process, which does not count as judging time.

        Raises:
            RunnerFailed: loading the candidate fails.
        """
        if self._side is None:
            trust = RunnerTrust.LAUNCHER if self._staged.sealed else RunnerTrust.CANDIDATE
            with deadline.extended():
                runner = self._clock.runners.take(trust, needs_torch=self._staged.needs_torch)
            self._side = load(self._clock, runner, self._staged, trust)
        return self._side

    @property
    def first_process(self) -> int | None:
        """Id of the first process of its sandbox; None if it does not exist."""
        return self._side.runner.first_process if self._side is not None else None

    def end(self) -> None:
        """End the process."""
        if self._side is not None:
            self._side.close()
            self._side = None
