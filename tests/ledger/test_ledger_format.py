"""A ledger of another format is refused, with the file, the version and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LedgerError
from harness.formats.ledger_documents import parse
from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.spool import read_all
from harness.model.paths import HEADS
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import PROBLEM, draft, make_workspace
from tests.site import git

FILE = f"ledger/{PROBLEM}.yaml"
OTHER = "and this harness reads format 1\n  install a newer kernel-harness: "


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "a workspace")


@pytest.fixture
def repo(workspace: Workspace) -> Iterator[Repo]:
    with Repo(workspace) as repo:
        yield repo


@pytest.fixture
def entered(workspace: Workspace, repo: Repo) -> Workspace:
    with Ledger(workspace, repo, branch="main") as ledger:
        ledger.append(draft("note"))
    return workspace


def change(workspace: Workspace, file: str, former: bytes, changed: bytes) -> None:
    path = workspace.root / file
    assert former in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(former, changed, 1))
    git(workspace.root, "commit", "-q", "-a", "-m", "by a newer harness")


def break_messages(workspace: Workspace, repo: Repo) -> list[str]:
    return [break_.message for break_ in audit(workspace, repo, branch="main").breaks]


def test_a_ledger_of_a_newer_format_is_refused(entered: Workspace, repo: Repo) -> None:
    change(entered, HEADS, b"heads, format 1", b"heads, format 3")
    with pytest.raises(LedgerError) as caught:
        Ledger(entered, repo, branch="main")
    assert str(caught.value).startswith(f"{HEADS}:1: the ledger has format 3, {OTHER}")
    assert "the ledger has format 3, and this harness reads format 1" in break_messages(entered, repo)


def test_a_file_of_a_newer_format_is_refused(entered: Workspace, repo: Repo) -> None:
    change(entered, FILE, b"ledger, format 1", b"ledger, format 7")
    with Index(entered, branch="main") as index, pytest.raises(LedgerError) as caught:
        index.refresh(repo)
    assert str(caught.value).startswith(f"{FILE}:1: the ledger file has format 7, {OTHER}")
    assert "the ledger file has format 7, and this harness reads format 1" in break_messages(entered, repo)


def test_a_document_of_a_newer_format_is_named() -> None:
    with pytest.raises(LedgerError) as caught:
        parse(b"---\nformat: 3\nseq: 4\n", f"{FILE} seq 4")
    assert str(caught.value).startswith(f"{FILE} seq 4: the document has format 3, {OTHER}")


def test_a_spool_of_a_newer_format_is_refused_and_kept(workspace: Workspace, repo: Repo) -> None:
    ledger = Ledger(workspace, repo, branch="main")
    ledger.append(draft("note"))
    ledger.close()
    (segment,) = (workspace.spool / "daemon").glob("*.spool")
    content = segment.read_bytes().replace(b"spool, format 1", b"spool, format 2", 1)
    segment.write_bytes(content)
    for attempt in (lambda: Ledger(workspace, repo, branch="main"), lambda: read_all(workspace.spool)):
        with pytest.raises(LedgerError, match=r"the spool has format 2, and this harness reads format 1"):
            attempt()
    assert segment.read_bytes() == content
