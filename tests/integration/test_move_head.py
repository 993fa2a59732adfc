"""A run continues on another head from a backup, by the steps of docs/how-to/backup.md, with real git."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.ledger.ledger import Ledger
from harness.ledger.spool import read_all
from harness.model.entry import EntryDraft
from harness.model.verdict import EntryKind
from tests.daemon.conftest import entries_of
from tests.site import Site, git


def note(text: str, digest: str) -> EntryDraft:
    return EntryDraft(kind=EntryKind.NOTE, run="main", problem="t/one", problem_digest=digest, target="cpu", note=text)


def restored(old: Site, directory: Path) -> Site:
    """Back up while the head is stopped, and restore at another place."""
    bundle = directory / "run.bundle"
    git(old.root, "bundle", "create", str(bundle), "--all")
    git(old.root, "bundle", "verify", str(bundle))
    root = directory / "another head"
    git(directory, "init", "--quiet", "--initial-branch=main", str(root))
    git(root, "fetch", "--quiet", "--update-head-ok", str(bundle), "refs/*:refs/*")
    git(root, "reset", "--quiet", "--hard")
    site = Site(root, directory / "scratch of another head")
    if old.workspace.spool.exists():
        shutil.copytree(old.workspace.spool, site.workspace.spool)
    return site


def test_a_run_goes_on_from_a_bundle_and_the_spool(tmp_path: Path, template: Site) -> None:
    old = Site(tmp_path / "work space", tmp_path / "scratch", commits=list(template.commits))
    shutil.copytree(template.root, old.root, symlinks=True)
    completed = old.call("daemon", "--once")
    assert completed.returncode == 0, completed.stdout
    with Repo(old.workspace) as repo:  # an entry that the head did not commit before its end
        ledger = Ledger(old.workspace, repo, branch="main")
        spooled = ledger.append(note("the device was replaced", old.entries("t/one")[0].problem_digest))
        ledger.close()
    site = restored(old, tmp_path)
    try:
        fresh = site.submit("w01", "t/one", "stub: speedup=1.8")
        completed = site.call("daemon", "--once")
        assert completed.returncode == 0, completed.stdout
        entries = site.entries()
        assert spooled in entries
        assert read_all(site.workspace.spool) == []
        assert len(entries_of(entries, fresh)) == len(entries_of(entries, fresh, EntryKind.CHAMPION)) == 1
        evaluated = Counter(
            entry.candidate.tree for entry in entries if entry.kind is EntryKind.EVALUATION and entry.candidate
        )
        assert evaluated == Counter({commit.tree for commit in (*old.commits, fresh)})
        judged = [request["solution_dir"] for request in site.requests() if request["kind"] == "evaluation"]
        assert [Path(solution).name for solution in judged] == [fresh.tree]
        with Repo(site.workspace) as repo:
            assert audit(site.workspace, repo, branch="main").breaks == []
        assert git(site.root, "status", "--porcelain") == ""
    finally:
        old.close()
        site.close()
