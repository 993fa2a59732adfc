"""From what was seen to what is said: results of workloads, and the answer they make together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from harness.judge.devices.interface import Device
from harness.judge.rounds import Tally, TimedBlocks
from harness.model.geometric_mean import geometric_mean
from harness.model.interval import SetupError, workload_interval
from harness.model.judging import BoundRates, Variant, WorkloadResult
from harness.model.problem import Workload
from harness.model.verdict import Trust, Verdict, least_possible_us
from harness.sol.score import score

_GRAVEST = (Verdict.REWARD_HACK, Verdict.INVALID_REFERENCE)
"""Said first, whichever workload showed it; otherwise the first workload that failed speaks."""
_WEAKEST = (Trust.LAUNCH_BOUND, Trust.BOUNDED, Trust.RECORDED, Trust.SEALED)


def failed(workload: Workload, verdict: Verdict, reason: str, tally: Tally | None = None) -> WorkloadResult:
    """A workload that did not pass."""
    result = WorkloadResult(uuid=workload.uuid, verdict=verdict, reason=reason)
    return result if tally is None or not tally.checked else _with_errors(result, tally)


def correct(workload: Workload, tally: Tally) -> WorkloadResult:
    """A workload that is right and was not timed, since another one is not."""
    return _with_errors(WorkloadResult(uuid=workload.uuid, verdict=Verdict.PASSED), tally)


def _with_errors(result: WorkloadResult, tally: Tally) -> WorkloadResult:
    seen = {"max_abs_error": tally.max_abs_error, "max_rel_error": tally.max_rel_error, "matched": tally.matched}
    return result.model_copy(update=seen)


def timed(
    workload: Workload, found: TimedBlocks, tally: Tally, variant: Variant, device: Device, sol_us: float | None
) -> WorkloadResult:
    """A workload that passed, with its numbers; bound and score are added by `with_bounds`."""
    ratios = tuple(block.log_ratio for block in found.blocks)
    latency_ns, baseline_ns = (
        geometric_mean(times)
        for times in ([one.candidate_ns for one in found.blocks], [one.baseline_ns for one in found.blocks])
    )
    sides = (device.process_error(call_ns, (sol_us or 0.0) * 1e3) for call_ns in (latency_ns, baseline_ns))
    process_error = math.hypot(*sides, found.doubt)
    speedup, interval = workload_interval(ratios, SetupError(found.placement_error or 0.0, process_error))
    result = WorkloadResult(
        uuid=workload.uuid,
        verdict=Verdict.PASSED,
        latency_us=latency_ns / 1e3,
        baseline_us=baseline_ns / 1e3,
        speedup=speedup,
        speedup_ci95=interval,
        log_ratios=ratios,
        placement_error=found.placement_error,
        process_error=process_error or None,
        claimed_us=statistics.fmean(block.claimed_ns for block in found.blocks) / 1e3,
        subtracted_us=(
            statistics.fmean(block.subtracted_ns for block in found.blocks) + device.calibration.call_overhead_ns
        )
        / 1e3,
        checked=found.checked,
        calls=found.calls,
        blocks=len(found.blocks),
        discarded=found.discarded,
        variant=variant,
    )
    return _with_errors(result, tally)


def with_bounds(
    result: WorkloadResult, sol_us: float | None, floor_us: float | None, rates: BoundRates | None = None
) -> WorkloadResult:
    """Add bound, floor and score. Below the floor by more than the clock's error: SUSPECT, with both numbers.

    Args:
        result: of a workload.
        sol_us: its bound.
        floor_us: its floor.
        rates: where the device's rates in both come from.
    """
    latency, baseline = result.latency_us, result.baseline_us
    if latency is None or baseline is None:
        return result.model_copy(update={"sol_us": sol_us, "floor_us": floor_us, "bound_rates": rates})
    update: dict[str, object] = {"sol_us": sol_us, "floor_us": floor_us, "bound_rates": rates}
    if sol_us is not None:
        update["score"] = score(latency, baseline, sol_us)
    if floor_us is not None and latency < least_possible_us(floor_us):
        update["verdict"] = Verdict.SUSPECT
        update["reason"] = f"{latency:.3f} us a call is below the floor of {floor_us:.3f} us that the hardware allows"
    return result.model_copy(update=update)


def overall(results: Sequence[WorkloadResult]) -> tuple[Verdict, str | None]:
    """The verdict of all workloads together and its one line, which names the workload."""
    for result in sorted(results, key=lambda each: each.verdict not in _GRAVEST):
        if result.verdict is not Verdict.PASSED:
            return result.verdict, f"workload {result.uuid}: {result.reason}"
    return Verdict.PASSED, None


def weakest_trust(results: Sequence[WorkloadResult], device: Device) -> Trust:
    """The trust of the whole: that of its least trusted workload."""
    seen = [
        device.trust(result.latency_us * 1e3, result.claimed_us * 1e3)
        for result in results
        if result.latency_us is not None and result.claimed_us is not None
    ]
    return min(seen, key=_WEAKEST.index, default=Trust.BOUNDED)
