"""Runners of a problem's baselines: forms of the reference, library baselines, and the problem's `baseline/`.

The reference and the files of `baselines/` are trusted code. Their runners may outlive an evaluation, so that compiled
code is used again, and they write a compiler cache that no other process can write. A `baseline/` is written by agents
and gets a fresh runner for every evaluation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from harness.errors import FormatError
from harness.formats.solutions import load_solution
from harness.judge.build.builder import BuildFailed
from harness.judge.devices.interface import Clock, RunnerTrust
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_plan import ONE_SET
from harness.judge.reference import load_reference
from harness.judge.requested_baselines import find_library_baseline, is_library
from harness.judge.runners import BaselineFailed, RunnerFailed, RunnerOutOfMemory
from harness.judge.sides import Side, load, load_solution_side, stage_reference, stage_solution
from harness.model.config import SandboxKind
from harness.model.judging import Variant
from harness.model.problem import Problem, Workload
from harness.runner.reference import UNCAPTURED

_KEPT = 3
_COMPILE_S = 240.0
BASELINE_DIRECTORY = "baseline"


def has_own_baseline(problem: Problem) -> bool:
    """Return true if the problem has a `baseline/`."""
    return (problem.directory / BASELINE_DIRECTORY / "solution.yaml").is_file()


def _runner_of(variant: Variant) -> Variant:
    """The variant by whose name a runner is kept: all forms of a reference share one."""
    return variant if is_library(variant) else "eager"


class Opponents:
    """Baseline runners by problem; the trusted code of the last `_KEPT` problems stays loaded."""

    def __init__(self, clock: Clock, cache_dir: Path, sandbox: SandboxKind) -> None:
        self._clock = clock
        self._cache_dir = cache_dir
        self._sandbox = sandbox
        self._trusted: OrderedDict[tuple[str, Variant], Side] = OrderedDict()
        """By digest of the problem and `_runner_of` a variant."""
        self._compiled: set[tuple[str, str, str]] = set()
        """Digest of the problem, workload, and name of the compiled form in a runner."""

    def trusted(self, problem: Problem, variant: Variant) -> Side:
        """Return the runner of a library baseline, or of the reference, which has one runner for all its forms.

        Args:
            problem: the problem.
            variant: the baseline.

        Raises:
            BaselineFailed: the code does not load, or its library is not installed.
            RunnerOutOfMemory: its runner does not get device memory.
        """
        key = _runner_of(variant)
        side = self._trusted.pop((problem.digest, key), None)
        if side is None:
            library = find_library_baseline(problem, variant) if is_library(variant) else None
            staged = stage_reference(library.source if library else problem.definition.reference)
            while len(self._trusted) >= _KEPT:
                self._drop(*next(iter(self._trusted)))
            try:
                runner = self._clock.runners.take(RunnerTrust.REFERENCE)
                side = load(self._clock, runner, staged, RunnerTrust.REFERENCE, is_baseline=True)
            except RunnerOutOfMemory:
                raise
            except RunnerFailed as failure:
                title = f"baselines/{library.file.name}" if library else "the reference"
                raise BaselineFailed(f"{title} does not load: {failure.reason}") from None
        self._trusted[problem.digest, key] = side
        return side

    def own(self, problem: Problem) -> Side:
        """Return a fresh runner with the problem's `baseline/`. The caller closes it.

        Raises:
            BaselineFailed: `baseline/` does not build or load.
            RunnerOutOfMemory: its runner does not get device memory.
        """
        try:
            solution = load_solution(problem.directory / BASELINE_DIRECTORY)
            language, hardware = solution.spec.language, self._clock.hardware
            if language not in hardware.languages:
                raise BaselineFailed(f"baseline/ is in {language}, which does not run on the device {hardware.target}")
            staged = stage_solution(problem, solution, cache_dir=self._cache_dir, sandbox=self._sandbox)
            return load_solution_side(self._clock, staged, is_baseline=True)
        except FormatError as error:  # also of a launch plan
            raise BaselineFailed(f"baseline/ is malformed: {error}") from None
        except BuildFailed as failure:
            raise BaselineFailed(f"baseline/ does not build: {failure.reason}") from None
        except RunnerOutOfMemory:
            raise
        except RunnerFailed as failure:
            raise BaselineFailed(f"baseline/ does not load: {failure.reason}") from None

    def compile_ahead(
        self, problem: Problem, workloads: list[Workload], progress: Callable[[int], None], variant: Variant = "compile"
    ) -> None:
        """Compile the reference for these workloads, before the deadline of a candidate starts.

        Args:
            problem: the problem.
            workloads: its workloads to compile for.
            progress: receives the number of finished workloads.
            variant: a compiled variant of the reference.

        Raises:
            BaselineFailed: the reference cannot be compiled.
        """
        form = UNCAPTURED.get(variant, variant)  # a capture comes later, in each `Side.prepare`
        missing = [
            (done, workload)
            for done, workload in enumerate(workloads)
            if (problem.digest, workload.uuid, form) not in self._compiled
        ]
        if not missing:
            return
        side = self.trusted(problem, variant)
        source = InputSource(problem, reference=load_reference(problem), device=self._clock.hardware.memory_on)
        for done, workload in missing:
            progress(done)
            layout = layout_of(problem, workload)
            memory = self._clock.memory(layout, 1, ONE_SET)
            try:
                side.prepare(workload, layout, 1, form, ONE_SET)
                source.refill(workload, memory.views(0))
                side.batch(memory, range(1), _COMPILE_S)
            except BaselineFailed as failure:
                self.drop(problem)
                method = "torch.compile" if variant == "compile" else variant
                reason = failure.broken.reason if failure.broken is not None else str(failure)
                raise BaselineFailed(f"{method} of the reference: {reason}", broken=failure.broken) from None
            self._compiled.add((problem.digest, workload.uuid, form))

    def _drop(self, digest: str, key: Variant) -> None:
        side = self._trusted.pop((digest, key), None)
        if side is not None:
            side.close()
        if not is_library(key):
            self._compiled = {compiled for compiled in self._compiled if compiled[0] != digest}

    def drop(self, problem: Problem, variant: Variant = "eager") -> None:
        """End the runner of a problem's variant, because it broke.

        Args:
            problem: the problem.
            variant: a variant of the runner.
        """
        self._drop(problem.digest, _runner_of(variant))

    def close(self, keep: Problem | None = None) -> None:
        """End every runner.

        Args:
            keep: a problem whose runners remain.
        """
        for digest, key in list(self._trusted):
            if keep is None or digest != keep.digest:
                self._drop(digest, key)
