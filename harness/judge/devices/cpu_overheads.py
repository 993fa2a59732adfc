"""Overhead of the judge's clock on a CPU, measured with the judge's own calls in a clean runner."""

from __future__ import annotations

from collections.abc import Callable

from harness.judge.clock import dispatch_ns, handshake_ns
from harness.judge.devices.interface import Batch, Device
from harness.judge.input_data.layout import Field, Layout
from harness.judge.runners import Runner
from harness.runner import wire

_COPIED_BYTES, _COPIES = 1 << 20, 6
"""Work of the calibration batch: enough to use the caches at the ends of the batch as a real batch does."""
_DISPATCHES = 1000
_WITHIN_S = 60.0


def measure_overheads(device: Device, runner: Runner) -> tuple[float, float]:
    """Return the handshake of a batch and the dispatch of a call, in nanoseconds.

    Args:
        device: the CPU.
        runner: a new runner, which can be used for nothing else afterwards.
    """
    words, descriptors = device.grant(runner)
    runner.ask({"op": "load", "language": "empty", **words}, wire.Code.LOADED, _WITHIN_S, descriptors)

    def batches(layout: Layout, calls: int) -> Callable[[], Batch]:
        memory = device.memory(layout)
        runner.ask(layout.message(calls, ""), wire.Code.READY, _WITHIN_S)
        return lambda: device.batch(runner, memory, range(calls), _WITHIN_S)

    handshake = handshake_ns(batches(_layout(_COPIED_BYTES), _COPIES))
    return handshake, dispatch_ns(batches(_layout(0), _DISPATCHES), _DISPATCHES)


def _layout(copied: int) -> Layout:
    """Return the layout of a typical kernel's arguments, whose call copies this number of bytes."""
    size = max(64, copied)
    inputs = tuple(Field(f"a{n}", "uint8", (size,), n * size, size, None) for n in range(1 if copied else 5))
    stride = -(-len(inputs) * size // 4096) * 4096
    return Layout(inputs, (Field("out", "uint8", (size,), 0, size, None),), stride, stride, (copied,))
