"""The real judge on the CPU, with a baseline that was twice as fast before the candidate's process existed.

Run in the place of `python -m harness.judge`. HARNESS_TEST_STILL_FAST=1: it is as fast again when that has ended, as
where the candidate slowed it; otherwise its host became slow and stays so.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from harness.judge import evaluation
from harness.judge.__main__ import main
from harness.judge.baseline.alone import time_baseline_alone
from harness.judge.devices.cpu import CpuDevice

_first_times_ns: list[float] = []


def alone(*arguments: Any) -> tuple[float, ...]:
    """In the place of the judge's own: as a function of how often it was asked."""
    fast = not _first_times_ns or os.environ.get("HARNESS_TEST_STILL_FAST") == "1"
    times_ns = time_baseline_alone(*arguments)
    _first_times_ns.append(times_ns[0])
    return tuple(time_ns / (2 if fast else 1) for time_ns in times_ns)


def recalibrate(device: CpuDevice) -> None:
    """The device's own, and queued work that goes on."""
    usual(device)
    device.calibration = replace(device.calibration, work_outlasts_stop=True)


if __name__ == "__main__":
    usual = CpuDevice.recalibrate
    setattr(CpuDevice, "recalibrate", recalibrate)  # noqa: B010
    setattr(evaluation, "time_baseline_alone", alone)  # noqa: B010
    main()
