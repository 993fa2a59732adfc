"""Commits on the branch that people have checked out: their changes stay, and the harness' commits stay."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.errors import RepositoryError
from harness.git import checkout
from harness.git.branch_commits import Change
from harness.git.repo import BranchBusyError, BranchMovedError, Repo
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import git, make_workspace
from tests.rarely import rarely

LEDGER = "ledger/s/p.yaml"
FILES = {
    "COORDINATION.md": "mission\nrules\ntable\n",
    LEDGER: "# head\n",
    "mine.txt": "one\ntwo\n",
    "old.txt": "goes\n",
}
FAILING_HOOKS = (
    "pre-commit", "commit-msg", "prepare-commit-msg", "post-commit", "post-checkout", "post-index-change",
    "reference-transaction", "post-rewrite",
)  # fmt: skip


def append(repo: Repo, appends: Mapping[str, bytes], writes: Mapping[str, bytes | None], message: str) -> str:
    """Commit bytes at the end of files, and whole files, as the ledger does."""
    return repo.commit_built("main", lambda _: Change(writes, appends), message)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path / "wörk späce", FILES)
    git(workspace.root, "config", "user.name", "p")
    git(workspace.root, "config", "user.email", "p@x")
    return workspace


@pytest.fixture
def short_lock_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait for a lock that a person's git command holds."""
    monkeypatch.setattr(checkout, "LOCK_WAIT_S", 0.02)


def status(root: Path) -> str:
    return git(root, "status", "--porcelain")


def make_odd(root: Path) -> None:
    """Set a configuration of the repository that would break or change every commit."""
    for key, value in {
        "commit.gpgSign": "true",
        "gpg.program": "/bin/false",
        "core.autocrlf": "true",
        "core.fsmonitor": "/bin/false",
        "diff.external": "/bin/false",
        "init.templateDir": "/nonexistent",
        "core.hooksPath": str(root / "hooks ü"),
        "core.splitIndex": "true",
        "log.showSignature": "true",
        "status.short": "true",
        "color.ui": "always",
        "alias.commit-tree": "!false",
    }.items():
        git(root, "config", key, value)
    git(root, "config", "--unset", "user.name")
    git(root, "config", "--unset", "user.email")
    for directory in (root / "hooks ü", root / ".git" / "hooks"):
        directory.mkdir(exist_ok=True)
        for name in FAILING_HOOKS:
            (directory / name).write_text(f"#!/bin/sh\ntouch '{root}/hook ran'\nexit 1\n")
            (directory / name).chmod(0o755)


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


def test_an_expected_tip_is_enforced(repo: Repo) -> None:
    first = repo.tip("main")
    repo.commit_files("main", {"a": b"1"}, "one", expect=first)
    with pytest.raises(BranchMovedError, match=f"not at {first[:12]}"):
        repo.commit_files("main", {"a": b"2"}, "two", expect=first)
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


def test_odd_configuration_hooks_and_signing_do_not_matter(repo: Repo) -> None:
    root = repo.workspace.root
    make_odd(root)
    append(repo, {LEDGER: b"a\n"}, {"COORDINATION.md": b"plan\n"}, "x")
    append(repo, {LEDGER: b"b\n"}, {}, "y")
    assert repo.read(repo.tip("main"), LEDGER) == b"# head\na\nb\n"
    assert (root / "COORDINATION.md").read_text() == "plan\n"
    assert not (root / "hook ran").exists()
    assert [commit.subject for commit in repo.new_commits(repo.tip("main"), f"{repo.tip('main')}~2")] == ["x", "y"]
    assert repo.checkout_state("main") == []
    assert [line for line in status_without_hooks(root).splitlines() if "hooks" not in line] == []


def status_without_hooks(root: Path) -> str:
    plain = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "color.ui=never")
    return git(root, *plain, "status", "--porcelain")


def test_files_checked_out_with_other_line_ends_are_refreshed(repo: Repo) -> None:
    root = repo.workspace.root
    git(root, "config", "core.autocrlf", "true")
    (root / "COORDINATION.md").unlink()
    git(root, "checkout", "--", "COORDINATION.md")
    assert b"\r\n" in (root / "COORDINATION.md").read_bytes()
    repo.commit_files("main", {"COORDINATION.md": b"plan\nb\n"}, "x")
    assert (root / "COORDINATION.md").read_text() == "plan\nb\n"
    assert repo.checkout_state("main") == []


def test_a_sparse_checkout_is_not_filled(repo: Repo) -> None:
    root = repo.workspace.root
    git(root, "sparse-checkout", "set", "--no-cone", "/*", "!/ledger/")
    append(repo, {LEDGER: b"a\n"}, {"COORDINATION.md": b"plan\n"}, "x")
    assert not (root / "ledger").exists()
    assert (status(root), (root / "COORDINATION.md").read_text()) == ("", "plan\n")


def test_a_merge_in_progress_does_not_revert_the_harness(repo: Repo) -> None:
    root = repo.workspace.root
    git(root, "checkout", "-q", "-b", "side")
    (root / "mine.txt").write_text("side\n")
    git(root, "commit", "-q", "-a", "-m", "side")
    git(root, "checkout", "-q", "main")
    (root / "mine.txt").write_text("main\n")
    git(root, "commit", "-q", "-a", "-m", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "side")
    append(repo, {LEDGER: b"a\n"}, {"COORDINATION.md": b"plan\n"}, "x")
    (root / "mine.txt").write_text("both\n")
    git(root, "add", "mine.txt")
    git(root, "commit", "-q", "-m", "merged")
    assert repo.read(repo.tip("main"), LEDGER) == b"# head\na\n"
    assert repo.read(repo.tip("main"), "mine.txt") == b"both\n"
    assert status(root) == ""


def test_a_rebase_is_waited_for(repo: Repo) -> None:
    root = repo.workspace.root
    git(root, "branch", "upstream")
    (root / "mine.txt").write_text("mine\n")
    git(root, "commit", "-q", "-a", "-m", "mine")
    git(root, "checkout", "-q", "upstream")
    (root / "mine.txt").write_text("theirs\n")
    git(root, "commit", "-q", "-a", "-m", "theirs")
    git(root, "checkout", "-q", "main")
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "rebase", "upstream")
    with pytest.raises(BranchBusyError, match="main is being rebased"):
        repo.commit_files("main", {"COORDINATION.md": b"plan\n"}, "x")
    (root / "mine.txt").write_text("both\n")
    git(root, "add", "mine.txt")
    git(root, "-c", "core.editor=true", "rebase", "--continue")
    repo.commit_files("main", {"COORDINATION.md": b"plan\n"}, "x")
    assert (repo.read(repo.tip("main"), "mine.txt"), status(root)) == (b"both\n", "")


def test_an_old_ledger_that_a_racing_stash_left_in_the_index_is_not_taken_for_a_persons_work(repo: Repo) -> None:
    root = repo.workspace.root
    append(repo, {LEDGER: b"a\n"}, {}, "x")
    append(repo, {LEDGER: b"b\n"}, {}, "y")
    git(root, "checkout", "HEAD~2", "--", LEDGER)
    append(repo, {LEDGER: b"c\n"}, {}, "z")
    assert (root / LEDGER).read_text() == "# head\na\nb\nc\n"
    assert status(root) == ""


def document(seq: int) -> bytes:
    return b'---\nseq: %d\nat: "2026-11-21T02:00:0%d.000Z"\n' % (seq, seq)


def test_a_tail_that_a_reset_cut_off_is_put_back(repo: Repo) -> None:
    root = repo.workspace.root
    head = b"# kernel-harness ledger, format 1\n"
    start = repo.commit_files("main", {LEDGER: head}, "start")
    append(repo, {LEDGER: document(1)}, {"COORDINATION.md": b"1\n"}, "x")
    cut = append(repo, {LEDGER: document(2), "ledger/s/q.yaml": head + document(1)}, {}, "y")
    git(root, "reset", "-q", "--hard", start)
    assert repo.lost_appends("main") == [LEDGER, "ledger/s/q.yaml"]
    new_commit = append(repo, {LEDGER: document(3)}, {}, "z")
    assert repo.read(new_commit, LEDGER) == head + document(1) + document(2) + document(3)
    assert repo.read(new_commit, "ledger/s/q.yaml") == head + document(1)
    assert b'"ledger/s/q.yaml": {"seq": 1' in (repo.read(new_commit, "ledger/heads.yaml") or b"")
    assert repo.read(new_commit, "COORDINATION.md") == FILES["COORDINATION.md"].encode()
    assert repo.is_ancestor(cut, new_commit)
    assert repo.lost_appends("main") == []
    assert status(root) == ""


def test_a_rebase_that_keeps_the_ledger_is_not_mistaken_for_a_loss(repo: Repo) -> None:
    root = repo.workspace.root
    append(repo, {LEDGER: b"a\n"}, {}, "x")
    git(root, "commit", "-q", "--amend", "-m", "reworded")
    assert repo.lost_appends("main") == []
    new_commit = append(repo, {LEDGER: b"b\n"}, {}, "y")
    assert repo.read(new_commit, LEDGER) == b"# head\na\nb\n"
    assert len(repo.commit(new_commit).parents) == 1


def person_at_work(root: Path, stop: threading.Event, done: list[int]) -> None:
    """Commit, stash and switch branches repeatedly; another command may hold git's lock."""
    number = 0
    while not stop.is_set():
        number += 1
        (root / "mine.txt").write_text(f"{number}\n")
        if _succeeds_with_retries(root, "commit", "-q", "-m", f"mine {number}", "mine.txt"):
            done.append(number)
        if number % 2 == 0:
            (root / "mine.txt").write_text("wip\n")
            if _succeeds_with_retries(root, "stash") and not _succeeds_with_retries(root, "stash", "pop"):
                _succeeds_with_retries(root, "stash", "drop")
            _succeeds_with_retries(root, "checkout", "-q", "HEAD", "--", "mine.txt")
            if _succeeds_with_retries(root, "checkout", "-q", "side"):
                assert _succeeds_with_retries(root, "checkout", "-q", "main", times=100)


def _succeeds_with_retries(root: Path, *arguments: str, times: int = 5) -> bool:
    """Try a few times, as a person does after git reports that another command holds a lock."""
    for _ in range(times):
        try:
            git(root, *arguments)
        except subprocess.CalledProcessError as error:
            print(arguments, error.stderr.decode())  # noqa: T201 - pytest shows it when the test fails
        else:
            return True
    return False


@pytest.mark.slow
def test_a_person_working_all_the_time_loses_nothing_and_reverts_nothing(repo: Repo) -> None:
    root, rounds = repo.workspace.root, 0
    head = b"# kernel-harness ledger, format 1\n"
    repo.commit_files("main", {LEDGER: head}, "start")
    git(root, "branch", "side")
    stop, done = threading.Event(), list[int]()
    person = threading.Thread(target=person_at_work, args=(root, stop, done), name="person")
    person.start()
    try:
        while rounds < 8 or len(done) < 3:  # on a busy machine, one of the two may run more often
            plan = {"COORDINATION.md": b"plan %d\n" % rounds}
            append(repo, {LEDGER: document(rounds % 10)}, plan, f"round {rounds}")
            rounds += 1
    finally:
        stop.set()
        person.join(timeout=120)
    assert not person.is_alive()
    append(repo, {LEDGER: document(0)}, {}, "end")
    expected = head + b"".join(document(number % 10) for number in range(rounds)) + document(0)
    assert repo.read(repo.tip("main"), LEDGER) == expected
    subjects = git(root, "log", "main", "--format=%s").splitlines()
    assert {f"mine {number}" for number in done} <= set(subjects)
    assert git(root, "symbolic-ref", "HEAD") == "refs/heads/main"
    git(root, "checkout", "-q", "HEAD", "--", "mine.txt")
    repo.refresh_checkout("main")
    assert [line for line in status(root).splitlines() if LEDGER in line] == []


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
