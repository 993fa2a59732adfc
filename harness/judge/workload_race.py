"""The race of one candidate against the baselines of a problem, workload by workload, on one clock."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.failpoints import failpoint
from harness.judge.baseline.slowdown import slowed_by, time_baseline_alone
from harness.judge.checked_calls import CheckedCalls
from harness.judge.checks import Tally, WorkloadCheck, WorkloadSets
from harness.judge.deadline import Deadline
from harness.judge.devices.interface import Clock
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_plan import MemoryPlan
from harness.judge.memory_planner import LACK, MemoryPlanner
from harness.judge.reference import Reference
from harness.judge.resources import Progress, Resources
from harness.judge.rounds import Rounds
from harness.judge.runners import RunnerFailed
from harness.judge.sides import COMPILED, CandidateRunner, Side, Staged
from harness.judge.single_calls import REPETITIONS
from harness.judge.timing import TimedBlocks
from harness.judge.verdict import correct, failed, timed, weakest_trust, with_baseline_alone, with_bounds
from harness.model.judging import JudgeProgress, JudgeRequest, Variant, WorkloadResult
from harness.model.problem import Problem, Workload
from harness.model.verdict import Trust, Verdict
from harness.sol.roofline import Bounds, NoBoundError

_TIMING_SHARE = {"evaluation": 0.04, "confirmation": 0.08}
"""Share of max_judge_s for blocks after the first twelve, divided among the workloads. A confirmation has more, because
its speed-up is the one that counts."""


@dataclass(frozen=True)
class Task:
    """One request to judge a candidate, with what all its parts use."""

    judge: Resources
    request: JudgeRequest
    problem: Problem
    reference: Reference
    inputs: InputSource
    planner: MemoryPlanner
    progress: Progress

    def report(self, stage: str, done: int = 0) -> None:
        """Report the progress.

        Args:
            stage: what is being done.
            done: workloads that are done.
        """
        self.progress(JudgeProgress(id=self.request.id, stage=stage, done=done, of=len(self.problem.workloads)))

    def check_of(self, workload: Workload) -> WorkloadCheck:
        """Return the check of a workload's outputs."""
        return self.planner.check_of(self.reference, WorkloadSets(self.problem, self.inputs, workload))


@dataclass(frozen=True)
class _Slowed:
    """A workload whose baseline was slower than before the candidate's process existed."""

    times: TimedBlocks
    tally: Tally


@dataclass(frozen=True)
class RaceOutcome:
    """Results of all workloads, and the trust in the least trusted of their times."""

    results: tuple[WorkloadResult, ...] = ()
    trust: Trust = Trust.BOUNDED


class WorkloadRace:
    """Judges a candidate on every workload.

    Args:
        task: the request.
        staged: the candidate.
        clock: times its calls.
    """

    def __init__(self, task: Task, staged: Staged, clock: Clock) -> None:
        self._task, self._clock = task, clock
        self._opponents = task.judge.opponents(clock)
        self._candidate = CandidateRunner(clock, staged)
        self._own_baseline: Side | None = None

    def outcome(self) -> RaceOutcome:
        """Return the results of all workloads, and end all processes that no later request uses.

        Raises:
            BaselineFailed: the reference or the baseline is wrong or broke, or the device is too small for it.
            OutOfMachineMemoryError: other programs use the memory that is missing.
        """
        try:
            problem = self._task.problem
            largest = max(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
            self._with_room(self._prepare_opponents, largest)
            alone_ns: Mapping[str, Sequence[float]] = {}
            if self._clock.work_outlasts_stop:
                alone_ns = {workload.uuid: self._alone_ns(workload) for workload in self._task.problem.workloads}
            deadline = Deadline(self._task.request.max_judge_s)
            results, slowed = self._all(deadline, alone_ns)
            results = self._without_slow_host(results, slowed) if slowed else results
            return RaceOutcome(tuple(results), weakest_trust(results, self._clock))
        finally:
            self._candidate.end()
            if self._own_baseline is not None:
                self._own_baseline.close()

    # -- memory

    def _with_room(self, work: Callable[[], None], workload: Workload) -> None:
        """Do work without the candidate, and once more after room was made if device memory lacks.

        Raises:
            BaselineFailed: the device is too small for the workload.
            OutOfMachineMemoryError: other programs use the memory that is missing.
        """
        with contextlib.suppress(*LACK):  # in a handler, the exception would keep the tensors of its frames
            work()
            return
        planner = self._task.planner
        planner.make_room()
        try:
            self._reload_own_baseline()
            work()
        except LACK as lack:
            raise planner.cause(lack, workload, planner.state(), None) from lack

    def _reload_own_baseline(self) -> None:
        """Start the problem's `baseline/` again, if it is used: its process keeps memory of earlier workloads."""
        if self._own_baseline is not None:
            previous, self._own_baseline = self._own_baseline, None
            previous.close()
            self._own_baseline = self._opponents.own(self._task.problem)

    def _plan(self, workload: Workload, *, sparing: bool = False) -> MemoryPlan | None:
        return self._task.planner.plan(self._clock, workload, sparing=sparing)

    # -- baselines

    def _variant(self, workload: Workload) -> Variant:
        """Return the baseline to time against: the fastest by the clock that the candidate is timed with."""
        request, device = self._task.request, self._task.judge.device
        variant = request.baseline.get(workload.uuid, "eager")
        return variant if self._clock is device.clock else request.sealed_baseline.get(workload.uuid, variant)

    def _prepare_opponents(self) -> None:
        task, problem = self._task, self._task.problem
        task.report("baseline")
        variants = {self._variant(workload) for workload in problem.workloads}
        for variant in sorted(variants - {"baseline"}):
            self._opponents.trusted(problem, variant)
        for variant in COMPILED:
            compiled = [workload for workload in problem.workloads if self._variant(workload) == variant]
            if compiled:
                self._opponents.compile_ahead(problem, compiled, lambda done: task.report("baseline", done), variant)
        if "baseline" in variants and self._own_baseline is None:
            self._own_baseline = self._opponents.own(problem)

    def _opponent(self, workload: Workload, plan: MemoryPlan | None, sets: int) -> Side:
        """Return the baseline's runner, prepared for a workload."""
        variant = self._variant(workload)
        own = self._own_baseline if variant == "baseline" else None
        side = own or self._opponents.trusted(self._task.problem, variant)
        side.prepare(workload, layout_of(self._task.problem, workload), sets, variant, plan)
        return side

    def _alone_ns(self, workload: Workload) -> tuple[float, ...]:
        """Time the baseline of a workload while no process of the candidate exists.

        Raises:
            BaselineFailed: the baseline broke.
        """
        task = self._task
        times_ns: tuple[float, ...] = ()
        self._clock.runners.settle()  # the same conditions as during the candidate's blocks

        def time_alone() -> None:
            nonlocal times_ns
            plan = self._plan(workload)
            memory = self._clock.memory(layout_of(task.problem, workload), 1, plan)
            side = self._opponent(workload, plan, memory.capacity)
            times_ns = time_baseline_alone(side, memory, WorkloadSets(task.problem, task.inputs, workload))

        self._with_room(time_alone, workload)
        return times_ns

    # -- workloads

    def _all(
        self, deadline: Deadline, alone_ns: Mapping[str, Sequence[float]]
    ) -> tuple[list[WorkloadResult], dict[str, _Slowed]]:
        """Return the result of every workload, and those with a slowed baseline by uuid.

        After the first failure the others are checked and not timed.
        """
        results: list[WorkloadResult] = []
        slowed: dict[str, _Slowed] = {}
        for number, workload in enumerate(self._task.problem.workloads):
            verdicts = {result.verdict for result in results}
            if Verdict.REWARD_HACK in verdicts:
                reason = "not run: the candidate cheated on another workload"
                results.append(failed(workload, Verdict.REWARD_HACK, reason))
                continue
            self._task.report("workload", number)
            tally, timing = Tally(), verdicts <= {Verdict.PASSED}
            try:
                result, times = self._judged(workload, deadline, alone_ns.get(workload.uuid, ()), tally, timing=timing)
            except RunnerFailed as failure:
                self._candidate.end()
                result, times = failed(workload, failure.verdict, failure.reason, tally), None
            if times is not None and times.slowdown_uncertainty and self._clock.work_outlasts_stop:
                slowed[workload.uuid] = _Slowed(times, tally)
            results.append(result)
        return results, slowed

    def _judged(
        self, workload: Workload, deadline: Deadline, alone_ns: Sequence[float], tally: Tally, *, timing: bool
    ) -> tuple[WorkloadResult, TimedBlocks | None]:
        """Judge a workload. If device memory lacks, make room and judge it once more with as little as possible.

        Raises:
            RunnerFailed: the candidate is wrong or broke, or holds the memory that lacks.
        """
        with contextlib.suppress(*LACK):
            return self._judged_once(workload, deadline, alone_ns, tally, timing=timing)
        self._candidate.end()
        with deadline.extended():
            self._task.planner.make_room()
        try:
            with deadline.extended():
                self._reload_own_baseline()
            return self._judged_once(workload, deadline, alone_ns, tally, timing=timing, sparing=True)
        except LACK as lack:
            state, candidate = self._task.planner.state(), self._candidate.first_process
            raise self._task.planner.cause(lack, workload, state, candidate) from lack

    def _judged_once(
        self,
        workload: Workload,
        deadline: Deadline,
        alone_ns: Sequence[float],
        tally: Tally,
        *,
        timing: bool,
        sparing: bool = False,
    ) -> tuple[WorkloadResult, TimedBlocks | None]:
        task, count = self._task, len(self._task.problem.workloads)
        layout = layout_of(task.problem, workload)
        with deadline.extended():  # ending kept runners and starting a baseline is work of the judge
            plan = self._plan(workload, sparing=sparing)
            memory = self._clock.memory(layout, count, plan)
            opponent = self._opponent(workload, plan, memory.capacity)
        candidate = self._candidate.side(deadline)
        calls = CheckedCalls(memory, task.check_of(workload), candidate, deadline, tally)
        rounds = Rounds(calls, opponent, lambda: self._serve_check(deadline), alone_ns, count)
        rounds.warm_up_baseline()
        candidate.prepare(workload, layout, memory.capacity, plan=plan)
        rounds.correctness()
        if not timing:
            return correct(workload, tally), None
        self._clock.runners.settle()
        failpoint("judge.before_timing")
        half_width = task.request.half_width * math.sqrt(count)  # the mean of all workloads has the requested one
        cap_s = _TIMING_SHARE[task.request.kind] * task.request.max_judge_s / count
        for _ in range(REPETITIONS):  # a time below the hardware's bound accuses the candidate, so it is confirmed
            times = rounds.time(half_width, cap_s)
            result = with_baseline_alone(self._timed(workload, times, tally), alone_ns)
            if result.verdict is not Verdict.SUSPECT:
                break
            with deadline.extended():
                task.judge.measure_hardware_again()
        notes = [note for note in (calls.checker.note, result.note) if note]
        return result.model_copy(update={"note": "; ".join(notes) or None}), times

    def _serve_check(self, deadline: Deadline) -> float:
        """Serve a waiting check, and extend the deadline by the seconds that it took, which are returned."""
        spent_s = self._task.judge.serve_check()
        deadline.extend(spent_s)
        return spent_s

    def _without_slow_host(
        self, results: Sequence[WorkloadResult], slowed: Mapping[str, _Slowed]
    ) -> list[WorkloadResult]:
        """Time slowed baselines again without the candidate's process, and return the results with the new uncertainty.

        A baseline that is as slow without that process was slowed by its host, not by the candidate.

        Raises:
            BaselineFailed: a baseline broke.
        """
        self._candidate.end()
        corrected = []
        for workload, result in zip(self._task.problem.workloads, results, strict=True):
            entry = slowed.get(workload.uuid)
            if entry is None or result.verdict is not Verdict.PASSED:
                corrected.append(result)
                continue
            by_host = slowed_by(self._alone_ns(workload), [block.baseline_ns for block in entry.times.blocks])
            uncertainty = min(entry.times.slowdown_uncertainty, by_host)
            timed_result = self._timed(workload, replace(entry.times, slowdown_uncertainty=uncertainty), entry.tally)
            alone = {name: getattr(result, name) for name in ("baseline_alone_us", "baseline_alone_ci95")}
            corrected.append(timed_result.model_copy(update={"note": result.note, **alone}))
        return corrected

    def _timed(self, workload: Workload, times: TimedBlocks, tally: Tally) -> WorkloadResult:
        """Return a workload's times with bound, floor and score, or with a note of the reason why it has none."""
        bounds = self._task.judge.bounds(self._task.problem, workload)
        sol_us = None if isinstance(bounds, NoBoundError) else bounds.sol_us
        result = timed(workload, times, tally, self._variant(workload), self._clock, sol_us)
        return bounded(bounds, result)


def bounded(bounds: Bounds | NoBoundError, result: WorkloadResult) -> WorkloadResult:
    """Return a result with bound, floor and score, or with the reason why the workload has none.

    Args:
        bounds: of the workload.
        result: its times.
    """
    if isinstance(bounds, NoBoundError):
        fix = f" ({bounds.remedy})" if bounds.remedy else ""
        return result.model_copy(update={"note": f"no bound: {bounds.message}{fix}"})
    return with_bounds(result, bounds.sol_us, bounds.floor_us, "measured" if bounds.is_measured else "listed")
