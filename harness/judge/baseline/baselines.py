"""Measurement of a problem's baselines, the variants that a candidate must beat; requests of kind `baseline`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.judge.baseline.baseline_runners import Opponents, has_own_baseline
from harness.judge.baseline.slowdown import PATIENCE_S, timed_call_ns
from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.clock import calls_for, per_call_ns
from harness.judge.devices.interface import Clock, Memory
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.reference import Reference
from harness.judge.requested_baselines import is_library, requested_variants
from harness.judge.resources import Progress, Resources
from harness.judge.runners import BaselineFailed, RunnerFailed
from harness.judge.sides import COMPILED, Side
from harness.model.interval import geometric_mean
from harness.model.judging import (
    Baselines,
    Cost,
    JudgeAnswer,
    JudgeProgress,
    JudgeRequest,
    Summary,
    Variant,
    WorkloadResult,
)
from harness.model.problem import Problem, Workload
from harness.model.verdict import Verdict

_BATCHES = 7


def measure(
    judge: Resources, request: JudgeRequest, problem: Problem, reference: Reference, progress: Progress
) -> JudgeAnswer:
    """Time and check every variant on every workload with each of the device's clocks. The fastest is the baseline.

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
    on, copy_all = device.hardware.memory_on, device.hardware.copy_all
    source = InputSource(problem, reference=reference, device=on, copy_all=copy_all)

    def bench(clock: Clock, stage: str) -> Bench:
        extra = requested_variants(problem, device.hardware.target, request.more_variants)
        return Bench(request.id, problem, reference, source, clock, judge.opponents(clock), stage, progress, extra)

    first = bench(device.clock, "baseline")
    times = first.times(must_run="eager")
    missing = {"missing_baselines": first.missing}
    sealed: Baselines = {}
    if len(device.clocks) > 1:
        second = bench(device.sealed_clock, "sealed baseline")
        sealed = second.times()
        missing["missing_sealed_baselines"] = second.missing
    results = tuple(_result(workload, times[workload.uuid]) for workload in problem.workloads)
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
    )


@dataclass
class Bench:
    """Measurement of a problem's variants with one clock."""

    request: str
    problem: Problem
    reference: Reference
    source: InputSource
    clock: Clock
    opponents: Opponents
    stage: str
    progress: Progress
    extra: tuple[Variant, ...] = ()
    """Variants in addition to the usual ones. One that fails on a workload is not tried on later ones."""
    missing: dict[Variant, str] = field(default_factory=dict)
    """Reason why a variant has no time, by variant."""
    own: Side | None = None
    """The problem's `baseline/`, while it is being timed."""

    def times(self, must_run: Variant | None = None) -> Baselines:
        """Return the times of every workload by variant, in microseconds.

        Raises:
            BaselineFailed: the variant that must run fails.
        """
        times: Baselines = {}
        if must_run is not None:
            self.opponents.trusted(self.problem, must_run)  # raises if it does not load
        try:
            variants = self._get_ready()
            self.clock.runners.settle()
            for number, workload in enumerate(self.problem.workloads):
                self._report(self.stage, number)
                times[workload.uuid] = self._workload(workload, variants, must_run)
        finally:
            if self.own is not None:
                self.own.close()
        return times

    def _report(self, stage: str, done: int) -> None:
        self.progress(JudgeProgress(id=self.request, stage=stage, done=done, of=len(self.problem.workloads)))

    def _get_ready(self) -> list[Variant]:
        """Compile and load the variants. Return those that can be tried."""
        variants: list[Variant] = ["eager"]
        own: list[Variant] = ["baseline"] if has_own_baseline(self.problem) else []
        for variant in ("compile", *self.extra, *own):
            try:
                self._load(variant)
                variants.append(variant)
            except BaselineFailed as failure:
                self.missing[variant] = str(failure)
        return variants

    def _load(self, variant: Variant) -> None:
        if variant in COMPILED:
            workloads, stage = list(self.problem.workloads), variant.replace("_", "-")
            self.opponents.compile_ahead(self.problem, workloads, lambda done: self._report(stage, done), variant)
        elif variant == "baseline":
            self.own = self.opponents.own(self.problem)
        elif is_library(variant):
            self.opponents.trusted(self.problem, variant)

    def _workload(
        self, workload: Workload, variants: Sequence[Variant], must_run: Variant | None
    ) -> dict[Variant, float | None]:
        layout = layout_of(self.problem, workload)
        memory = self.clock.memory(layout)
        sets = WorkloadSets(self.problem, self.source, workload)
        check = WorkloadCheck(self.reference, sets, self.clock.hardware.summed)
        times: dict[Variant, float | None] = {"eager": None, "compile": None, **dict.fromkeys(self.extra)}
        if has_own_baseline(self.problem):
            times["baseline"] = None
        for variant in variants:
            if variant in self.extra and variant in self.missing:
                continue
            try:
                own = self.own if variant == "baseline" else None
                side = own or self.opponents.trusted(self.problem, variant)
                side.prepare(workload, layout, memory.capacity, variant)
                times[variant] = _variant(memory, side, sets, check)
            except (BaselineFailed, RunnerFailed) as failure:
                if variant == must_run:
                    raise BaselineFailed(f"the reference failed on workload {workload.uuid}: {failure}") from None
                self.missing[variant] = f"workload {workload.uuid}: {failure}"
                if variant != "baseline" and isinstance(failure, BaselineFailed) and failure.broken:
                    self.opponents.drop(self.problem, variant)  # its runner broke: the next variant gets another
        return times


def _variant(memory: Memory, side: Side, sets: WorkloadSets, check: WorkloadCheck) -> float:
    """Return the microseconds per call of one variant. The outputs of one call of every batch are checked."""
    calibration = side.clock.calibration
    sets.fill([memory.views(0)])
    side.batch(memory, range(1), side.first_call_s)
    _check(memory, side, check, 0)
    single = min(per_call_ns(side.batch(memory, range(1), PATIENCE_S), 1, calibration) for _ in range(3))
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


def _result(workload: Workload, times: Mapping[Variant, float | None]) -> WorkloadResult:
    measured = {variant: value for variant, value in times.items() if value is not None}
    variant = min(measured, key=lambda name: measured[name])
    best = measured[variant]
    return WorkloadResult(
        uuid=workload.uuid, verdict=Verdict.PASSED, latency_us=best, baseline_us=best, variant=variant
    )
