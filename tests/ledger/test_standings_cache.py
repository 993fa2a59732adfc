"""Standings from the cache equal those of a complete computation; only changed problems are computed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger import standings as standings_module
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import Standing, StandingsCache, standings
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft, make_workspace, ticking

NAMES = [f"s/p{number}" for number in range(8)]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "a workspace")


@pytest.fixture
def index(workspace: Workspace) -> Iterator[Index]:
    with Index(workspace, branch="main") as index:
        yield index


def test_only_what_changed_is_computed_again(
    workspace: Workspace, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[list[str]] = []

    def counted(index: Index, problems: list[str], target: str | None, run: str | None) -> tuple[Standing, ...]:
        computed.append(list(problems))
        return standings(index, problems, target, run)

    monkeypatch.setattr(standings_module, "standings", counted)
    cache = StandingsCache(index, "cpu", "main")

    def check(expected: list[list[str]]) -> None:
        computed.clear()
        index.refresh(repo)
        assert cache.standings(NAMES) == standings(index, NAMES, "cpu", "main")
        assert computed == expected

    with Ledger(workspace, repo, branch="main", clock=ticking(), before_move=index.expect) as ledger:
        for name in NAMES[:4]:
            ledger.append(draft("baseline", problem=name))
        check([NAMES])
        check([])
        evaluation = ledger.append(draft(problem="s/p1"))
        check([["s/p1"]])
        ledger.flush(force=True)
        check([])
        ledger.append(draft("confirmation", problem="s/p1", cites=evaluation.seq))
        ledger.append(draft(problem="s/p7", tree="e" * 40))
        check([["s/p1"], ["s/p7"]])
        workspace.index_file.unlink()
        check([NAMES])
