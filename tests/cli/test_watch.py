"""`harness status --watch`: one screen of any size, redrawn when the ledger grows."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.cli.display.status_lines import frame, ledger_views
from harness.cli.status import _OLDEST_S
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.verdict import Verdict
from harness.workspace.configuration import load_config
from harness.workspace.directories import Workspace
from tests.cli.test_audit import harness
from tests.ledger.ledgers import PROBLEM, draft, make_workspace
from tests.terminal import on_terminal

OTHERS = [f"L1/problem_{number:03d}" for number in range(40)]
NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    names = [PROBLEM, *OTHERS]
    workspace = make_workspace(tmp_path / "w", {f"problems/{name}/definition.json": "{}" for name in names})
    with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("baseline"))
        ledger.append(draft(tree="1" * 40, speedup=1.1, cites=1))
        ledger.append(draft(tree="2" * 40, verdict=Verdict.COMPILE_ERROR, cites=1))
        ledger.append(draft(tree="3" * 40, speedup=1.5, cites=1))
        ledger.append(draft("confirmation", tree="3" * 40, speedup=1.5, cites=4))
        ledger.append(draft(tree="4" * 40, speedup=1.3, cites=1))
    return workspace


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (160, 60)])
def test_a_frame_fits_its_screen(workspace: Workspace, width: int, height: int) -> None:
    with Repo(workspace) as repo, Index(workspace, branch="main") as index:
        index.refresh(repo)
        views = ledger_views(workspace, load_config(workspace), repo, index, "main")
    lines = frame("main", views, ["worker-w01 (pid 7): working " + "x" * 200], NOW, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("run main, target cpu   2026-11-21 03:00")
    (row,) = [line for line in lines if line.startswith(PROBLEM[:5])]
    if width >= 80:
        assert row.startswith(PROBLEM)
        assert "▁█▅" in row, "the three that passed, in their order"
        assert "1.57" in row
        assert any("more: `harness status --all`" in line for line in lines) == (height < 48)
        assert any(line.startswith("worker-w01") for line in lines)
    assert ("entries" in lines[1]) == (width >= 160)


def test_it_is_drawn_again_when_the_ledger_grows_and_ctrl_c_ends_it(workspace: Workspace) -> None:
    environment = {**os.environ, "COLUMNS": ""}
    arguments = ("status", "--watch")
    with on_terminal(workspace.root, *arguments, columns=80, lines=24, environment=environment) as terminal:
        terminal.read_until("1 of 41 problems have a confirmed speed-up; 4 evaluations")
        with Repo(workspace) as repo, Ledger(workspace, repo, branch="main") as ledger:
            ledger.append(draft(tree="5" * 40, speedup=1.4, cites=1))
        terminal.read_until("; 5 evaluations", deadline_s=0.8 * _OLDEST_S)
        assert terminal.interrupt() == 130


def test_without_a_terminal_it_names_the_command_to_use(workspace: Workspace) -> None:
    completed = harness(workspace.root, "status", "--watch")
    assert completed.returncode == 2
    assert "harness status" in completed.stderr
