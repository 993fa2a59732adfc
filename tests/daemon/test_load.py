"""The daemon under load: judges do not wait for git, the queue is bounded, and no candidate is lost."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from harness.daemon import due_work
from harness.daemon.queue import EvaluationQueue, Job
from harness.git.repo import Repo
from harness.model.verdict import EntryKind
from tests.daemon.conftest import Daemon, Once, entries_of
from tests.site import Commit, Site, git
from tests.waiting import DEADLINE_S, wait_until


def submit_many(site: Site) -> list[Commit]:
    return [
        site.submit(worker, problem, f"{worker} {number} stub: speedup=0.9")
        for number in range(3)
        for worker, problem in (("w01", "t/one"), ("w02", "t/one"), ("w03", "t/two"))
    ]


def assert_each_once(site: Site, commits: list[Commit]) -> None:
    trees = Counter(
        entry.candidate.tree for entry in site.entries() if entry.kind is EntryKind.EVALUATION and entry.candidate
    )
    assert trees == Counter(commit.tree for commit in commits)


def test_candidates_that_the_queue_has_no_room_for_wait_in_git(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    add = EvaluationQueue.add

    def counted(queue: EvaluationQueue, job: Job) -> bool:
        added = add(queue, job)
        sizes.append(len(queue))
        return added

    monkeypatch.setattr(EvaluationQueue, "add", counted)
    monkeypatch.setattr(due_work, "MOST_WAITING", 2)
    commits = submit_many(site)
    once()
    assert_each_once(site, commits)
    assert max(sizes) == 2


def test_a_scan_in_slices_leaves_nothing_out(site: Site, once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_work, "SLICE_S", 0.0)
    commits = submit_many(site)
    once()
    assert_each_once(site, commits)


def test_judges_go_on_while_the_ledger_is_committed(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    committing, may_commit = threading.Event(), threading.Event()
    commit = Repo.commit_built

    def waiting_commit(*arguments: Any, **options: Any) -> str:
        committing.set()
        assert may_commit.wait(DEADLINE_S)
        return commit(*arguments, **options)

    monkeypatch.setattr(Repo, "commit_built", waiting_commit)
    with daemon() as running:
        first = site.submit("w01", "t/one", "stub: speedup=0.9")
        running.entry_of(first)
        assert committing.wait(DEADLINE_S)
        second = site.submit("w01", "t/one", "stub: speedup=0.95")
        running.entry_of(second)
        assert "ledger/t/one.yaml" not in git(site.root, "ls-tree", "-r", "--name-only", "main")
        may_commit.set()
        wait_until(
            lambda: "ledger/t/one.yaml" in git(site.root, "ls-tree", "-r", "--name-only", "main"), event="a commit"
        )
    assert len(entries_of(site.entries(), first)) == len(entries_of(site.entries(), second)) == 1


def test_what_a_commit_of_the_ledger_keeps_from_is_reported_and_tried_again(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.daemon.recorder.LONGEST_PAUSE_S", 0.1)
    head_name = site.root / ".git/rebase-merge/head-name"
    head_name.parent.mkdir()
    head_name.write_text("refs/heads/main\n")
    with daemon() as running:
        running.entry_of(site.submit("w01", "t/one", "stub: speedup=0.9"))
        assert "main is being rebased" in running.wait_for_message("entries cannot be committed now")
        head_name.unlink()
        wait_until(lambda: not site.daemon().messages, event="the end of the message")
    assert "ledger/t/one.yaml" in git(site.root, "ls-tree", "-r", "--name-only", "main")
