"""Commits beside a person's git: odd configuration, sparse checkouts, merges, rebases, resets and stashes."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from harness.git.repo import BranchBusyError, Repo
from harness.workspace.directories import Workspace
from tests.git.ledger_branch import FILES, LEDGER, append, ledger_workspace, status
from tests.ledger.ledgers import git

FAILING_HOOKS = (
    "pre-commit", "commit-msg", "prepare-commit-msg", "post-commit", "post-checkout", "post-index-change",
    "reference-transaction", "post-rewrite",
)  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return ledger_workspace(tmp_path / "wörk späce")


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
