"""Sides of a race: a candidate or a baseline of the problem, each built, staged and loaded into a runner of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.judge.build.builder import Built, build_cpp, copy_files, files_of
from harness.judge.build.cuda_builder import architecture, build_cuda
from harness.judge.build.extension_builder import build_extension
from harness.judge.build.report import build_warnings
from harness.judge.devices.interface import Batch, Device, Memory
from harness.judge.input_data.layout import Layout
from harness.judge.runners import Runner
from harness.judge.stages import timed_as
from harness.model.config import SandboxKind
from harness.model.judging import BuildReport, JudgeStage, Variant
from harness.model.problem import Problem, Workload
from harness.model.solution import Solution
from harness.runner import wire

COMPILED: tuple[Variant, ...] = ("compile", "max_autotune")
"""Variants whose first call takes long."""
_LOAD_S = 60.0
_COMPILED_S, _COMPILING_S, _REFERENCE_S = 10.0, 90.0, 240.0
"""Seconds that a first call may take: Python may compile then, compiled code may not."""


@dataclass
class Side:
    """One loaded runner: `prepare` sets it up for a workload, `batch` makes calls.

    `trusted` is true for the reference, `plans` are the launch plans of a sealed solution by workload.
    """

    device: Device
    runner: Runner
    trusted: bool
    first_call_s: float
    """Seconds that the first batch of a workload may take, which may include compilation."""

    plans: Mapping[str, Mapping[str, Any]]
    _stage: JudgeStage = JudgeStage.CANDIDATE
    """Stage of the next batch."""

    @timed_as(JudgeStage.MEMORY)
    def prepare(self, workload: Workload, layout: Layout, slots: int, variant: str = "") -> None:
        """Send a workload's slots to the runner.

        Args:
            workload: the workload.
            layout: of its inputs and outputs in memory.
            slots: number of slots.
            variant: variant of the reference to run, as "compile"; "" for a solution.

        Raises:
            RunnerFailed: the runner crashed or did not answer, or the device's memory does not suffice.
        """
        placed, descriptors = self.device.place(self.runner, layout, slots)
        message = {**layout.message(slots, variant), **placed}
        if workload.uuid in self.plans:
            message["plan"] = self.plans[workload.uuid]
        compiles = variant in COMPILED  # the runner imports the compiler now, and compiles in its first call
        try:
            with timed_as(JudgeStage.COMPILE if compiles else JudgeStage.MEMORY):
                self.runner.ask(message, wire.Code.READY, _LOAD_S, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if variant:
            self._stage = JudgeStage.COMPILE if compiles else JudgeStage.OPPONENT

    def batch(self, memory: Memory, slots: range | list[int], within_s: float) -> Batch:
        """Run one timed batch; see `Device.batch`.

        Args:
            memory: of the workload.
            slots: slots whose calls are made, in order.
            within_s: seconds that the batch may take.

        Raises:
            RunnerFailed: the runner crashed, raised, or did not answer in time.
        """
        with timed_as(self._stage):
            batch = self.device.batch(self.runner, memory, slots, within_s)
        if self._stage is JudgeStage.COMPILE:
            self._stage = JudgeStage.OPPONENT
        return batch

    @timed_as(JudgeStage.WAIT)
    def close(self) -> None:
        """End the runner."""
        self.device.forget(self.runner)


@dataclass(frozen=True)
class Stage:
    """A directory from which a runner loads its solution."""

    directory: Path
    inside: Callable[[Path], str]
    """Returns the path of a file in the directory, as the process in the sandbox sees it."""


@dataclass(frozen=True)
class Staged:
    """A solution or reference that a runner will load."""

    put: Callable[[Stage], dict[str, object]]
    """Copies the files into a runner's stage, and returns the fields of the load message."""
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
    message: dict[str, object] = {"op": "load", "language": spec.language, "entry": spec.function}
    if spec.language == "cuda":
        cuda_build = build_cuda(problem, solution, cache_dir=cache_dir, sandbox=sandbox)

        def stage_cubin(stage: Stage) -> dict[str, object]:
            for name in ("kernel.cubin", "names.json"):
                shutil.copyfile(cuda_build.directory / name, stage.directory / name)
            return {**message, "artefacts": [stage.inside(stage.directory)]}

        cubin = cuda_build.directory / "kernel.cubin"
        plans = {uuid: plan.as_json() for uuid, plan in cuda_build.plans.items()}
        symbols = (cuda_build.directory / "names.json").read_bytes()
        binary = binary_hash([cubin.read_bytes(), symbols], plans)
        return Staged(stage_cubin, _COMPILED_S, plans, cuda_build.report, cubin=cubin, binary=binary)
    if spec.language == "cpp":
        built = build_cpp(problem, solution, cache_dir=cache_dir, sandbox=sandbox)
        return _stage_built(built, message, needs_torch=False)
    if spec.language == "cuda_cpp":
        built = build_extension(problem, solution, architecture=architecture, cache_dir=cache_dir, sandbox=sandbox)
        message |= {"binding": spec.binding or "tvm_ffi", "params": {}, "destination_passing": spec.destination_passing}
        return _stage_built(built, message)

    def stage_sources(stage: Stage) -> dict[str, object]:
        root = stage.directory / "solution"
        copy_files(files_of(solution), root)
        return {**message, "source": stage.inside(root / spec.file)}

    message |= {"params": dict(spec.params), "destination_passing": spec.destination_passing}
    return Staged(stage_sources, _COMPILING_S)


def _stage_built(built: Built, message: dict[str, object], *, needs_torch: bool = True) -> Staged:
    """Return a shared object, ready to be loaded."""

    def put(stage: Stage) -> dict[str, object]:
        target = stage.directory / "artefact.so"
        shutil.copyfile(built.path, target)
        return {**message, "artefact": stage.inside(target)}

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

    def put(stage: Stage) -> dict[str, object]:
        target = stage.directory / "reference.py"
        target.write_text(source)
        return {"op": "load", "language": "reference", "entry": "run", "source": stage.inside(target)}

    return Staged(put, _REFERENCE_S)


@timed_as(JudgeStage.WAIT)
def load(device: Device, runner: Runner, staged: Staged, *, trusted: bool) -> Side:
    """Load a solution into a fresh runner, and end the runner if that fails.

    Args:
        device: the device that the runner belongs to.
        runner: a runner without a solution.
        staged: the solution or reference.
        trusted: true for the reference.

    Raises:
        RunnerFailed: loading crashed, raised or took too long.
    """
    try:
        grant, descriptors = device.grant(runner, sealed=staged.sealed)
        message = {**staged.put(Stage(runner.stage, runner.inside)), **grant}
        record = runner.ask(message, wire.Code.LOADED, _LOAD_S, descriptors)
        device.loaded(runner, record.claimed_ns)
    except BaseException:
        device.forget(runner)
        raise
    return Side(device, runner, trusted, staged.first_call_s, staged.plans)
