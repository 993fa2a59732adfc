"""Checks: a solution is built and its outputs are compared with the reference, without timing.

A check runs when the judge is idle, or between two batches of an evaluation. Its runner ends before the next batch, so
it affects no measured time. Workloads are checked from small to large within a time limit: two calls with equal
ordinary inputs, then every stress case.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from harness.errors import ConfigurationError, FormatError, HarnessError
from harness.formats.problems import load_problem
from harness.formats.solutions import UnusableSolutionError, usable_solution
from harness.judge.build import code_excerpt
from harness.judge.build.builder import BuildFailed
from harness.judge.build.cuda_builder import PTX_NAME
from harness.judge.checked_calls import LEAST_BATCH_S
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.correctness import Comparison
from harness.judge.devices.interface import Clock, Device, Memory
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import Layout, layout_of
from harness.judge.reference import InvalidReferenceError, Reference, load_reference
from harness.judge.runners import NoDeviceMemory, RunnerFailed
from harness.judge.sides import Side, Staged, load_solution_side, stage_solution
from harness.judge.verdict import one_line
from harness.model.config import SandboxKind
from harness.model.judging import BuildReport, CheckAnswer, CheckedWorkload, CheckRequest
from harness.model.problem import Problem, Workload
from harness.model.solution import Solution
from harness.model.verdict import Verdict

WORKLOADS_S, LONGEST_S = 0.6, 10.0
"""Seconds of the judge's processor time, and of wall time, after which no further workload is checked, because an
evaluation may be waiting."""
REST = 2.0
"""During an evaluation, the pause before the next check is the last check's duration times this factor."""
_MOST_SETS = 8
"""Largest batch with stress inputs."""
_EQUAL_SETS = 2
"""Number of ordinary sets of a workload; all have equal inputs."""

logger = logging.getLogger(__name__)


@dataclass
class WaitingChecks:
    """Serves checks between the batches of an evaluation.

    Args:
        serve: runs a check and sends its answer.
        next_check: returns the next request without waiting; None if there is none.
    """

    serve: Callable[[CheckRequest], None]
    next_check: Callable[[], CheckRequest | None]
    _not_before: float = 0.0

    def serve_next(self) -> float:
        """Serve the next check if it is due. Return the seconds that it took."""
        begin = time.monotonic()
        if begin < self._not_before:
            return 0.0
        request = self.next_check()
        if request is None:
            return 0.0
        self.serve(request)
        took_s = time.monotonic() - begin
        self._not_before = time.monotonic() + REST * took_s
        return took_s


def check_solution(request: CheckRequest, device: Device, *, cache_dir: Path, sandbox: SandboxKind) -> CheckAnswer:
    """Run a check, and return its answer. A failure of this machine is an answer without a verdict; nothing is raised.

    Args:
        request: names the problem and the solution.
        device: opened by this judge; no batch is timed on it during the check.
        cache_dir: directory of the build cache, the same as for evaluations.
        sandbox: kind of sandbox for builder and runner.
    """
    begin = time.monotonic()
    build_s = 0.0
    build = BuildReport()

    def answer(
        verdict: Verdict | None, reason: str | None, checked: Sequence[CheckedWorkload] = (), unchecked: int = 0
    ) -> CheckAnswer:
        return CheckAnswer(
            id=request.id,
            verdict=verdict,
            reason=reason,
            workloads=tuple(checked),
            unchecked=unchecked,
            build=build,
            build_s=round(build_s, 3),
            check_s=round(time.monotonic() - begin - build_s, 3),
        )

    try:
        data_root = Path(request.data_root) if request.data_root else None
        problem = load_problem(Path(request.problem_dir), key=request.problem, data_root=data_root)
        reference = load_reference(problem)
        definition = problem.definition
        hardware = device.hardware
        runs = f"the device {hardware.target} runs"
        solution = usable_solution(Path(request.solution_dir), definition, hardware.languages, runs)
        staged = stage_solution(problem, solution, cache_dir=cache_dir, sandbox=sandbox)
        build_s = time.monotonic() - begin
        build = staged.report.model_copy(update={"code": _code(request, solution, staged, sandbox)})
        checked = _Checking(problem, reference, device.clock_for(sealed=staged.sealed), staged).run()
        unchecked = len(problem.workloads) - len(checked)
        failure = next((workload for workload in checked if workload.verdict is not Verdict.PASSED), None)
        verdict, reason = (failure.verdict, failure.reason) if failure is not None else (Verdict.PASSED, None)
        return answer(verdict, reason, checked, unchecked)
    except (UnusableSolutionError, BuildFailed) as error:
        return answer(Verdict.COMPILE_ERROR, error.reason)
    except InvalidReferenceError as error:
        return answer(Verdict.INVALID_REFERENCE, one_line(error))
    except FormatError as error:
        return answer(Verdict.COMPILE_ERROR, one_line(error))
    except (ConfigurationError, HarnessError, OSError, MemoryError) as error:
        return answer(None, one_line(error) or type(error).__name__)
    except Exception as error:  # a failed check must not end the evaluation that is in progress
        logger.exception("a check failed")
        return answer(None, f"the judge failed on this check ({type(error).__name__})")


def _code(request: CheckRequest, solution: Solution, staged: Staged, sandbox: SandboxKind) -> str:
    function = request.function or (solution.spec.function if request.show == "assembly" else "")
    if not request.show:
        return ""
    if request.show == "assembly":
        if staged.artefact is None:
            return f"a solution in {solution.spec.language} has no assembly: it is not compiled before it runs"
        return code_excerpt.assembly(staged.artefact, function, sandbox)
    if staged.cubin is None:
        return f"only solutions in language cuda have {request.show.upper()} before they run"
    if request.show == "sass":
        return code_excerpt.sass(staged.cubin, function, sandbox)
    text = staged.cubin.with_name(PTX_NAME)
    return code_excerpt.ptx(text.read_text(errors="replace"), function) if text.is_file() else "there is no PTX"


class _Checking:
    """One check: its runner, its inputs and its workloads."""

    def __init__(self, problem: Problem, reference: Reference, clock: Clock, staged: Staged) -> None:
        self._problem, self._reference, self._clock, self._staged = problem, reference, clock, staged
        on, copy_all = clock.hardware.memory_on, clock.hardware.copy_all
        self._inputs = InputSource(problem, reference=reference, device=on, copy_all=copy_all)
        self._side: Side | None = None

    def run(self) -> list[CheckedWorkload]:
        """Check the workloads from small to large, until one fails or the time limit is reached."""
        layouts = {workload.uuid: layout_of(self._problem, workload) for workload in self._problem.workloads}
        processor_end, end = time.process_time() + WORKLOADS_S, time.monotonic() + LONGEST_S
        checked: list[CheckedWorkload] = []
        with self._clock.temporary_memory(list(layouts.values())):
            try:
                for workload in sorted(self._problem.workloads, key=lambda work: layouts[work.uuid].io_bytes):
                    checked.append(self._workload(workload, layouts[workload.uuid]))
                    late = time.process_time() > processor_end or time.monotonic() > end
                    if late or checked[-1].verdict is not Verdict.PASSED:
                        break
            finally:
                if self._side is not None:
                    self._side.close()
        order = {workload.uuid: number for number, workload in enumerate(self._problem.workloads)}
        return sorted(checked, key=lambda work: order[work.uuid])

    def _workload(self, workload: Workload, layout: Layout) -> CheckedWorkload:
        outcomes: list[Comparison] = []
        try:
            memory = self._clock.memory(layout)
            side = self._loaded()
            side.prepare(workload, layout, memory.capacity)
            sets = WorkloadSets(self._problem, self._inputs, workload)
            check = WorkloadCheck(self._reference, sets, self._clock.hardware.summed)
            ordinary = [""] * min(_EQUAL_SETS, memory.capacity)
            outcomes.append(_batch(side, memory, check, ordinary, side.first_call_s))
            kinds, size = sets.stress(), min(_MOST_SETS, memory.capacity)
            for begin in range(0, len(kinds), size):
                batch_kinds = kinds[begin : begin + size]
                outcomes.append(_batch(side, memory, check, batch_kinds, LEAST_BATCH_S))
        except (NoDeviceMemory, torch.OutOfMemoryError) as error:
            return CheckedWorkload(uuid=workload.uuid, verdict=Verdict.RUNTIME_ERROR, reason=f"no memory left: {error}")
        except RunnerFailed as error:
            return CheckedWorkload(uuid=workload.uuid, verdict=error.verdict, reason=error.reason)
        return CheckedWorkload(
            uuid=workload.uuid,
            verdict=Verdict.PASSED,
            max_abs_error=max(outcome.max_abs_error for outcome in outcomes),
            matched=min(outcome.matched for outcome in outcomes),
            calls=len(outcomes),
        )

    def _loaded(self) -> Side:
        """Return the runner, which is started for the first workload.

        Raises:
            RunnerFailed: loading fails.
        """
        if self._side is None:
            self._side = load_solution_side(self._clock, self._staged)
        return self._side


def _batch(side: Side, memory: Memory, check: WorkloadCheck, kinds: Sequence[str], within_s: float) -> Comparison:
    """Make one batch of calls, and check each. All ordinary calls have the inputs of the first.

    Raises:
        RunnerFailed: an output is wrong, or the candidate broke.
    """
    slots = range(len(kinds))
    views = [memory.views(slot) for slot in slots]
    check.sets.fill(views, kinds)
    if not any(kinds):
        for equal in views[1:]:
            for name, value in views[0].items():
                equal[name].copy_(value)
    side.batch(memory, slots, within_s)
    outcomes = []
    for slot, kind in enumerate(kinds):
        inputs = memory.inputs(slot)
        outcome = check.check(inputs, check.expected(inputs), memory.outputs(side.connection, slot), kind)
        outcomes.append(outcome)
    side.runner.check_still_stopped()
    for kind, outcome in zip(kinds, outcomes, strict=True):
        if outcome.reason is not None:
            unequal = "" if any(kinds) else _difference(memory, side, outcomes)
            reason = f"{outcome.reason} (inputs: {kind})" if kind else outcome.reason
            raise RunnerFailed(outcome.verdict, f"{unequal}; {reason}" if unequal else reason)
    worst = max(outcomes, key=lambda outcome: outcome.max_abs_error)
    matched = min(outcome.matched for outcome in outcomes)
    return replace(worst, matched=matched)


def _difference(memory: Memory, side: Side, outcomes: Sequence[Comparison]) -> str:
    """Return the beginning of a reason for different outputs of two calls with equal inputs; "" if they are equal."""
    if len(outcomes) < _EQUAL_SETS:
        return ""
    first, second = (memory.outputs(side.connection, slot) for slot in range(_EQUAL_SETS))
    if all(torch.equal(_bits(first[name]), _bits(second[name])) for name in first):
        return ""
    if outcomes[0].reason is None:
        return (
            "the first of two calls with equal inputs is right and the second is wrong: state remains between calls, "
            "for example in an accumulator or counter that is not reset"
        )
    return (
        "two calls with equal inputs give different outputs: a race (missing barrier), or memory that is read before "
        "it is written (an accumulator that is not reset)"
    )


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8)
