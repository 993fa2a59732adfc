"""Results of workloads from their measurements, and the verdict and trust of all workloads together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from harness.judge.checks import Tally
from harness.judge.devices.interface import Clock
from harness.judge.timing import TimedBlocks
from harness.model.interval import SetupError, geometric_mean, mean_and_error, student_quantile, workload_interval
from harness.model.judging import BoundRates, Variant, WorkloadResult
from harness.model.problem import Workload
from harness.model.verdict import Trust, Verdict, least_possible_us
from harness.sol.score import score

_GRAVEST = (Verdict.REWARD_HACK, Verdict.INVALID_REFERENCE)
"""Reported before all other verdicts. Without one of these, the first workload that failed determines the verdict."""
_WEAKEST = (Trust.LAUNCH_BOUND, Trust.BOUNDED, Trust.RECORDED, Trust.SEALED)
"""Levels of trust, the weakest first."""


def one_line(error: BaseException) -> str:
    """Return the message of an exception without line breaks."""
    return " ".join(str(error).split())


def failed(workload: Workload, verdict: Verdict, reason: str, tally: Tally | None = None) -> WorkloadResult:
    """Return the result of a workload that did not pass.

    Args:
        workload: the workload.
        verdict: any but PASSED.
        reason: one line for people.
        tally: errors of the calls that were checked before the failure; None if none was.
    """
    result = WorkloadResult(uuid=workload.uuid, verdict=verdict, reason=reason)
    return result if tally is None or not tally.checked else _with_errors(result, tally)


def correct(workload: Workload, tally: Tally) -> WorkloadResult:
    """Return the result of a workload that is correct and was not timed because another one failed.

    Args:
        workload: the workload.
        tally: errors of its checked calls.
    """
    return _with_errors(WorkloadResult(uuid=workload.uuid, verdict=Verdict.PASSED), tally)


def _with_errors(result: WorkloadResult, tally: Tally) -> WorkloadResult:
    errors = {"max_abs_error": tally.max_abs_error, "max_rel_error": tally.max_rel_error, "matched": tally.matched}
    return result.model_copy(update=errors)


def timed(
    workload: Workload, times: TimedBlocks, tally: Tally, variant: Variant, clock: Clock, sol_us: float | None
) -> WorkloadResult:
    """Return the result of a workload that passed, with its times; `with_bounds` adds bound and score.

    Args:
        workload: the workload.
        times: the blocks that count.
        tally: errors of its checked calls.
        variant: the baseline that it was timed against.
        clock: the clock that timed it.
        sol_us: speed-of-light bound in microseconds; None if the workload has none.
    """
    ratios = tuple(block.log_ratio for block in times.blocks)
    latency_ns = geometric_mean([block.candidate_ns for block in times.blocks])
    baseline_ns = geometric_mean([block.baseline_ns for block in times.blocks])
    sides = (clock.process_error(call_ns, (sol_us or 0.0) * 1e3) for call_ns in (latency_ns, baseline_ns))
    process_error = math.hypot(*sides, times.slowdown_uncertainty)
    speedup, interval = workload_interval(ratios, SetupError(times.placement_error or 0.0, process_error))
    subtracted_ns = statistics.fmean(block.subtracted_ns for block in times.blocks)
    result = WorkloadResult(
        uuid=workload.uuid,
        verdict=Verdict.PASSED,
        latency_us=latency_ns / 1e3,
        baseline_us=baseline_ns / 1e3,
        speedup=speedup,
        speedup_ci95=interval,
        log_ratios=ratios,
        placement_error=times.placement_error,
        process_error=process_error or None,
        claimed_us=statistics.fmean(block.claimed_ns for block in times.blocks) / 1e3,
        subtracted_us=(subtracted_ns + clock.calibration.call_overhead_ns) / 1e3,
        checked=times.checked,
        calls=times.calls,
        blocks=len(times.blocks),
        discarded=times.discarded,
        variant=variant,
    )
    return _with_errors(result, tally)


def with_baseline_alone(result: WorkloadResult, alone_ns: Sequence[float]) -> WorkloadResult:
    """Add the latency of the baseline alone, with its interval.

    Args:
        result: result of a workload.
        alone_ns: nanoseconds per call of each batch before the candidate's process existed; empty if not measured.
    """
    if len(alone_ns) < 2:
        return result
    mean, error = mean_and_error([math.log(time_ns / 1e3) for time_ns in alone_ns])
    half_width = student_quantile(len(alone_ns) - 1, 0.975) * error
    interval = math.exp(mean - half_width), math.exp(mean + half_width)
    return result.model_copy(update={"baseline_alone_us": math.exp(mean), "baseline_alone_ci95": interval})


def with_bounds(result: WorkloadResult, sol_us: float, floor_us: float, rates: BoundRates) -> WorkloadResult:
    """Add bound, floor and score, and reject a latency that is below the floor by more than the clock's error.

    Args:
        result: result of a workload.
        sol_us: speed-of-light bound of the workload in microseconds.
        floor_us: floor of the workload in microseconds, which no latency can undercut.
        rates: source of the device's rates in bound and floor.
    """
    latency, baseline = result.latency_us, result.baseline_us
    update: dict[str, object] = {"sol_us": sol_us, "floor_us": floor_us, "bound_rates": rates}
    if latency is not None and baseline is not None:
        update["score"] = score(latency, baseline, sol_us)
    if latency is not None and latency < least_possible_us(floor_us):
        update["verdict"] = Verdict.SUSPECT
        update["reason"] = f"{latency:.3f} us a call is below the floor of {floor_us:.3f} us that the hardware allows"
    return result.model_copy(update=update)


def overall(results: Sequence[WorkloadResult]) -> tuple[Verdict, str | None]:
    """Return the verdict of all workloads together, and its reason in one line, which names the workload."""
    for result in sorted(results, key=lambda candidate: candidate.verdict not in _GRAVEST):
        if result.verdict is not Verdict.PASSED:
            return result.verdict, f"workload {result.uuid}: {result.reason}"
    return Verdict.PASSED, None


def weakest_trust(results: Sequence[WorkloadResult], clock: Clock) -> Trust:
    """Return the trust of the least trusted workload.

    Args:
        results: of all workloads; those without times do not count.
        clock: the clock that timed them.
    """
    levels = [
        clock.trust(result.latency_us * 1e3, result.claimed_us * 1e3)
        for result in results
        if result.latency_us is not None and result.claimed_us is not None
    ]
    return min(levels, key=_WEAKEST.index, default=Trust.BOUNDED)
