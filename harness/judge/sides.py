"""Who is timed: a candidate, or one of a problem's baselines, each loaded into a runner of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.judge.builder import build_cpp
from harness.judge.devices import Batch, Device, Memory
from harness.judge.layout import Layout
from harness.judge.runners import Runner
from harness.model.config import SandboxKind
from harness.model.problem import Problem
from harness.model.solution import Solution
from harness.runner import wire

_LOAD_S = 60.0
LANGUAGES = ("cpp", "pytorch")
"""What the CPU judge runs."""


@dataclass
class Side:
    """One runner as the rounds use it: prepared for a workload, then asked for batches."""

    device: Device
    runner: Runner
    trusted: bool
    first_call_s: float
    """How long the first batch of a workload may take: compilers start then."""

    def prepare(self, layout: Layout, slots: int, variant: str, within_s: float = _LOAD_S) -> None:
        """Tell the runner a workload's slots.

        Raises:
            RunnerFailed: it crashed or did not answer.
        """
        self.runner.ask(layout.message(slots, variant), wire.Code.READY, within_s)

    def batch(self, memory: Memory, slots: range | list[int], within_s: float) -> Batch:
        """One timed batch; see `Device.batch`."""
        return self.device.batch(self.runner, memory, slots, within_s)

    def close(self) -> None:
        """End the runner."""
        self.device.forget(self.runner)


Stage = Callable[[Runner], dict[str, object]]
"""Puts what a runner loads into its stage, and says so in words for its load message."""


def stage_solution(problem: Problem, solution: Solution, *, cache_dir: Path, sandbox: SandboxKind) -> Stage:
    """Build a solution where it must be built; the answer puts it before a runner.

    Raises:
        BuildFailed: it does not compile.
    """
    spec = solution.spec
    words: dict[str, object] = {"op": "load", "language": spec.language, "entry": spec.function}
    if spec.language == "cpp":
        built = build_cpp(problem, solution, cache_dir=cache_dir, sandbox=sandbox)

        def stage_artefact(runner: Runner) -> dict[str, object]:
            target = runner.stage / "artefact.so"
            shutil.copyfile(built.path, target)
            return {**words, "artefact": runner.inside(target)}

        return stage_artefact

    def stage_sources(runner: Runner) -> dict[str, object]:
        root = runner.stage / "solution"
        for name in solution.sources:
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(solution.directory / name, target)
        return {
            **words,
            "source": runner.inside(root / spec.file),
            "params": dict(spec.params),
            "destination_passing": spec.destination_passing,
        }

    return stage_sources


def stage_reference(problem: Problem) -> Stage:
    """The problem's reference, run as it is."""

    def stage(runner: Runner) -> dict[str, object]:
        target = runner.stage / "reference.py"
        target.write_text(problem.definition.reference)
        return {"op": "load", "language": "reference", "entry": "run", "source": runner.inside(target)}

    return stage


def load(device: Device, runner: Runner, stage: Stage, *, trusted: bool, first_call_s: float) -> Side:
    """Give a fresh runner its solution.

    Raises:
        RunnerFailed: loading it crashed, raised or took too long.
    """
    words, descriptors = device.grant(runner)
    runner.ask({**stage(runner), **words}, wire.Code.LOADED, _LOAD_S, descriptors)
    return Side(device, runner, trusted, first_call_s)


def first_call_s(language: str) -> float:
    """Python may compile at its first call; C++ may not."""
    return 10.0 if language == "cpp" else 90.0
