from __future__ import annotations

import os
from pathlib import Path

from harness.judge.devices.processors import BusyCores
from tests.waiting import wait_until


def _loops() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"time.monotonic" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_loops_have_the_lowest_priority_and_stop_while_something_is_timed() -> None:
    processor = min(os.sched_getaffinity(0))
    cores = BusyCores([processor])
    cores.begin()
    try:
        (pid,) = wait_until(_loops, event="its loop")
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        assert os.sched_getaffinity(pid) == {processor}
        cores.begin()
        assert _loops() == [pid]
        cores.pause()
        wait_until(lambda: _state(pid) == "T", event="the stop")
        cores.resume()
        wait_until(lambda: _state(pid) != "T", event="its continuation")
    finally:
        cores.end()
    assert _loops() == []
