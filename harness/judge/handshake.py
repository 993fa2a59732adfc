"""A batch's handshake on a CPU: calibrated until it is steady, refused where it is an outlier.

While other programs keep the machine busy, a handshake takes up to ten times as long as usual (1,142 us was seen, where
80 to 165 are usual). To subtract that from batches of quieter moments would flatter short calls.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.workspace.files import atomic_write

_FEWEST, _MOST = 3, 12
_STEADY = 1.15
"""Calibration ends when the two least values agree to within this factor."""
_OUTLIER = 2.0
"""Times the usual handshake of this host. Honest calibrations differ by up to 1.7 with the processes they use."""
_REMEMBERED = 9
_FILE = "handshakes.json"


@dataclass(frozen=True)
class HandshakeCalibration:
    """Overhead of a batch, to be subtracted."""

    ns: float
    refused_ns: float | None = None
    """The least calibration, where it was an outlier; `ns` is then the usual handshake."""


class _Remembered(BaseModel):
    """Accepted calibrations in ns by host and configuration, oldest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = 1
    handshakes: dict[str, tuple[float, ...]] = {}


def calibrate_handshake(calibrate: Callable[[], float], usual_ns: float | None) -> HandshakeCalibration:
    """Calibrate until the two least values agree and are not far above the usual one. The least counts.

    Args:
        calibrate: one calibration, in ns.
        usual_ns: of this host, from earlier judges; None if there were none.
    """
    most_ns = math.inf if usual_ns is None else _OUTLIER * usual_ns
    seen: list[float] = []
    while len(seen) < _MOST:
        seen = sorted([*seen, calibrate()])
        if len(seen) >= _FEWEST and seen[1] <= _STEADY * seen[0] and seen[0] <= most_ns:
            break
    if usual_ns is not None and seen[0] > most_ns:
        return HandshakeCalibration(usual_ns, refused_ns=seen[0])
    return HandshakeCalibration(seen[0])


def usual_handshake_ns(cache: Path, key: str) -> float | None:
    """Return the median of the last accepted calibrations; None if there is none.

    Args:
        cache: the judge's directory.
        key: names the host and whatever else a handshake depends on.
    """
    return statistics.median(known) if (known := _read(cache).handshakes.get(key)) else None


def remember_handshake(cache: Path, key: str, handshake: HandshakeCalibration) -> None:
    """Keep an accepted calibration for later judges."""
    if handshake.refused_ns is None:
        known = _read(cache)
        last = (*known.handshakes.get(key, ()), handshake.ns)[-_REMEMBERED:]
        atomic_write(cache / _FILE, _Remembered(handshakes={**known.handshakes, key: last}).model_dump_json())


def _read(cache: Path) -> _Remembered:
    with contextlib.suppress(OSError, ValidationError):
        return _Remembered.model_validate_json((cache / _FILE).read_bytes())
    return _Remembered()
