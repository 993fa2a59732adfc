"""The real judge on the CPU, whose memory seems to lack.

Run it in place of `python -m harness.judge`. The file HARNESS_TEST_FAULT contains the name of a fault:

- `once`: the first preparation of the baseline's runner fails, and the second one of the candidate's.
- `baseline`: each preparation of the baseline's runner fails.
- `baseline-alone`: the same, on a device with figures of its memory, which no other program uses.

The file `failures` in the same directory lists the sides of the preparations that failed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.judge.__main__ import main
from harness.judge.devices.cpu_clock import CpuClock, CpuConnection
from harness.judge.devices.cpu_hardware import CpuHardware
from harness.judge.devices.interface import RunnerTrust
from harness.judge.input_data.layout import Layout
from harness.judge.memory_plan import MemoryState
from harness.judge.runners import NoDeviceMemory
from tests.judge.planner_stand_in import memory_state

_prepare = CpuClock.prepare
_preparations = {RunnerTrust.CANDIDATE: 0, RunnerTrust.REFERENCE: 0}
_FAILS_ONCE = {RunnerTrust.CANDIDATE: 2, RunnerTrust.REFERENCE: 1}
"""Number of the preparation of each side that fails."""


def _fault() -> str:
    file = Path(os.environ["HARNESS_TEST_FAULT"])
    return file.read_text() if file.exists() else ""


def prepare(
    self: CpuClock, connection: CpuConnection, layout: Layout, slots: int, *, variant: str = "", **options: Any
) -> None:
    """Replace the clock's method: fail according to the fault. The judge's calibration never fails."""
    if variant or connection.trust is RunnerTrust.CANDIDATE:
        _preparations[connection.trust] += 1
        is_once = _fault() == "once" and _preparations[connection.trust] == _FAILS_ONCE[connection.trust]
        if is_once or (variant and _fault().startswith("baseline")):
            with Path(os.environ["HARNESS_TEST_FAULT"]).with_name("failures").open("a") as failures:
                failures.write(f"{connection.trust}\n")
            raise NoDeviceMemory("no memory for placements")
    _prepare(self, connection, layout, slots, variant=variant, **options)


def state(_: CpuHardware) -> MemoryState | None:
    """Replace the hardware's method: return figures if the fault includes them."""
    return memory_state() if _fault() == "baseline-alone" else None


if __name__ == "__main__":
    setattr(CpuClock, "prepare", prepare)  # noqa: B010
    setattr(CpuHardware, "memory_state", state)  # noqa: B010
    main()
