"""A repository whose branch main has a ledger, for tests of commits on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.git.branch_commits import Change
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import git, make_workspace

LEDGER = "ledger/s/p.yaml"
FILES = {
    "COORDINATION.md": "mission\nrules\ntable\n",
    LEDGER: "# head\n",
    "mine.txt": "one\ntwo\n",
    "old.txt": "goes\n",
}


def ledger_workspace(directory: Path) -> Workspace:
    """Return a workspace with `FILES` on main, of a person who has a name in git."""
    workspace = make_workspace(directory, FILES)
    git(workspace.root, "config", "user.name", "p")
    git(workspace.root, "config", "user.email", "p@x")
    return workspace


def append(repo: Repo, appends: Mapping[str, bytes], writes: Mapping[str, bytes | None], message: str) -> str:
    """Commit bytes at the end of files, and whole files, as the ledger does."""
    return repo.commit_built("main", lambda _: Change(writes, appends), message)


def status(root: Path) -> str:
    return git(root, "status", "--porcelain")
