"""Calibration of a batch's handshake on a CPU: repeated until it is stable, and refused where it is an outlier.

While other programs keep the machine busy, a handshake takes up to ten times as long as usual (1,142 us was measured;
80 to 165 us are usual). Subtracting that from batches of quieter moments would make short calls look faster.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from harness.judge.clock import dispatch_ns, handshake_ns
from harness.judge.devices.interface import Batch, Clock, RunnerTrust, closing_connection
from harness.judge.input_data.layout import Layout, calibration_layout
from harness.judge.runners import Runner
from harness.model.base_models import StrictModel
from harness.runner.messages import Program
from harness.workspace.files import atomic_write

_FEWEST, _MOST = 3, 12
_STEADY = 1.15
"""Calibration ends when the two smallest values agree to within this factor."""
_OUTLIER = 2.0
"""Factor of the usual handshake of this host above which a calibration is refused. Honest calibrations differ by a
factor of up to 1.7 between the processes they use."""
_REMEMBERED = 9
_FILE = "handshakes.json"
_COPIED_BYTES, _COPIES = 1 << 20, 6
"""Work of the calibration batch: enough to use the caches at the ends of the batch as a real batch does."""
_DISPATCHES = 1000
_WITHIN_S = 60.0


@dataclass(frozen=True)
class HandshakeCalibration:
    """Overhead of a batch, which is subtracted from its time."""

    ns: float
    refused_ns: float | None = None
    """The smallest calibration, if it was an outlier; `ns` is then the usual handshake."""


def measure_overheads(clock: Clock, runner: Runner) -> tuple[float, float]:
    """Return the handshake of a batch and the dispatch of a call, in nanoseconds.

    Args:
        clock: of the CPU.
        runner: a new runner, which has ended when the function returns.
    """

    def batches(layout: Layout, calls: int) -> Callable[[], Batch]:
        memory = clock.memory(layout)
        clock.prepare(connection, layout, calls)
        return lambda: clock.time_calls(connection, memory, range(calls), _WITHIN_S)

    with closing_connection(clock, clock.open(runner, Program("empty"), RunnerTrust.REFERENCE)) as connection:
        handshake = handshake_ns(batches(calibration_layout(1, _COPIED_BYTES, (_COPIED_BYTES,)), _COPIES))
        return handshake, dispatch_ns(batches(calibration_layout(5, 64, (0,)), _DISPATCHES), _DISPATCHES)


class _Remembered(StrictModel):
    """Accepted calibrations in ns by host and configuration, oldest first."""

    format: int = 1
    handshakes: dict[str, tuple[float, ...]] = Field(default_factory=dict)


def calibrate_handshake(calibrate: Callable[[], float], usual_ns: float | None) -> HandshakeCalibration:
    """Calibrate until the two smallest values agree and are no outliers. Return the smallest value.

    Args:
        calibrate: returns one calibration in ns.
        usual_ns: usual handshake of this host by earlier judges; None if there were none.
    """
    limit_ns = math.inf if usual_ns is None else _OUTLIER * usual_ns
    handshakes_ns: list[float] = []
    while len(handshakes_ns) < _MOST:
        handshakes_ns = sorted([*handshakes_ns, calibrate()])
        agree = len(handshakes_ns) >= _FEWEST and handshakes_ns[1] <= _STEADY * handshakes_ns[0]
        if agree and handshakes_ns[0] <= limit_ns:
            break
    if usual_ns is not None and handshakes_ns[0] > limit_ns:
        return HandshakeCalibration(usual_ns, refused_ns=handshakes_ns[0])
    return HandshakeCalibration(handshakes_ns[0])


def usual_handshake_ns(cache: Path, key: str) -> float | None:
    """Return the median of the last accepted calibrations in ns; None if there is none.

    Args:
        cache: the judge's cache directory.
        key: identifies the host and the configuration that a handshake depends on.
    """
    handshakes_ns = _read(cache).handshakes.get(key)
    return statistics.median(handshakes_ns) if handshakes_ns else None


def remember_handshake(cache: Path, key: str, handshake: HandshakeCalibration) -> None:
    """Store an accepted calibration for later judges; ignore a refused one.

    Args:
        cache: the judge's cache directory.
        key: as of `usual_handshake_ns`.
        handshake: the calibration.
    """
    if handshake.refused_ns is None:
        handshakes = _read(cache).handshakes
        last = (*handshakes.get(key, ()), handshake.ns)[-_REMEMBERED:]
        atomic_write(cache / _FILE, _Remembered(handshakes={**handshakes, key: last}).model_dump_json())


def _read(cache: Path) -> _Remembered:
    with contextlib.suppress(OSError, ValidationError):
        return _Remembered.model_validate_json((cache / _FILE).read_bytes())
    return _Remembered()
