"""Commits on the branch that people have checked out: their changes stay, and the harness' commits stay."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.errors import RepositoryError
from harness.git import checkout
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
from tests.git.ledger_branch import FILES, LEDGER, append, ledger_workspace, status
from tests.ledger.ledgers import git
from tests.rarely import rarely


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return ledger_workspace(tmp_path / "wörk späce")


@pytest.fixture
def short_lock_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for a lock that a person's git command holds."""
    monkeypatch.setattr(checkout, "LOCK_WAIT_S", 0.02)


def test_a_commit_shows_in_the_checkout_and_leaves_it_clean(repo: Repo) -> None:
    root, before = repo.workspace.root, repo.tip("main")
    new_commit = repo.commit_files(
        "main", {"COORDINATION.md": b"new\n", "ledger/t/q.yaml": b"#\n", "old.txt": None}, "Plan"
    )
    assert git(root, "rev-parse", "HEAD") == new_commit
    assert (
        git(root, "log", "-1", "--format=%P %s %an <%ae>") == f"{before} Plan kernel-harness <kernel-harness@localhost>"
    )
    assert (root / "COORDINATION.md").read_text() == "new\n"
    assert (root / "ledger/t/q.yaml").exists()
    assert not (root / "old.txt").exists()
    assert status(root) == ""
    assert repo.checkout_state("main") == []
    assert not list((repo.workspace.state / "git").glob("*.*[!k]"))


def test_nothing_new_is_no_commit(repo: Repo) -> None:
    before = repo.tip("main")
    assert repo.commit_files("main", {"mine.txt": b"one\ntwo\n"}, "same") == before
    assert git(repo.workspace.root, "reflog", "show", "main", "--format=%H").split()[0] == before


def test_appends_come_after_what_the_branch_holds_then(repo: Repo) -> None:
    append(repo, {LEDGER: b"a\n", "ledger/new": b"n\n"}, {"COORDINATION.md": b"x"}, "one")
    append(repo, {LEDGER: b"b\n"}, {}, "two")
    assert repo.read(repo.tip("main"), LEDGER) == b"# head\na\nb\n"
    assert repo.read(repo.tip("main"), "ledger/new") == b"n\n"
    assert (repo.workspace.root / LEDGER).read_text() == "# head\na\nb\n"


def test_a_missing_branch_and_a_path_outside_are_refused(repo: Repo) -> None:
    with pytest.raises(RepositoryError, match="there is no branch none"):
        repo.commit_files("none", {"a": b"2"}, "two")
    with pytest.raises(RepositoryError, match="not a path inside"):
        repo.commit_files("main", {"../a": b"2"}, "two")


def test_modes_of_files_stay(repo: Repo) -> None:
    root = repo.workspace.root
    (root / "mine.txt").chmod(0o755)
    git(root, "commit", "-q", "-a", "-m", "x")
    new_commit = repo.commit_files("main", {"mine.txt": b"3"}, "y")
    assert git(root, "ls-tree", new_commit, "mine.txt").startswith("100755")
    assert os.access(root / "mine.txt", os.X_OK)
    assert status(root) == ""


def test_a_persons_index_files_and_stash_stay(repo: Repo) -> None:
    root = repo.workspace.root
    (root / "mine.txt").write_text("stashed\n")
    git(root, "stash")
    (root / "mine.txt").write_text("staged\n")
    git(root, "add", "mine.txt")
    (root / "mine.txt").write_text("unstaged\n")
    (root / "untracked").write_text("u")
    before = status(root), git(root, "diff"), git(root, "diff", "--cached"), git(root, "stash", "list", "--format=%H")
    append(repo, {LEDGER: b"a\n"}, {"COORDINATION.md": b"new\n"}, "x")
    after = status(root), git(root, "diff"), git(root, "diff", "--cached"), git(root, "stash", "list", "--format=%H")
    assert after == before
    git(root, "commit", "-q", "-m", "theirs")
    assert git(root, "show", "HEAD", "--stat", "--format=").split()[0] == "mine.txt"
    git(root, "checkout", "-q", "--", "mine.txt")
    assert repo.read(repo.tip("main"), "COORDINATION.md") == b"new\n"


def test_a_branch_that_is_not_checked_out_moves_without_a_trace_in_the_checkout(repo: Repo) -> None:
    root = repo.workspace.root
    git(root, "checkout", "-q", "-b", "feature")
    repo.commit_files("main", {"COORDINATION.md": b"new\n"}, "x")
    assert (root / "COORDINATION.md").read_text() == FILES["COORDINATION.md"]
    assert status(root) == ""
    git(root, "checkout", "-q", "main")
    assert (root / "COORDINATION.md").read_text() == "new\n"
    assert status(root) == ""


def test_a_file_that_a_person_is_editing_is_left_and_reported(repo: Repo) -> None:
    root = repo.workspace.root
    (root / "COORDINATION.md").write_text("mission\nrules\nmy table\n")
    repo.commit_files("main", {"COORDINATION.md": b"plan\n", LEDGER: b"l\n"}, "x")
    assert (root / "COORDINATION.md").read_text() == "mission\nrules\nmy table\n"
    assert (root / LEDGER).read_text() == "l\n"
    (sentence,) = repo.checkout_state("main")
    assert sentence.startswith(f"COORDINATION.md: changed in {root} by a person")
    assert "git checkout HEAD -- COORDINATION.md" in sentence
    # A commit of another file does not revert the plan, and the person's change can still be committed.
    (root / "mine.txt").write_text("other\n")
    git(root, "add", "mine.txt")
    git(root, "commit", "-q", "-m", "other")
    assert repo.read(repo.tip("main"), "COORDINATION.md") == b"plan\n"
    git(root, "checkout", "HEAD", "--", "COORDINATION.md")
    assert repo.checkout_state("main") == []
    assert status(root) == ""


def test_a_file_that_a_person_has_staged_is_left_and_reported(repo: Repo) -> None:
    root = repo.workspace.root
    (root / "COORDINATION.md").write_text("staged\n")
    git(root, "add", "COORDINATION.md")
    repo.commit_files("main", {"COORDINATION.md": b"plan\n"}, "x")
    assert git(root, "show", ":COORDINATION.md") == "staged"
    assert len(repo.checkout_state("main")) == 1


@pytest.mark.usefixtures("short_lock_wait")
def test_a_locked_index_delays_only_the_refresh(repo: Repo) -> None:
    root, lock = repo.workspace.root, repo.workspace.root / ".git" / "index.lock"
    lock.touch()
    new_commit = repo.commit_files("main", {"COORDINATION.md": b"plan\n"}, "x")
    assert repo.tip("main") == new_commit
    assert (root / "COORDINATION.md").read_text() == FILES["COORDINATION.md"]
    (sentence,) = repo.checkout_state("main")
    assert "its index was locked" in sentence
    assert "`git checkout HEAD -- COORDINATION.md`" in sentence
    lock.unlink()
    repo.refresh_checkout("main")
    assert (repo.checkout_state("main"), status(root)) == ([], "")
    assert (root / "COORDINATION.md").read_text() == "plan\n"


@pytest.mark.usefixtures("short_lock_wait")
def test_the_next_commit_makes_up_for_a_delayed_refresh(repo: Repo) -> None:
    root, lock = repo.workspace.root, repo.workspace.root / ".git" / "index.lock"
    lock.touch()
    repo.commit_files("main", {"COORDINATION.md": b"plan 1\n"}, "x")
    repo.commit_files("main", {"COORDINATION.md": b"plan 2\n", "new": b"n"}, "x")
    lock.unlink()
    append(repo, {LEDGER: b"a\n"}, {}, "y")
    assert (root / "COORDINATION.md").read_text() == "plan 2\n"
    assert (repo.checkout_state("main"), status(root)) == ([], "")


@pytest.mark.usefixtures("short_lock_wait")
def test_the_repair_command_repairs(repo: Repo) -> None:
    root, lock = repo.workspace.root, repo.workspace.root / ".git" / "index.lock"
    lock.touch()
    repo.commit_files("main", {"a file": b"1", "COORDINATION.md": b"plan 1\n"}, "x")
    lock.unlink()
    command = repo.checkout_state("main")[0].partition("`")[2].partition("`")[0]
    subprocess.run(["sh", "-c", command], cwd=root, check=True, timeout=240)
    assert (repo.checkout_state("main"), status(root)) == ([], "")


COMMIT = """
import sys
from pathlib import Path
from harness.git.branch_commits import Change
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
with Repo(Workspace(Path(sys.argv[1]))) as repo:
    change = Change({"COORDINATION.md": b"plan\\n"}, {"ledger/s/p.yaml": b"a\\n"})
    repo.commit_built("main", lambda read: change, "x")
"""
PLACES = [
    "commit.built", "commit.branch_moved", "checkout.files_written",
    *rarely("commit.tree_written", "commit.recorded", "checkout.index_locked", "checkout.index_replaced"),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_any_failpoint_is_recovered(repo: Repo, place: str) -> None:
    root, before = repo.workspace.root, repo.tip("main")
    environment = {**os.environ, "HARNESS_FAILPOINT": place}
    command = [sys.executable, "-c", COMMIT, str(root)]
    assert subprocess.run(command, env=environment, timeout=240, check=False).returncode == -9
    done = repo.tip("main") != before
    if not done:
        subprocess.run(command, timeout=240, check=True)
    repo.refresh_checkout("main")
    assert repo.read(repo.tip("main"), LEDGER) == b"# head\na\n"
    assert (root / LEDGER).read_text() == "# head\na\n"
    assert (repo.checkout_state("main"), status(root)) == ([], "")
    assert not (root / ".git" / "index.lock").exists()


def test_two_harness_processes_and_threads_commit_at_once(workspace: Workspace) -> None:
    def commit(number: int) -> None:
        with Repo(workspace) as own_repo:
            for _ in range(5):
                append(own_repo, {LEDGER: b"%d\n" % number}, {f"own/{number}": b"x"}, "x")

    threads = [threading.Thread(target=commit, args=(number,), name=f"writer {number}") for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sorted((workspace.root / LEDGER).read_text().split()[2:]) == sorted("012" * 5)
    assert status(workspace.root) == ""
