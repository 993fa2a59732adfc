"""Kind `baseline`: how fast the ways to compute a problem are that a candidate has to beat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from harness.judge.checks import WorkloadCheck, WorkloadSets
from harness.judge.clock import calls_for, per_call_ns
from harness.judge.devices import Device, Memory
from harness.judge.inputs import InputSource
from harness.judge.layout import layout_of
from harness.judge.opponents import Opponents, has_own_baseline
from harness.judge.reference import Reference
from harness.judge.rounds import BaselineFailed
from harness.judge.runners import RunnerFailed
from harness.judge.sides import Side
from harness.model.judging import (
    Cost,
    EnvironmentRecord,
    JudgeAnswer,
    JudgeProgress,
    JudgeRequest,
    Summary,
    Variant,
    WorkloadResult,
)
from harness.model.problem import Problem, Workload
from harness.model.verdict import Verdict
from harness.store.quiet import timing

_BATCHES = 7
_PATIENCE_S = 60.0


def measure(
    request: JudgeRequest,
    problem: Problem,
    reference: Reference,
    device: Device,
    opponents: Opponents,
    progress: Callable[[JudgeProgress], None],
) -> JudgeAnswer:
    """Time every variant on every workload, each checked; the fastest correct one is the baseline.

    A variant that cannot run here (no compiler for torch.compile) is null, and the environment says why.

    Raises:
        BaselineFailed: the reference itself, run eagerly, fails.
    """
    begin = time.monotonic()
    source = InputSource(problem, reference=reference, device=device.memory_on, copy_all=device.copy_all)
    missing: dict[str, str] = {}
    sides = _sides(request, problem, opponents, progress, missing)
    try:
        device.settle()
        found: dict[str, dict[Variant, float | None]] = {}
        for number, workload in enumerate(problem.workloads):
            progress(JudgeProgress(id=request.id, stage="baseline", done=number, of=len(problem.workloads)))
            found[workload.uuid] = _workload(problem, workload, reference, source, device, sides, missing)
    finally:
        if "baseline" in sides:
            sides["baseline"].close()
    results = tuple(_result(workload, found[workload.uuid]) for workload in problem.workloads)
    return JudgeAnswer(
        id=request.id,
        verdict=Verdict.PASSED,
        workloads=results,
        summary=Summary(passed=len(results), of=len(results)),
        device=device.record(),
        environment=EnvironmentRecord.model_validate(
            {"harness": "", "judge": "", "python": "", "torch": "", "sandbox": "", **_missing(missing)}
        ),
        cost=Cost(judge_s=round(time.monotonic() - begin, 3)),
        baselines=found,
    )


def _missing(missing: Mapping[str, str]) -> dict[str, object]:
    return {"missing_baselines": dict(missing)} if missing else {}


def _sides(
    request: JudgeRequest,
    problem: Problem,
    opponents: Opponents,
    progress: Callable[[JudgeProgress], None],
    missing: dict[str, str],
) -> dict[Variant, Side]:
    sides: dict[Variant, Side] = {"eager": opponents.reference(problem)}

    def say(done: int) -> None:
        progress(JudgeProgress(id=request.id, stage="compile", done=done, of=len(problem.workloads)))

    try:
        opponents.compile_ahead(problem, list(problem.workloads), say)
        sides["compile"] = opponents.reference(problem)
    except BaselineFailed as failure:
        missing["compile"] = str(failure)
        sides["eager"] = opponents.reference(problem)
    if has_own_baseline(problem):
        try:
            sides["baseline"] = opponents.own(problem)
        except BaselineFailed as failure:
            missing["baseline"] = str(failure)
    return sides


def _workload(
    problem: Problem,
    workload: Workload,
    reference: Reference,
    source: InputSource,
    device: Device,
    sides: Mapping[Variant, Side],
    missing: dict[str, str],
) -> dict[Variant, float | None]:
    layout = layout_of(problem, workload)
    memory = device.memory(layout)
    sets = WorkloadSets(problem, source, workload)
    check = WorkloadCheck(reference, sets, device.summed)
    times: dict[Variant, float | None] = {"eager": None, "compile": None}
    if has_own_baseline(problem):
        times["baseline"] = None
    for variant, side in sides.items():
        try:
            side.prepare(workload, layout, memory.capacity, variant)
            times[variant] = _variant(memory, side, sets, check)
        except (BaselineFailed, RunnerFailed) as failure:
            if variant == "eager":
                raise BaselineFailed(f"the reference failed on workload {workload.uuid}: {failure}") from None
            missing[variant] = f"workload {workload.uuid}: {failure}"
    return times


def _variant(memory: Memory, side: Side, sets: WorkloadSets, check: WorkloadCheck) -> float:
    """Microseconds a call of one variant, one set of every batch checked."""
    calibration = side.device.calibration
    sets.fill([memory.views(0)])
    side.batch(memory, range(1), side.first_call_s)
    _check(memory, side, check, 0)
    single = min(per_call_ns(side.batch(memory, range(1), _PATIENCE_S), 1, calibration) for _ in range(3))
    calls = calls_for(single, memory.capacity, calibration)
    logs = []
    for _ in range(_BATCHES):
        sets.fill([memory.views(slot) for slot in range(calls)])
        with timing():
            batch = side.batch(memory, range(calls), _PATIENCE_S)
        _check(memory, side, check, calls - 1)
        logs.append(math.log(per_call_ns(batch, calls, calibration)))
    logs.sort()
    middle = logs[1:-2]  # a disturbed batch is only ever longer
    return math.exp(math.fsum(middle) / len(middle)) / 1e3


def _check(memory: Memory, side: Side, check: WorkloadCheck, slot: int) -> None:
    inputs = memory.inputs(slot)
    outcome = check.check(inputs, check.expected(inputs), memory.outputs(side.runner, slot))
    if outcome.reason is not None:
        raise BaselineFailed(outcome.reason)


def _result(workload: Workload, times: Mapping[Variant, float | None]) -> WorkloadResult:
    measured = {variant: value for variant, value in times.items() if value is not None}
    variant = min(measured, key=lambda each: measured[each])
    best = measured[variant]
    return WorkloadResult(
        uuid=workload.uuid, verdict=Verdict.PASSED, latency_us=best, baseline_us=best, variant=variant
    )
