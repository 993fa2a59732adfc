"""The tables in docs/trust.md name each tested attack and control once, and the least number is met."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.gpu import cases
from tests.gpu.attacks import ATTACKS as GPU_ATTACKS
from tests.gpu.controls import CONTROLS
from tests.judge.attacks import cases as cpu_cases
from tests.judge.attacks import test_answers, test_build, test_clock, test_input_values, test_reach, test_stopped

Row = dict[str, str]
_PAGE = Path(__file__).parents[2] / "docs/trust.md"
CPU_ATTACKS: tuple[cpu_cases.Attack, ...] = (
    *test_answers.ATTACKS, *test_build.READS, *test_build.RUNS, test_build.ENDLESS,
    *test_clock.LATER, *test_clock.REDUCERS, *test_clock.BENT,
    *test_reach.DENIED, *test_reach.CAUGHT, test_reach.ON_DISK, *test_stopped.ATTACKS,
    *test_input_values.ATTACKS,
)  # fmt: skip
_ON_A_GPU = {
    "batch", "left behind", "overlap", "L2", "resident", "wait value", "polling", "background", "early", "calibration",
    "host load", "mapped", "graph",
}  # fmt: skip
_ON_A_CPU = {"stopped", "warm"}


def _table(heading: str) -> list[Row]:
    """Return the first table below a heading, as rows by column."""
    _, _, below = _PAGE.read_text().partition(f"### {heading}\n")
    lines = [line.strip("| ").split(" | ") for line in below.partition("###")[0].splitlines() if line.startswith("|")]
    columns, _, *rows = lines
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _names(rows: Iterable[Row], column: str) -> list[str]:
    return [name for row in rows for name in row[column].split(", ")]


def _shown_by(attack: cases.Attack | cpu_cases.Attack) -> str:
    if not attack.gains or attack.fools != "speed":
        return "no gain"
    return f"without {', '.join(attack.off)}" if attack.off else "naive"


@pytest.mark.parametrize(
    ("heading", "attacks", "minimum", "classes"),
    [("GPU attacks", GPU_ATTACKS, 32, _ON_A_GPU), ("CPU attacks", CPU_ATTACKS, 22, _ON_A_CPU)],
    ids=["gpu", "cpu"],
)
def test_each_attack_is_in_the_table_once(
    heading: str, attacks: Iterable[cases.Attack | cpu_cases.Attack], minimum: int, classes: set[str]
) -> None:
    rows = _table(heading)
    shown_by = {attack.name: _shown_by(attack) for attack in attacks}
    assert Counter(_names(rows, "attacks")) == Counter(dict.fromkeys(shown_by, 1))
    for row in rows:
        of_row = {shown_by[name] for name in row["attacks"].split(", ")}
        assert row["shown by"] in of_row, row
        assert row["shown by"] != "no gain" or of_row == {"no gain"}, row
    assert len([row for row in rows if row["shown by"] != "no gain"]) >= minimum
    assert classes <= {row["class"] for row in rows}


def test_each_control_is_in_the_table_once() -> None:
    names = [control.name for control in CONTROLS]
    assert Counter(_names(_table("Honest controls on a GPU"), "controls")) == Counter(names)
    assert len(names) >= 26
