"""The pure functions of the protocol study: the remaining cells, and detectors and tables for recorded calls."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.protocol_study.cells import Cell, all_cells, select, shard
from benchmarks.protocol_study.results import COLUMNS, hold_alarm, load, remaining, render


def call(hold_us: float, latency_us: float, early_words: float = -1) -> list[float]:
    values = dict.fromkeys(COLUMNS, 1.0) | {
        "hold_us": hold_us, "probe_us": -1.0, "latency_us": latency_us, "early_words": early_words,
    }  # fmt: skip
    return [values[name] for name in COLUMNS]


def record(cell: Cell, calls: list[list[float]], status: str = "ok") -> dict[str, Any]:
    counts = [0] * len(calls)
    return {
        "cell": cell.identity, "fields": asdict(cell), "status": status, "reason": "no answer", "calls": calls,
        "empty": calls[:5], "wrong": counts, "changed": counts, "kernel_us": 100.0,
    }  # fmt: skip


def test_identities_are_unique_so_that_no_result_replaces_another() -> None:
    cells = all_cells()
    assert len({cell.identity for cell in cells}) == len(cells)


def test_shards_cover_every_cell_once() -> None:
    cells = select(["c"])
    assert sorted(c.identity for i in range(3) for c in shard(cells, i, 3)) == sorted(c.identity for c in cells)


def test_a_run_resumes_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    first, second, third = Cell("a"), Cell("b"), Cell("c")
    lines = [json.dumps(record(first, [])), json.dumps(record(second, [], "failed")), '{"cell": "c hon']
    path = tmp_path / "results.jsonl"
    path.write_text("\n".join(lines))
    assert remaining([first, second, third], load(path)) == [third]
    assert remaining([first, second, third], load(path), retry_failed=True) == [second, third]


def test_latency_that_falls_with_the_hold_is_an_alarm_and_latency_that_rises_is_not() -> None:
    early = [call(0, 100)] * 10 + [call(500, 10)] * 10
    honest = [call(0, 100)] * 10 + [call(500, 104)] * 10
    assert hold_alarm(early) is True
    assert hold_alarm(honest) is False
    assert hold_alarm(early[:15]) is None


def test_the_table_shows_the_false_gain_and_the_cells_that_failed() -> None:
    honest = record(Cell("c"), [call(0, 100)] * 30 + [call(500, 100, 0)] * 30)
    attack = record(Cell("c", "resident"), [call(0, 50)] * 30 + [call(500, 10, 256)] * 30)
    failed = record(Cell("b"), [], "failed")
    text = render([honest, attack, failed])
    row = next(line for line in text.splitlines() if "resident" in line).split()
    assert {"2.00", "10.00"} <= set(row)
    assert f"{Cell('b').identity}: no answer" in text
