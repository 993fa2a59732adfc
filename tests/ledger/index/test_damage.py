"""An index that is damaged, locked, unwritable, replaced, or whose refresh is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys

import pytest

from harness.errors import LedgerError
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import fill


@pytest.mark.parametrize("damage", ["garbage", "empty", "older", "truncated", "directory gone", "table gone"])
def test_an_unusable_index_is_rebuilt(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, damage: str
) -> None:
    fill(ledger, 40)
    ledger.flush(force=True)
    assert index.refresh(repo) == []  # the first time there is no message
    rows = index.rows()
    index.close()
    path = workspace.index_file
    if damage == "garbage":
        path.write_bytes(b"not a database" * 1000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "directory gone":
        shutil.rmtree(workspace.derived)
    else:
        statement = "UPDATE meta SET value = 'kernel-harness index 0' WHERE name = 'schema'"
        with sqlite3.connect(path) as database:
            database.execute(statement if damage == "older" else "DROP TABLE files")
        database.close()
    if damage in {"truncated", "table gone"}:
        fill(ledger, 1)  # damage in unread pages is detected with the next entry
        ledger.flush(force=True)
        rows = [*rows, *rows[-1:]]
    messages = index.refresh(repo)
    if damage != "directory gone":
        assert len(messages) == 1
        assert messages[0].startswith("the ledger's index could not be used (")
        assert messages[0].endswith("): rebuilt from the ledger")
    assert len(index.rows()) == len(rows)
    assert index.refresh(repo) == []


def test_a_locked_index_is_replaced(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    index.refresh(repo)
    index.close()
    monkeypatch.setattr("harness.ledger.index._BUSY_S", 0.1)
    holder = sqlite3.connect(workspace.index_file, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        fill(ledger, 1)
        assert index.refresh(repo) == [
            "the ledger's index could not be used (database is locked): rebuilt from the ledger"
        ]
    finally:
        holder.close()
    assert index.count() == 4


def test_an_unwritable_index_is_reported(workspace: Workspace, index: Index, repo: Repo) -> None:
    workspace.derived.mkdir()
    workspace.index_file.with_name("index.rebuilding.sqlite").mkdir()
    with pytest.raises(LedgerError, match="the index cannot be written") as caught:
        index.refresh(repo)
    assert "the index can be deleted" in str(caught.value)


def test_an_index_replaced_by_another_process_is_opened_again(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo)
    workspace.index_file.unlink()
    with Index(workspace, branch="main") as second_index:
        fill(ledger, 2)
        second_index.refresh(repo)
    assert index.count() == 5


_REFRESH = """
import sys
from pathlib import Path
from harness.ledger.index import Index
from harness.git.branch_commits import AppendedFile
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
workspace = Workspace(Path(sys.argv[1]))
with Repo(workspace) as repo, Index(workspace, branch="main") as index:
    index.refresh(repo)
"""


@pytest.mark.parametrize(
    ("failpoint", "before"),
    [
        *[
            (f"index.{place}", before)
            for place in ("before_rebuild", "rebuild_before_commit", "rebuilt_beside", "old_removed", "replaced")
            for before in ("absent", "garbage")
        ],
        ("index.before_commit", "whole"),
        ("index.after_commit", "whole"),
    ],
)
def test_killed_while_refreshing(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, failpoint: str, before: str
) -> None:
    fill(ledger)
    if before == "whole":
        index.refresh(repo)
        index.close()
    elif before == "garbage":
        workspace.derived.mkdir()
        workspace.index_file.write_bytes(b"garbage")
    fill(ledger, 1)
    environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
    command = [sys.executable, "-c", _REFRESH, str(workspace.root)]
    ran = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=240)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    index.refresh(repo)
    assert index.count() == 4
    assert index.query("PRAGMA integrity_check") == [("ok",)]
