"""One timed call in a runner of a CUDA device, from writing the inputs to capturing the outputs (ADR 30).

The runner's memory contains the inputs of this call only. The judge copies the outputs to its own memory before it
writes the next inputs.
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
from harness.judge.devices.interface import Connection, Reading
from harness.runner import wire
from harness.runner.doorbell import Doorbell, Request
from harness.runner.driver import PreparedLaunch
from harness.runner.launcher import TrustedKernels

_SPINS = 20_000
"""Reads of the page between two reads of the runner's socket: about a millisecond."""
_HOLD_NS = 1_000_000
"""Longest hold."""
_HOLDS_PER_PROBE, _CALIBRATION_PROBES = 3, 21
"""One held call in this number has a probe; and number of probes of a calibration."""
_MIN_COPY_BYTES = 256 << 10
"""The driver sends smaller copies through the compute queue, which switches contexts."""


@dataclass(eq=False)
class CudaConnection(Connection):
    """A runner on a CUDA device: its doorbell, its memory, and observations of its conduct."""

    page: int
    """File descriptor of the doorbell's page."""
    conduct: Conduct
    placements: Placements | None = None
    captured: torch.Tensor | None = None
    """See `cuda_memory.Captures`."""
    has_served: bool = False
    """True after its first batch of calls on its workload, in which it may compile."""
    offset_ns: float = 0.0
    """Difference in nanoseconds of event readings between this process and the judge's process."""
    _number: int = 0
    _doorbell: Doorbell = field(init=False)

    def __post_init__(self) -> None:
        self._doorbell = Doorbell(self.page)

    def request(self, request: Request, deadline: float, placement: int = 0) -> int:
        """Send a request, busy-wait for the answer, and return the time of the request (`now_ns`).

        Args:
            request: kind of the request.
            deadline: value of `time.monotonic` at which the request times out.
            placement: number of the placement for a call.

        Raises:
            ChannelClosed: the runner closed its socket.
            ChannelTimeout: the deadline has passed.
            MalformedRecord: the runner sent something else.
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
            raise MalformedRecord(f"sent {record.code.name} during a call")
        return begin

    @property
    def claimed_ns(self) -> int:
        """Duration of the last call in nanoseconds, as the runner reports it; never negative."""
        return max(0, self._doorbell.claimed_ns)

    def drop_memory(self) -> None:
        """Release the placements and the captured outputs."""
        self.captured = None
        if self.placements is not None:
            self.placements.close()
            self.placements = None


class Cycle:
    """Makes consecutive calls and times them.

    Args:
        trusted: the judge's kernels.
        probe: a kernel of the judge that takes about 20 us.
    """

    def __init__(self, trusted: TrustedKernels, probe: PreparedLaunch) -> None:
        import cupy  # noqa: PLC0415 - only where there is a GPU

        self._trusted, self._probe, self._runtime = trusted, probe, cupy.cuda.runtime
        self._stream = torch.cuda.current_stream()
        self._words = torch.empty(POSITIONS, dtype=torch.int64).pin_memory()
        self._staged = torch.empty(0, dtype=torch.uint8)

    def bounded(
        self, line: CudaConnection, memory: CudaMemory, slot: int, placement: int, *, hold: bool, by: float
    ) -> Reading:
        """Time one call by the judge's clock, from the request to the arrival of secret positions of the outputs.

        Between the ping and this arrival the judge runs no kernel and copies nothing within the device, because both
        would switch contexts. The exception is a probe in a held call, which does not count.

        Args:
            line: the runner.
            memory: the workload's sets.
            slot: slot of the inputs, and of the captured outputs.
            placement: number of the placement.
            hold: wait for a random time before the request.
            by: value of `time.monotonic` at which the call times out.
        """
        assert line.placements is not None  # noqa: S101 - the runner was prepared
        inputs, outputs = line.placements.at(placement)
        poison(outputs, memory.layout, memory.input_bytes[slot])
        whole = line.placements.whole(placement)
        staged = self._stage(memory.input_bytes[slot], whole)
        self._trusted.displace.run()
        self._stream.synchronize()
        line.request(Request.PING, by)
        whole[: len(staged)].copy_(staged, non_blocking=True)
        self._stream.synchronize()
        memory.write_scalars(slot, placement)
        probe_ns = self._hold() if hold else None
        sample_before, sample_after = OutputSample.draw(len(outputs)), OutputSample.draw(len(outputs))
        words_before = self._read(outputs, sample_before)  # also loads the code of the next read into the caches
        begin = line.request(Request.CALL, by, placement)
        words_after = self._read(outputs, sample_after)
        end = now_ns()
        memory.capture(line, slot, (inputs, outputs), (sample_after, words_after))
        early = not is_poisoned(words_before, memory.layout, sample_before)
        return Reading(end - begin, line.claimed_ns, placement, hold, early, probe_ns)

    def sealed(self, line: CudaConnection, memory: CudaMemory, slot: int, placement: int, *, by: float) -> Reading:
        """Make one call, which the trusted launcher in the runner times by device events.

        Args:
            line: the runner.
            memory: the workload's sets.
            slot: slot of the inputs, and of the captured outputs.
            placement: number of the placement.
            by: value of `time.monotonic` at which the call times out.
        """
        assert line.placements is not None  # noqa: S101 - the runner was prepared
        inputs, outputs = line.placements.at(placement)
        poison(outputs, memory.layout, memory.input_bytes[slot])
        inputs.copy_(memory.input_bytes[slot])
        memory.write_scalars(slot, placement)
        self._stream.synchronize()
        line.request(Request.CALL, by, placement)
        memory.capture(line, slot, (inputs, outputs))
        ns = max(1, round(line.claimed_ns - line.offset_ns))
        return Reading(ns, line.claimed_ns, placement)

    def idle_probe_ns(self, line: CudaConnection, by: float) -> float:
        """Return the median duration of the probe in nanoseconds while the context of an idle runner is current.

        Args:
            line: the runner.
            by: value of `time.monotonic` at which a request times out.
        """
        line.runner.processes.resume()
        line.runner.channel.send_call(0, ())
        durations_ns = []
        for _ in range(_CALIBRATION_PROBES):
            line.request(Request.PING, by)
            durations_ns.append(self._probe_once())
        line.request(Request.END, by)
        line.runner.channel.expect(wire.Code.DONE, by)
        line.runner.stop()
        return statistics.median(durations_ns)

    def _stage(self, input_bytes: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
        """Return inputs in pinned memory, followed by bytes of the placement up to `_MIN_COPY_BYTES`.

        The copies are complete after the next wait.
        """
        size = max(len(input_bytes), min(len(whole), _MIN_COPY_BYTES))
        if len(self._staged) < size:
            self._staged = torch.empty(size, dtype=torch.uint8).pin_memory()
        staged = self._staged[:size]
        staged[: len(input_bytes)].copy_(input_bytes, non_blocking=True)
        if size > len(input_bytes):
            staged[len(input_bytes) :].copy_(whole[len(input_bytes) : size], non_blocking=True)
        return staged

    def _hold(self) -> int | None:
        """Wait for a random time, in some cases with a probe, whose duration is returned."""
        end = now_ns() + secrets.randbelow(_HOLD_NS)
        probe_ns = None if secrets.randbelow(_HOLDS_PER_PROBE) else self._probe_once()
        while now_ns() < end:
            pass
        return probe_ns

    def _probe_once(self) -> int:
        """Return the nanoseconds of the probe, including its launch and synchronisation."""
        begin = now_ns()
        self._probe.run()
        self._stream.synchronize()
        return now_ns() - begin

    def _read(self, outputs: torch.Tensor, sample: OutputSample) -> torch.Tensor:
        """Copy a sample of the outputs over PCIe to pinned memory, wait, and return it."""
        runtime = self._runtime
        runtime.memcpy2DAsync(
            self._words.data_ptr(), WORD, outputs.data_ptr() + sample.offset, sample.pitch, WORD, POSITIONS,
            runtime.memcpyDeviceToHost, self._stream.cuda_stream,
        )  # fmt: skip
        self._stream.synchronize()
        return self._words.clone()
