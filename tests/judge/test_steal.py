"""Steal time is counted for the processors of judge and runner, on virtual machines only."""

from __future__ import annotations

import os
from pathlib import Path

from harness.judge.devices.cpu_scheduling import Steal


def write(proc: Path, *stolen: int, flags: str = "fpu hypervisor vme") -> None:
    proc.mkdir(exist_ok=True)
    (proc / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    lines = [f"cpu{number} 1 2 3 4 5 6 7 {ticks} 0 0\n" for number, ticks in enumerate(stolen)]
    (proc / "stat").write_text("cpu  9 9 9 9 9 9 9 999 0 0\n" + "".join(lines) + "intr 1 2 3\n")


def test_steal_time_of_both_processors_counts(tmp_path: Path) -> None:
    affinity = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {0})
        write(tmp_path / "proc", 5, 7, 100)
        steal = Steal(tmp_path / "proc")
        before = steal.taken_ns(1)
        write(tmp_path / "proc", 6, 9, 500)
        assert steal.taken_ns(1) - before == 3 * 10_000_000, "only the judge's and the runner's processors count"
        assert steal.taken_ns(0) == 6 * 10_000_000, "one processor counts once"
        steal.close()
    finally:
        os.sched_setaffinity(0, affinity)


def test_a_physical_machine_has_no_steal_time(tmp_path: Path) -> None:
    write(tmp_path / "proc", 5, 7, flags="fpu vme")
    steal = Steal(tmp_path / "proc")
    assert steal.taken_ns(1) == 0
    steal.close()


def test_steal_time_of_this_machine_is_readable() -> None:
    steal = Steal()
    assert 0 <= steal.taken_ns(0) <= steal.taken_ns(0)
    steal.close()
