"""Measurement of a problem's baselines, the variants that a candidate must beat; requests of kind `baseline`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.judge.baseline.baseline_runners import Opponents, has_own_baseline
from harness.judge.baseline.slowdown import PATIENCE_S, timed_call_ns
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.clock import calls_for, per_call_ns
from harness.judge.devices.interface import Clock, Memory
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.memory_plan import MemoryPlan
from harness.judge.memory_planner import LACK, MemoryPlanner
from harness.judge.reference import Reference
from harness.judge.requested_baselines import requested_variants, standard_variants
from harness.judge.resources import Progress, Resources
from harness.judge.runners import BaselineFailed
from harness.judge.sides import COMPILED, Side
from harness.judge.verdict import one_line
from harness.model.interval import geometric_mean
from harness.model.judging import (
    Baselines,
    Cost,
    JudgeAnswer,
    JudgeProgress,
    JudgeRequest,
    Screened,
    Summary,
    Variant,
    WorkloadResult,
)
from harness.model.problem import Problem, Workload
from harness.model.verdict import Verdict

_BATCHES = 7
_SCREENING_CALLS = 3
SCREENING_FACTOR = 1.5
"""A variant is timed in full if its shortest screening call is at most this factor slower than the fastest one's."""
_AUTOTUNED_FIRST = 2
"""Largest workloads, on which max-autotune runs first."""


def measure(
    judge: Resources, request: JudgeRequest, problem: Problem, reference: Reference, progress: Progress
) -> JudgeAnswer:
    """Time and check every variant on every workload with each of the device's clocks. The fastest is the baseline.

    Each variant is screened by a few calls. Those that could be the fastest are timed in full, and only these count.

    The clocks may have different fastest variants, because launches cost no time by a device's events. A variant that
    cannot run on this machine is null, and the environment has the reason, such as a missing compiler.

    Args:
        judge: its device, its runners of baselines, and its environment, to which the answer adds the reasons for
            missing variants.
        request: the request.
        problem: the problem.
        reference: of the problem.
        progress: receives the progress.

    Raises:
        BaselineFailed: the reference itself, run eagerly on the device's own clock, fails.
    """
    device = judge.device
    hardware, planner = device.hardware, judge.memory_planner(problem)
    source = InputSource(problem, reference=reference, device=hardware.memory_on, copy_all=hardware.copy_all)
    variants = standard_variants(problem, hardware.target)
    variants += requested_variants(problem, hardware.target, request.more_variants)

    def bench(clock: Clock, stage: str) -> Bench:
        opponents = judge.opponents(clock)

        def report(done: int) -> None:
            progress(JudgeProgress(id=request.id, stage=stage, done=done, of=len(problem.workloads)))

        return Bench(problem, reference, source, clock, opponents, planner, report, variants)

    first = bench(device.clock, "baseline")
    times = first.times(must_run="eager")
    missing = {"missing_baselines": first.missing}
    sealed: Baselines = {}
    sealed_screened: Screened = {}
    if len(device.clocks) > 1:
        second = bench(device.sealed_clock, "sealed baseline")
        sealed = second.times()
        sealed_screened = second.screened
        missing["missing_sealed_baselines"] = second.missing
    results = tuple(
        _result(workload, times[workload.uuid], first.screened.get(workload.uuid, ())) for workload in problem.workloads
    )
    return JudgeAnswer(
        id=request.id,
        verdict=Verdict.PASSED,
        workloads=results,
        summary=Summary(passed=len(results), of=len(results)),
        device=device.record(),
        environment=judge.environment.model_copy(
            update={name: reasons for name, reasons in missing.items() if reasons}
        ),
        cost=Cost(),
        baselines=times,
        sealed_baselines=sealed,
        screened=first.screened,
        sealed_screened=sealed_screened,
    )


@dataclass
class Bench:
    """Measurement of a problem's variants with one clock."""

    problem: Problem
    reference: Reference
    source: InputSource
    clock: Clock
    opponents: Opponents
    planner: MemoryPlanner
    report: Callable[[int], None]
    """Receives the number of finished workloads."""
    variants: tuple[Variant, ...] = ("eager", "compile")
    """All but the problem's `baseline/`, in the order of their screening."""
    missing: dict[Variant, str] = field(default_factory=dict)
    """Reason why a variant has no time, by variant."""
    screened: Screened = field(default_factory=dict)
    """Variants that were not timed in full, by workload."""
    own: Side | None = None
    """The problem's `baseline/`, once it is loaded."""
    _abandoned: set[Variant] = field(default_factory=set)
    """Variants that do not load, compile or prepare, and are not tried again."""
    _loaded: set[Variant] = field(default_factory=set)
    _prepared: set[Variant] = field(default_factory=set)
    """Variants that loaded, and those that were ready for a workload, at least once."""
    _could_win: set[Variant] = field(default_factory=set)
    """Variants that were timed in full on some workload."""

    def times(self, must_run: Variant | None = None) -> Baselines:
        """Return the times of every workload by variant, in microseconds.

        Raises:
            BaselineFailed: the variant that must run fails.
        """
        times: Baselines = {}
        if must_run is not None:
            with contextlib.suppress(*LACK):  # `_measured` makes room
                self.opponents.trusted(self.problem, must_run)  # raises if it does not load
        variants = [*self.variants, *(["baseline"] if has_own_baseline(self.problem) else [])]
        try:
            for number, workload in enumerate(self._order()):
                self.report(number)
                tried = [variant for variant in variants if self._is_tried(variant, number)]
                measured = self._workload(workload, tried, must_run)
                times[workload.uuid] = {variant: measured.get(variant) for variant in variants}
        finally:
            self._end_own()
        return {workload.uuid: times[workload.uuid] for workload in self.problem.workloads}

    def _order(self) -> list[Workload]:
        """Return the workloads, the largest first if max-autotune is measured."""
        workloads = list(self.problem.workloads)
        if "max_autotune" not in self.variants:
            return workloads
        return sorted(workloads, key=lambda workload: -layout_of(self.problem, workload).io_bytes)

    def _is_tried(self, variant: Variant, number: int) -> bool:
        """Return true if a variant is screened on the workload of this number in the order."""
        if variant == "max_autotune" and number >= _AUTOTUNED_FIRST and variant not in self._could_win:
            self.missing.setdefault(variant, "too slow on the two largest workloads to be the fastest on the others")
            return False
        return variant not in self._abandoned

    def _workload(
        self, workload: Workload, variants: Sequence[Variant], must_run: Variant | None
    ) -> dict[Variant, float]:
        """Return the times of the correct variants, of which `screened` names those that were not timed in full."""
        times: dict[Variant, float] = {}
        for variant in variants:
            screening_us = self._measured(_screening_us, variant, workload, is_required=variant == must_run)
            if screening_us is not None:
                times[variant] = screening_us
        full: dict[Variant, float] = {}
        while times and not full:
            limit_us = SCREENING_FACTOR * min(times.values())
            for variant in [variant for variant in times if times[variant] <= limit_us]:
                del times[variant]
                full_us = self._measured(_full_us, variant, workload, is_required=variant == must_run)
                if full_us is not None:
                    full[variant] = full_us
        self._could_win |= full.keys()
        self.screened[workload.uuid] = tuple(times)
        return times | full

    def _measured(
        self, measure_us: _MeasureUs, variant: Variant, workload: Workload, *, is_required: bool
    ) -> float | None:
        """Prepare and measure a variant. A failure is stored as the reason for its missing time, and None returned.

        If device memory lacks, room is made and the variant measured once more with as little as possible.

        Raises:
            BaselineFailed: the variant is required and fails.
            OutOfMachineMemoryError: other programs use the memory that is missing.
        """
        try:
            with contextlib.suppress(*LACK):  # not in a handler, in which the exception would keep tensors alive
                return self._measured_once(measure_us, variant, workload, sparing=False)
            self.planner.make_room()
            self._end_own()  # its process keeps memory of earlier workloads
            return self._measured_once(measure_us, variant, workload, sparing=True)
        except LACK as lack:
            cause = self.planner.cause(lack, workload, self.planner.state(), None)
            if is_required or not isinstance(cause, BaselineFailed):
                raise cause from lack
            self._store_reason(variant, workload, cause)
        except BaselineFailed as failure:
            if is_required:
                raise BaselineFailed(f"the reference failed on workload {workload.uuid}: {failure}") from None
            self._store_reason(variant, workload, failure)
            if variant not in self._prepared:
                self._abandoned.add(variant)
            if failure.broken is None:
                return None
        if variant == "baseline":  # its runner broke: the next workload or variant gets another
            self._end_own()
        else:
            self.opponents.drop(self.problem, variant)
        return None

    def _store_reason(self, variant: Variant, workload: Workload, failure: BaselineFailed) -> None:
        where = f"workload {workload.uuid}: " if variant in self._loaded else ""
        self.missing.setdefault(variant, f"{where}{one_line(failure)}")

    def _measured_once(self, measure_us: _MeasureUs, variant: Variant, workload: Workload, *, sparing: bool) -> float:
        plan = self.planner.plan(self.clock, workload, sparing=sparing)
        memory = self.clock.memory(layout_of(self.problem, workload), 1, plan)
        sets = WorkloadSets(self.problem, self.source, workload)
        check = self.planner.check_of(self.reference, sets)
        side = self._ready_side(variant, workload, memory.capacity, plan)
        return measure_us(memory, side, sets, check)

    def _ready_side(self, variant: Variant, workload: Workload, slots: int, plan: MemoryPlan | None) -> Side:
        """Return the runner of a variant, which is compiled and prepared for a workload."""
        if variant == "baseline":
            side = self.own = self.own or self.opponents.own(self.problem)
        else:
            side = self.opponents.trusted(self.problem, variant)
        self._loaded.add(variant)
        if variant in COMPILED:
            self.opponents.compile_ahead(self.problem, [workload], lambda _: None, variant)
        side.prepare(workload, layout_of(self.problem, workload), slots, variant, plan)
        self._prepared.add(variant)
        self.clock.runners.settle()  # as in a race: a compilation takes longer than processors stay awake
        return side

    def _end_own(self) -> None:
        """End the runner of `baseline/`; the next use starts another."""
        if self.own is not None:
            ended, self.own = self.own, None
            ended.close()


_MeasureUs = Callable[[Memory, Side, WorkloadSets, WorkloadCheck], float]


def _screening_us(memory: Memory, side: Side, sets: WorkloadSets, check: WorkloadCheck) -> float:
    """Return the microseconds of a variant's shortest call of a few. The outputs of its first call are checked."""
    sets.fill([memory.views(0)])
    side.batch(memory, range(1), side.first_call_s)
    _check(memory, side, check, 0)
    calibration = side.clock.calibration
    return (
        min(per_call_ns(side.batch(memory, range(1), PATIENCE_S), 1, calibration) for _ in range(_SCREENING_CALLS))
        / 1e3
    )


def _full_us(memory: Memory, side: Side, sets: WorkloadSets, check: WorkloadCheck) -> float:
    """Return the microseconds per call of one variant. The outputs of one call of every batch are checked."""
    calibration = side.clock.calibration
    single = 1e3 * _screening_us(memory, side, sets, check)
    calls = calls_for(single, memory.capacity, calibration)
    times = []
    for _ in range(_BATCHES):
        times.append(timed_call_ns(side, memory, sets, calls))
        _check(memory, side, check, calls - 1)
    times.sort()
    return geometric_mean(times[1:-2]) / 1e3  # without the shortest and the two longest: a disturbance only adds time


def _check(memory: Memory, side: Side, check: WorkloadCheck, slot: int) -> None:
    inputs = memory.inputs(slot)
    outcome = check.check(inputs, check.expected(inputs), memory.outputs(side.connection, slot))
    if outcome.reason is not None:
        raise BaselineFailed(outcome.reason)


def _result(workload: Workload, times: Mapping[Variant, float | None], screened: Sequence[Variant]) -> WorkloadResult:
    measured = {variant: value for variant, value in times.items() if value is not None and variant not in screened}
    variant = min(measured, key=lambda name: measured[name])
    best = measured[variant]
    return WorkloadResult(
        uuid=workload.uuid, verdict=Verdict.PASSED, latency_us=best, baseline_us=best, variant=variant
    )
