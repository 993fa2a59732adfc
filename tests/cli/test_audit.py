"""`harness audit`, called by a person or a script."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.command_line import call_harness
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import git, make_workspace


def harness(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_harness(*arguments, cwd=directory, environment={**os.environ, "COLUMNS": "200"})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        place.enter(place.healthy())
    return place


def test_a_healthy_ledger_exits_0(place: Place) -> None:
    completed = harness(place.workspace.root, "audit")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("whole: 9 entries and 0 records in 1 file on main at ")


def test_each_break_is_named_and_exits_1(place: Place) -> None:
    place.commit({FILE: place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    completed = harness(place.workspace.root / "problems", "audit")
    assert completed.returncode == 1
    (row,) = [line for line in completed.stdout.splitlines() if line.startswith(FILE)]
    assert "chain broken: prev is not the hash of the document before" in row
    assert row.count("sha256:") == 2
    message = "harness: the ledger on main has 1 break\n  `git log -p main -- ledger/` shows who changed what"
    assert message in completed.stderr


def test_scripts_get_json(place: Place) -> None:
    assert json.loads(harness(place.workspace.root, "audit", "--json").stdout)["whole"] is True
    place.commit({FILE: place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    completed = harness(place.workspace.root, "audit", "--json")
    assert completed.returncode == 1
    report = json.loads(completed.stdout)
    assert report["whole"] is False
    assert [(ledger_break["file"], ledger_break["seq"]) for ledger_break in report["breaks"]] == [(FILE, 3)]


def test_without_a_workspace_it_fails_with_the_fix(tmp_path: Path) -> None:
    completed = harness(tmp_path, "audit")
    assert completed.returncode == 2
    assert "make one with `harness init DIR`" in completed.stderr


@pytest.mark.parametrize("options", [("--top",), ("--seed", "0"), ("--device", "cpu")])
def test_options_of_a_rerun_are_refused_without_one(tmp_path: Path, options: tuple[str, ...]) -> None:
    completed = harness(tmp_path, "audit", *options)
    assert completed.returncode == 2
    assert "select what --rerun measures; add --rerun N\n  harness audit --help" in completed.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("audit",),
        ("status",),
        ("status", "--costs"),
        ("log",),
        ("report",),
        ("review",),
        ("pr", "t/one"),
        ("export", "t/one"),
        ("transcript", "w01"),
        ("planner", "--replay"),
        ("serve", "--port", "0"),
    ],
)
def test_a_missing_branch_is_reported_with_the_key_and_the_branches(tmp_path: Path, command: tuple[str, ...]) -> None:
    workspace = make_workspace(tmp_path / "w")
    git(workspace.root, "branch", "-m", "main", "trunk")
    completed = harness(workspace.root, *command)
    assert completed.returncode == 2
    assert completed.stderr == (
        "harness: `coordination_branch` in harness.yaml: there is no branch main; branches: trunk\n"
        "  git branch main    # or name another branch in harness.yaml\n"
    )
