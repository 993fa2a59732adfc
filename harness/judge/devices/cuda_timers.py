"""The two ways of timing a call on a CUDA device: by the judge's own clock, and by device events."""

from __future__ import annotations

import math
import time
from typing import Protocol

from harness.judge.clock import LAUNCH_BOUND
from harness.judge.devices.cuda_cycle import CudaConnection, Cycle
from harness.judge.devices.cuda_memory import CudaMemory
from harness.judge.devices.cuda_statistics import bounded_process_error, held_calls
from harness.judge.devices.interface import Calibration, Reading
from harness.model.verdict import Trust

_BOUNDED = Calibration(0.0, 0.0, batch_ns=6_000_000, most_calls=10)
_PROCESS_SHARE = 0.0005
_PROCESS_NS = 40.0
"""Standard deviations of event readings between processes that run the same kernel: a share of a call, and ns."""
_MOST_CALLS, _FEWEST_CALLS = 10, 4
"""Calls of a batch that events time: of a problem with one workload, and of one with many."""


def calls_per_batch(workloads: int) -> int:
    """Return the largest number of calls in a batch that events time.

    The mean of n workloads counts. With 1 / sqrt(n) of the calls each, all of them together still have sqrt(n) times
    the calls of a problem with one workload.

    Args:
        workloads: number of the problem's workloads that are timed.
    """
    return max(_FEWEST_CALLS, round(_MOST_CALLS / math.sqrt(workloads)))


class CallTimer(Protocol):
    """Method by which a clock of a CUDA device times one call."""

    calibration: Calibration
    reads_events: bool
    """The runner times its calls by device events, and therefore runs no host code of a candidate."""

    def facts(self) -> dict[str, object]:
        """Return the overheads, for the entry's record of the device."""

    def most_calls(self, workloads: int) -> int:
        """Return the largest number of calls in a batch.

        Args:
            workloads: number of the problem's workloads that are timed.
        """

    def held_calls(self, connection: CudaConnection, count: int) -> frozenset[int]:
        """Return the indices of the calls of a batch that are held.

        Args:
            connection: the runner.
            count: calls of the batch.
        """

    def time_call(
        self, connection: CudaConnection, memory: CudaMemory, slot: int, placement: int, *, hold: bool, within_s: float
    ) -> Reading:
        """Make one call.

        Args:
            connection: the runner.
            memory: the workload's sets.
            slot: slot of the inputs, and of the captured outputs.
            placement: number of the placement.
            hold: wait for a random time before the request.
            within_s: timeout.
        """

    def process_error(self, latency_ns: float, bound_ns: float) -> float:
        """Return the standard deviation of ln(latency) between processes that run the same code.

        Args:
            latency_ns: latency of a call.
            bound_ns: lower bound of the call's time on the device; 0.0 if it is not known.
        """

    def trust(self, latency_ns: float) -> Trust:
        """Return the trust in a reading of this duration."""


class JudgesTimer(CallTimer):
    """The judge's own clock, from the request for a call until secret positions of its outputs have arrived."""

    reads_events = False

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self.calibration = _BOUNDED
        self.calibrated_at = 0.0

    def facts(self) -> dict[str, object]:
        """Return the overhead of a request, time of an empty call, and age of the calibration."""
        return {
            "around_us": round(self.calibration.call_overhead_ns / 1e3, 2),
            "dispatch_us": round(self.calibration.dispatch_ns / 1e3, 2),
            "calibration_age_s": round(time.monotonic() - self.calibrated_at),
        }

    def most_calls(self, workloads: int) -> int:
        """Return the same number for all: fewer calls would also show less of what a runner does between its calls."""
        del workloads
        return self.calibration.most_calls

    def held_calls(self, connection: CudaConnection, count: int) -> frozenset[int]:
        """Return a random choice; no call of trusted code is held."""
        return held_calls(count) if connection.trust.runs_untrusted_host_code else frozenset()

    def time_call(
        self, connection: CudaConnection, memory: CudaMemory, slot: int, placement: int, *, hold: bool, within_s: float
    ) -> Reading:
        """Make one call; see `Cycle.bounded`."""
        by = time.monotonic() + within_s
        return self._cycle.bounded(connection, memory, slot, placement, hold=hold, by=by)

    def process_error(self, latency_ns: float, bound_ns: float) -> float:
        """Return the standard deviation as measured for launches by a runner."""
        return bounded_process_error(latency_ns, bound_ns)

    def trust(self, latency_ns: float) -> Trust:
        """Return LAUNCH_BOUND for a call that is not much longer than a launch, else BOUNDED."""
        bound = LAUNCH_BOUND * self.calibration.dispatch_ns
        return Trust.LAUNCH_BOUND if latency_ns < bound else Trust.BOUNDED


class EventTimer(CallTimer):
    """Device events around a call, read by a trusted process.

    Args:
        cycle: makes the calls.
        event_overhead_ns: overhead of events around a kernel, measured at the start of the judge.
    """

    reads_events = True

    def __init__(self, cycle: Cycle, event_overhead_ns: float) -> None:
        self._cycle = cycle
        self.calibration = Calibration(
            0.0, 0.0, batch_ns=4_000_000, most_calls=_MOST_CALLS, call_overhead_ns=event_overhead_ns
        )

    def facts(self) -> dict[str, object]:
        """Return the overhead of events."""
        return {"events_us": round(self.calibration.call_overhead_ns / 1e3, 2)}

    def most_calls(self, workloads: int) -> int:
        """Return `calls_per_batch`."""
        return calls_per_batch(workloads)

    def held_calls(self, connection: CudaConnection, count: int) -> frozenset[int]:
        """Return no call: the process runs no host code of a candidate."""
        del connection, count
        return frozenset()

    def time_call(
        self, connection: CudaConnection, memory: CudaMemory, slot: int, placement: int, *, hold: bool, within_s: float
    ) -> Reading:
        """Make one call; see `Cycle.sealed`."""
        del hold
        return self._cycle.sealed(connection, memory, slot, placement, by=time.monotonic() + within_s)

    def process_error(self, latency_ns: float, bound_ns: float) -> float:
        """Return the standard deviation as measured for events (docs/clock.md)."""
        del bound_ns
        return math.hypot(_PROCESS_NS / latency_ns, _PROCESS_SHARE)

    def trust(self, latency_ns: float) -> Trust:
        """Return SEALED: events are trusted for calls of any duration."""
        del latency_ns
        return Trust.SEALED
