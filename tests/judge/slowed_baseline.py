"""The real judge on the CPU, with a baseline that was twice as fast before the candidate's process existed.

Run it in place of `python -m harness.judge`. With HARNESS_TEST_STILL_FAST=1 the baseline is as fast again after the
candidate's process has ended, as if the candidate had slowed it. Otherwise it stays slow, as if the host were slow.
"""

from __future__ import annotations

import os
from typing import Any

from harness.judge import workload_race
from harness.judge.__main__ import main
from harness.judge.baseline.slowdown import time_baseline_alone
from harness.judge.devices.cpu_clock import CpuClock

_first_times_ns: list[float] = []


def alone(*arguments: Any) -> tuple[float, ...]:
    """Replace the judge's function of this name: divide the first times, or all of them, by two."""
    fast = not _first_times_ns or os.environ.get("HARNESS_TEST_STILL_FAST") == "1"
    times_ns = time_baseline_alone(*arguments)
    _first_times_ns.append(times_ns[0])
    return tuple(time_ns / (2 if fast else 1) for time_ns in times_ns)


if __name__ == "__main__":
    CpuClock.work_outlasts_stop = True
    setattr(workload_race, "time_baseline_alone", alone)  # noqa: B010
    main()
