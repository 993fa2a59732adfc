"""`harness log --cost`: device time by problem and stage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.git.repo import Repo
from harness.ledger.ledger import Ledger
from harness.model.entry import EntryDraft
from harness.model.judging import Cost, JudgeStage
from harness.workspace.directories import Workspace
from tests.cli.test_audit import harness
from tests.command_line import call_harness
from tests.ledger.ledgers import PROBLEM, draft, make_workspace, ticking

SWIGLU = "starter/swiglu"


def _costing(entry_draft: EntryDraft, build_s: float, **seconds: float) -> EntryDraft:
    stages = {JudgeStage(name): time for name, time in {"build": build_s, **seconds}.items() if time}
    cost = Cost(build_s=build_s, judge_s=sum(seconds.values()), stages=stages)
    return entry_draft.model_copy(update={"cost": cost})


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    files = {f"problems/{problem}/definition.json": "{}" for problem in (PROBLEM, SWIGLU, "starter/rope")}
    workspace = make_workspace(tmp_path / "a workspace", files)
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        for entry_draft in (
            _costing(draft("baseline"), 0.0, opponent=4.0, compile=12.0),
            _costing(draft(cites=1), 1.0, candidate=2.0, reference=5.0),
            _costing(draft("confirmation", cites=2), 0.0, candidate=2.0, wait=0.02),
            draft("champion", cites=3),
            _costing(draft(problem=SWIGLU), 10.0, candidate=20.0, reference=10.0),
            draft(problem=SWIGLU, run="other"),  # 3 s without stages, like entries of earlier versions
        ):
            ledger.append(entry_draft)
    return workspace


def _cells(output: str) -> dict[str, dict[str, str]]:
    """Return problem -> heading -> cell of a printed table."""
    head, rule, *lines = output.splitlines()
    begins = [
        0,
        *(place + 1 for place in range(len(rule)) if rule[place] == " " and rule[place + 1 : place + 2] == "-"),
    ]
    ends = [*begins[1:], None]
    places = [slice(begin, end) for begin, end in zip(begins, ends, strict=True)]
    headings = [head[place].strip() for place in places]
    return {
        line[places[0]].strip(): dict(zip(headings, (line[place].strip() for place in places), strict=True))
        for line in lines
    }


def test_each_problem_has_its_seconds_and_the_share_of_each_stage(workspace: Workspace) -> None:
    completed = harness(workspace.root, "log", "--cost")
    assert (completed.returncode, completed.stderr) == (0, "")
    cells = _cells(completed.stdout)
    assert list(cells) == ["all problems", SWIGLU, PROBLEM]  # the largest total first
    assert cells[SWIGLU] == {
        "problem": SWIGLU, "entries": "2 eval", "total": "43.0 s", "median": "21.50 s", "wait": "-", "build": "23 %",
        "compile": "-", "candidate": "47 %", "opponent": "-", "reference": "23 %", "other": "7 %",
    }  # fmt: skip
    assert cells[PROBLEM]["entries"] == "1 baseline, 1 eval, 1 confirm"
    assert (cells[PROBLEM]["total"], cells[PROBLEM]["median"]) == ("26.0 s", "8.00 s")
    assert (cells[PROBLEM]["compile"], cells[PROBLEM]["wait"]) == ("46 %", "<1 %")
    assert (cells["all problems"]["total"], cells["all problems"]["candidate"]) == ("69.0 s", "35 %")


def test_the_costs_of_one_problem_and_one_run(workspace: Workspace) -> None:
    cells = _cells(harness(workspace.root, "log", SWIGLU, "--cost", "--run", "main").stdout)
    assert list(cells) == [SWIGLU]
    assert cells[SWIGLU]["total"] == "40.0 s"
    assert "other" not in cells[SWIGLU]


def test_scripts_get_the_seconds(workspace: Workspace) -> None:
    costs: dict[str, Any] = json.loads(harness(workspace.root, "log", "--cost", "--json").stdout)
    assert [cost["problem"] for cost in costs["problems"]] == [SWIGLU, PROBLEM]
    assert costs["problems"][0] == {
        "problem": SWIGLU,
        "entries": {"evaluation": 2},
        "total_s": 43.0,
        "median_s": 21.5,
        "stages": {"build": 10.0, "candidate": 20.0, "reference": 10.0, "other": 3.0},
    }
    assert costs["all"]["problem"] is None
    assert costs["all"]["entries"] == {"evaluation": 3, "baseline": 1, "confirmation": 1}
    assert sum(costs["all"]["stages"].values()) == pytest.approx(costs["all"]["total_s"])
    entries = json.loads(harness(workspace.root, "log", PROBLEM, "--json").stdout)
    assert [entry["stages"] for entry in entries][1:] == [
        {"build": 1.0, "candidate": 2.0, "reference": 5.0}, {"candidate": 2.0, "wait": 0.02}, {},
    ]  # fmt: skip


def test_a_narrow_screen_omits_the_smallest_stages(workspace: Workspace) -> None:
    environment = {**os.environ, "COLUMNS": "80"}
    lines = call_harness("log", "--cost", cwd=workspace.root, environment=environment).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "candidate" in lines[0]
    assert "wait" not in lines[0]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_no_entries_have_no_cost(workspace: Workspace, options: tuple[str, ...]) -> None:
    completed = harness(workspace.root, "log", "starter/rope", "--cost", *options)
    assert completed.returncode == 1
    assert "the ledger has no entries of starter/rope" in completed.stderr
    if options:
        assert json.loads(completed.stdout)["problems"] == []
