"""The pure functions of the CPU benchmark: the selection of rows from a results file, and the lines of the table."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.cpu_intervals import PARTS, Plan, evenly
from benchmarks.measured_rows import MeasuredRow, append_row, read_rows

_LIKE = MeasuredRow(part="honest", case="", judge_version="v1", busy=0, workloads=6, verdict="", judge_s=0.0)


def _row(case: str = "rope_gqa", speedup: float | None = 1.0, **values: object) -> MeasuredRow:
    verdict = "PASSED" if speedup else "SUSPECT"
    interval = {"ci95_low": speedup - 0.02, "ci95_high": speedup + 0.02} if speedup else {"reason": "too quick"}
    update = {"case": case, "verdict": verdict, "speedup": speedup, "judge_s": 2.0, **interval, **values}
    return _LIKE.model_copy(update=update)


def _table(part: str, rows: list[MeasuredRow], file: Path) -> dict[str, str]:
    """Return the table of complete rows, without starting a judge."""
    template = _LIKE.model_copy(update={"part": part})
    for row in rows:
        append_row(file, row.model_copy(update={"part": part}))
    return dict(PARTS[part][0](Plan(template, 0, file.parent, file)))


def test_rows_of_another_judge_load_or_part_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    for values in ({}, {"judge_version": "v0"}, {"busy": 2}, {"workloads": 2}, {"part": "repeated"}):
        append_row(file, _row(**values))
    assert read_rows(file, _LIKE) == [_row()]


def test_a_line_that_was_cut_off_is_left_out_and_the_next_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append_row(file, _row())
    file.write_bytes(file.read_bytes() + b'{"part":"hon')
    append_row(file, _row(speedup=1.5))
    assert [row.speedup for row in read_rows(file, _LIKE)] == [1.0, 1.5]


def test_intervals_that_contain_one_are_counted_and_failures_named(tmp_path: Path) -> None:
    rows = [_row(speedup=speedup) for speedup in (0.99, 1.01, 1.05, None)]
    table = _table("against-itself", rows, tmp_path / "rows.jsonl")
    assert table["rope_gqa against itself"].startswith("2 of 4 contain 1; ")
    assert table["rope_gqa against itself"].endswith("SUSPECT: too quick")


def test_verdicts_of_honest_solutions_are_counted(tmp_path: Path) -> None:
    table = _table("honest", [_row(), _row(), _row("rmsnorm_h4096", None)], tmp_path / "rows.jsonl")
    assert table["3 honest evaluations"] == "2 PASSED, 1 SUSPECT"
    assert table["reason"] == "rmsnorm_h4096: too quick"


def test_pairs_are_those_of_the_longest_series_of_one_judge(tmp_path: Path) -> None:
    rows = [_row("one judge", speedup, session="a") for speedup in (1.0, 1.01, 1.2)]
    rows += [_row("one judge", 9.0, session="interrupted"), _row("fresh judges", 1.0), _row("fresh judges", 1.0)]
    table = _table("repeated", rows, tmp_path / "rows.jsonl")
    assert table["3 evaluations, one judge"].startswith("2 of 3 pairs do not overlap (66.7%)")
    assert table["5 evaluations, both"].startswith("4 of 10 pairs do not overlap (40.0%)")


def test_the_error_of_processes_is_what_blocks_do_not_explain(tmp_path: Path) -> None:
    """ln(speed-up) is +-3 %, of which blocks explain 1 %: sqrt((0.03**2 * 2 - 0.01**2) / 2) = 2.92 % per side."""
    rows = [_row("one judge", math.exp(log), session="a", block_error=0.01) for log in (-0.03, 0.03)]
    table = _table("repeated", rows, tmp_path / "rows.jsonl")
    assert "process error of a side 2.92%" in table["2 evaluations, one judge"]


def test_confirmations_are_entries_too(tmp_path: Path) -> None:
    rows = [
        _row("rmsnorm_h4096", to_entry_s=6.0),
        _row("rmsnorm_h4096", to_entry_s=5.0, to_confirmation_s=9.0),
    ]
    table = _table("commit-to-entry", rows, tmp_path / "rows.jsonl")
    assert table["commit to the evaluation's entry"] == "median 5.5 s, worst 6.0 s, of 2"
    assert table["seconds for each entry, confirmations counted"] == "5.0 s (3 entries)"


@pytest.mark.parametrize(("count", "chosen"), [(1, "a"), (2, "ae"), (3, "ace"), (5, "abcde"), (9, "abcde")])
def test_workloads_are_chosen_from_the_first_to_the_last(count: int, chosen: str) -> None:
    assert "".join(evenly("abcde", count)) == chosen
