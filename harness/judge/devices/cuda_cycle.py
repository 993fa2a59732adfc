"""One call in a runner of a CUDA device, from fresh inputs to captured outputs (ADR 30).

Only the inputs of this call exist in memory that the runner can reach, and its outputs are copied to memory of the
judge before the next inputs are written.
"""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass, field

import torch

from harness.judge.channel import ChannelTimeout, MalformedRecord
from harness.judge.clock import now_ns
from harness.judge.devices.cuda_conduct import Conduct
from harness.judge.devices.cuda_memory import POSITIONS, WORD, CudaMemory, OutputSample, is_poisoned, poison
from harness.judge.devices.cuda_placements import Placements
from harness.judge.devices.interface import Reading
from harness.judge.runners import Runner
from harness.runner import wire
from harness.runner.doorbell import Doorbell, Request
from harness.runner.driver import PreparedLaunch
from harness.runner.launcher import Trusted

_SPINS = 20_000
"""Reads of the page between two looks at the runner's socket: about a millisecond."""
_HOLD_NS = 1_000_000
"""The longest hold."""
_PROBED, _PROBES = 3, 21
"""One held call in so many has a probe; and calibration so many."""
_LEAST_COPY_BYTES = 256 << 10


@dataclass
class Line:
    """A runner's connection to a CUDA device: its doorbell, its memory, and what is known of its conduct."""

    runner: Runner
    page: int
    """File descriptor of the doorbell's page."""
    ours: bool
    """No host code of a candidate runs in it."""
    conduct: Conduct
    placements: Placements | None = None
    has_served: bool = False
    """True after its first batch of calls on its workload, in which it may compile."""
    offset_ns: float = 0.0
    """Nanoseconds that events around any kernel read more in this process than in the judge's."""
    _number: int = 0
    _doorbell: Doorbell = field(init=False)

    def __post_init__(self) -> None:
        self._doorbell = Doorbell(self.page)

    def request(self, request: Request, deadline: float, placement: int = 0) -> int:
        """Ask and wait for the answer, with the processor busy; returns when it was asked (`now_ns`).

        Raises:
            ChannelClosed, ChannelTimeout, MalformedRecord: as of the runner's socket.
            RunnerFailed: the runner reported a failure.
        """
        self._number += 1
        self._doorbell.prepare(request, placement)
        begin = now_ns()
        self._doorbell.ring(self._number)
        while not self._doorbell.is_answered(self._number, _SPINS):
            try:
                record = self.runner.channel.receive(0.0)
            except ChannelTimeout:
                if time.monotonic() > deadline:
                    raise
                continue
            self.runner.accept(record)
            raise MalformedRecord(f"said {record.code.name} during a call")
        return begin

    @property
    def claimed_ns(self) -> int:
        """Duration of the last call as the runner says; never negative."""
        return max(0, self._doorbell.claimed_ns)

    def drop_memory(self) -> None:
        """Give back the placements."""
        if self.placements is not None:
            self.placements.close()
            self.placements = None


class Cycle:
    """Makes calls, one after the other, and reads the clock.

    Args:
        trusted: the judge's kernels.
        probe: a kernel of the judge of about 20 us.
    """

    def __init__(self, trusted: Trusted, probe: PreparedLaunch) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        self._trusted, self._probe, self._runtime = trusted, probe, cupy.cuda.runtime
        self._words = torch.empty(POSITIONS, dtype=torch.int64).pin_memory()
        self._staged = torch.empty(0, dtype=torch.uint8)

    def bounded(self, line: Line, memory: CudaMemory, slot: int, placement: int, *, hold: bool, by: float) -> Reading:
        """One call by the judge's clock, from the request to the arrival of secret positions of the outputs.

        Between the ping and that arrival no kernel of the judge runs and nothing is copied within the device, either of
        which would switch contexts; except for a probe, in a call that does not count.

        Args:
            line: the runner.
            memory: the workload's sets.
            slot: which set is given, and where its outputs are kept.
            placement: where.
            hold: wait at random before asking.
            by: `time.monotonic` at which it is a timeout.
        """
        assert line.placements is not None  # noqa: S101 - the runner was prepared
        inputs, outputs = line.placements.at(placement)
        poison(outputs, memory.layout, memory.given[slot])
        whole = line.placements.whole(placement)
        staged = self._stage(memory.given[slot], whole)
        self._trusted.displace.run()
        _wait()
        line.request(Request.PING, by)
        whole[: len(staged)].copy_(staged, non_blocking=True)
        _wait()
        memory.give_scalars(slot, placement)
        probe_ns = self._hold() if hold else None
        look, sample = OutputSample.draw(len(outputs)), OutputSample.draw(len(outputs))
        before = self._read(outputs, look)  # also brings the way of the next one into the caches
        begin = line.request(Request.CALL, by, placement)
        after = self._read(outputs, sample)
        end = now_ns()
        memory.capture(line.runner, slot, (inputs, outputs), (sample, after))
        early = not is_poisoned(before, memory.layout, look)
        return Reading(end - begin, line.claimed_ns, placement, hold, early, probe_ns)

    def sealed(self, line: Line, memory: CudaMemory, slot: int, placement: int, *, by: float) -> Reading:
        """One call by the events that the trusted launcher in the runner reads."""
        assert line.placements is not None  # noqa: S101 - the runner was prepared
        inputs, outputs = line.placements.at(placement)
        poison(outputs, memory.layout, memory.given[slot])
        inputs.copy_(memory.given[slot])
        memory.give_scalars(slot, placement)
        _wait()
        line.request(Request.CALL, by, placement)
        memory.capture(line.runner, slot, (inputs, outputs))
        ns = max(1, round(line.claimed_ns - line.offset_ns))
        return Reading(ns, line.claimed_ns, placement)

    def probe_beside(self, line: Line, by: float) -> float:
        """Median duration in nanoseconds of the probe while a runner that does nothing has its context current."""
        line.runner.processes.resume()
        line.runner.channel.send_call(0, ())
        found = []
        for _ in range(_PROBES):
            line.request(Request.PING, by)
            found.append(self._probe_once())
        line.request(Request.END, by)
        line.runner.channel.expect(wire.Code.DONE, by)
        line.runner.stop()
        return statistics.median(found)

    def _stage(self, given: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """The inputs in pinned memory of the judge, and what follows them at the placement; there after a wait.

        At least `_LEAST_COPY_BYTES`, because the driver sends less through the compute queue, which switches contexts.
        """
        size = max(len(given), min(len(whole), _LEAST_COPY_BYTES))
        if len(self._staged) < size:
            self._staged = torch.empty(size, dtype=torch.uint8).pin_memory()
        staged = self._staged[:size]
        staged[: len(given)].copy_(given, non_blocking=True)
        if size > len(given):
            staged[len(given) :].copy_(whole[len(given) : size], non_blocking=True)
        return staged

    def _hold(self) -> int | None:
        """Wait, in one of `_PROBED` cases with a probe, of which the duration is returned."""
        end = now_ns() + secrets.randbelow(_HOLD_NS)
        probe_ns = None if secrets.randbelow(_PROBED) else self._probe_once()
        while now_ns() < end:
            pass
        return probe_ns

    def _probe_once(self) -> int:
        """Duration of the probe, its launch and its end included."""
        begin = now_ns()
        self._probe.run()
        _wait()
        return now_ns() - begin

    def _read(self, outputs: torch.Tensor, sample: OutputSample) -> torch.Tensor:
        """A sample of the outputs as it is now: copied to pinned memory over PCIe, and waited for."""
        runtime = self._runtime
        runtime.memcpy2DAsync(
            self._words.data_ptr(), WORD, outputs.data_ptr() + sample.offset, sample.pitch, WORD, POSITIONS,
            runtime.memcpyDeviceToHost, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        _wait()
        return self._words.clone()


def _wait() -> None:
    torch.cuda.current_stream().synchronize()
