"""A workspace with a ledger and its index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import make_workspace, ticking


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "a workspace")


@pytest.fixture
def ledger(workspace: Workspace, repo: Repo) -> Iterator[Ledger]:
    with Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        yield ledger


@pytest.fixture
def index(workspace: Workspace) -> Iterator[Index]:
    with Index(workspace, branch="main") as index:
        yield index
