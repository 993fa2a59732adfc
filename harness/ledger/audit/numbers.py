"""Derivation of an entry's numbers from the parts that the entry records, and comparison with the entry."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.model.entry import Entry
from harness.model.interval import FIRST_BLOCKS, SetupError, summarise, workload_interval
from harness.model.judging import Summary, WorkloadResult
from harness.model.verdict import EntryKind, Verdict, least_possible_us

_RELATIVE = 1e-6
"""Relative tolerance: far below the noise of measurements, far above rounding of the last digits."""

Fault = tuple[str, object, object]
"""Message, expected value, actual value."""


def faults(entry: Entry) -> Iterator[Fault]:
    """Yield every number of an entry that does not follow from its parts."""
    uuids: set[str] = set()
    for workload in entry.workloads:
        for message, expected, actual in _workload_faults(workload):
            yield f"workload {workload.uuid}: {message}", expected, actual
        if workload.uuid in uuids:
            yield f"workload {workload.uuid} occurs twice", "once", "twice"
        uuids.add(workload.uuid)
    if entry.kind in {EntryKind.EVALUATION, EntryKind.CONFIRMATION}:
        yield from _summary_faults(entry)


def _workload_faults(workload: WorkloadResult) -> Iterator[Fault]:
    if workload.verdict is not Verdict.PASSED and not workload.reason:
        yield f"the verdict {workload.verdict} needs a reason", "one line", workload.reason
    if workload.log_ratios and workload.blocks != len(workload.log_ratios):
        yield "blocks is not the number of log_ratios", len(workload.log_ratios), workload.blocks
    if workload.verdict is Verdict.PASSED and workload.speedup is not None and workload.blocks < FIRST_BLOCKS:
        yield "too few blocks for a speedup", f"at least {FIRST_BLOCKS}", workload.blocks
    if workload.checked > workload.calls:
        yield "more calls checked than made", f"at most {workload.calls}", workload.checked
    yield from _possibility_faults(workload)
    yield from _speedup_faults(workload)
    yield from _score_faults(workload)


def _possibility_faults(workload: WorkloadResult) -> Iterator[Fault]:
    """Yield values that no hardware and no clock can produce."""
    for name in ("latency_us", "baseline_us", "sol_us", "floor_us"):
        value = getattr(workload, name)
        if value is not None and (value < 0 or not math.isfinite(value) or (value == 0 and name.endswith("y_us"))):
            yield f"{name} is impossible", "a time above 0", value
    latency, floor = workload.latency_us, workload.floor_us
    if workload.verdict is Verdict.PASSED and latency is not None and floor is not None:
        lowest_us = least_possible_us(floor)
        if latency < lowest_us:
            yield "PASSED below the floor that the hardware allows", f"at least {lowest_us:.4g} us", f"{latency:.4g} us"
    if workload.matched is not None and not 0 <= workload.matched <= 1:
        yield "matched is not a share", "0 to 1", workload.matched


def _speedup_faults(workload: WorkloadResult) -> Iterator[Fault]:
    if len(workload.log_ratios) > 1:
        speedup, interval = workload_interval(workload.log_ratios, SetupError.of(workload))
        if not _agree(workload.speedup, speedup):
            yield "speedup is not exp(mean of log_ratios)", speedup, workload.speedup
        if not _agree_as_intervals(workload.speedup_ci95, interval):
            yield "speedup_ci95 does not follow from log_ratios", interval, workload.speedup_ci95
    elif workload.speedup is not None or workload.speedup_ci95 is not None:
        yield "a speedup without the log_ratios that it follows from", None, workload.speedup
    if workload.speedup is not None:
        times = workload.baseline_us, workload.latency_us
        ratio = times[0] / times[1] if times[0] and times[1] else None
        if not _agree(workload.speedup, ratio):
            yield "speedup is not baseline_us / latency_us", ratio, workload.speedup


def _score_faults(workload: WorkloadResult) -> Iterator[Fault]:
    """Check S = 1 / (1 + (T_k - T_sol) / (T_b - T_sol)); undefined if the baseline is at the bound or S is negative."""
    latency, baseline, sol = workload.latency_us, workload.baseline_us, workload.sol_us
    expected = None
    if latency is not None and baseline is not None and sol is not None and baseline > sol > 0:
        share = 1 + (latency - sol) / (baseline - sol)
        expected = 1 / share if share > 0 else None
    if not _agree(workload.score, expected):
        yield "score does not follow from latency_us, baseline_us and sol_us", expected, workload.score


def _summary_faults(entry: Entry) -> Iterator[Fault]:
    summary = entry.summary or Summary(passed=0, of=0)
    expected = summarise(entry.workloads)
    if entry.workloads and (summary.passed, summary.of) != (expected.passed, expected.of):
        yield "summary counts", f"{expected.passed} of {expected.of}", f"{summary.passed} of {summary.of}"
    if not _agree(summary.speedup, expected.speedup):
        yield "summary.speedup is not the geometric mean of the workloads'", expected.speedup, summary.speedup
    if not _agree_as_intervals(summary.speedup_ci95, expected.speedup_ci95):
        yield "summary.speedup_ci95 does not follow from log_ratios", expected.speedup_ci95, summary.speedup_ci95
    if not _agree(summary.score, expected.score):
        yield "summary.score is not the mean of the workloads'", expected.score, summary.score
    if entry.verdict is Verdict.PASSED and (summary.passed < summary.of or not entry.workloads):
        yield "PASSED, but not every workload passed", f"{summary.of} of {summary.of}", f"{summary.passed}"


def _agree(recorded: float | None, derived: float | None) -> bool:
    if recorded is None or derived is None:
        return recorded is derived
    return math.isclose(recorded, derived, rel_tol=_RELATIVE)


def _agree_as_intervals(recorded: tuple[float, float] | None, derived: tuple[float, float] | None) -> bool:
    if recorded is None or derived is None:
        return recorded is derived
    return _agree(recorded[0], derived[0]) and _agree(recorded[1], derived[1])
