"""The rates that a benchmark of tuner runs computes from ledger entries."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tuner_run import by_device, table


def entry(kind: str, device: str, at: str, **fields: object) -> dict[str, Any]:
    return {"kind": kind, "device": {"name": "GPU", "id": device}, "at": f"2026-01-01T00:{at}Z", **fields}


ENTRIES = [
    {"kind": "champion", "at": "2026-01-01T00:00:01Z"},
    entry("baseline", "a", "00:30"),
    entry("evaluation", "a", "00:40"),
    entry("confirmation", "a", "00:50"),
    entry("evaluation", "a", "01:00"),
    entry("evaluation", "a", "01:30", answered_from="abc"),
    entry("baseline", "b", "00:50"),
    entry("evaluation", "b", "01:05"),
    entry("evaluation", "b", "01:10", cost={"build_s": 1.0, "judge_s": 3.0}),
    entry("baseline", "c", "00:30"),
    entry("evaluation", "c", "00:40"),
]


def test_the_rate_of_a_device_counts_from_its_first_timed_candidate_to_its_last() -> None:
    devices = by_device(ENTRIES)
    assert {name: run.rate for name, run in devices.items()} == pytest.approx(
        {"GPU a": 6.0, "GPU b": 12.0, "GPU c": 0.0}
    )
    assert (devices["GPU a"].baselines, devices["GPU a"].evaluations) == (1, 2)
    assert devices["GPU b"].busy == pytest.approx(0.8)


def test_the_last_row_adds_the_devices() -> None:
    assert table(by_device(ENTRIES)).splitlines()[-1].split() == ["all", "3", "5", "1", "18"]
