"""File watches: on real files, and on real git repositories whatever way their refs moved."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workspace.file_watch import Debouncer, FileWatch, RefWatch

SOON_S = 5.0
"""Generous: these tests run beside others. How soon it really is, test_daemon.py and the benchmark measure."""

BRANCH = "refs/heads/agents/main/w01/starter/rmsnorm"


def git(repository: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@example.invalid",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@example.invalid",
    }
    done = subprocess.run(
        ["git", *arguments], cwd=repository, env=environment, check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


class Seen:
    """Counts calls and lets a test wait for the next."""

    def __init__(self) -> None:
        self._called = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        with self._called:
            self.count += 1
            self._called.notify_all()

    def next_within(self, seconds: float, *, after: int) -> float:
        started = time.monotonic()
        with self._called:
            assert self._called.wait_for(lambda: self.count > after, timeout=seconds), f"not seen within {seconds} s"
        return time.monotonic() - started


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "a workspace"
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "commit", "--quiet", "--allow-empty", "-m", "begin")
    return root


@pytest.fixture
def seen(repository: Path) -> Iterator[Seen]:
    threads = set(threading.enumerate())
    watched = Seen()
    watcher = RefWatch(repository / ".git", watched)
    watcher.start()
    yield watched
    watcher.close()
    assert set(threading.enumerate()) <= threads, "a thread outlived the watcher"


def test_a_branch_in_directories_that_did_not_exist_is_seen(repository: Path, seen: Seen) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    seen.next_within(SOON_S, after=0)


def test_every_later_move_of_the_branch_is_seen(repository: Path, seen: Seen) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    seen.next_within(SOON_S, after=0)
    for number in range(3):
        before = seen.count
        commit = git(repository, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", str(number))
        git(repository, "update-ref", BRANCH, commit)
        seen.next_within(SOON_S, after=before)


def test_a_change_of_packed_refs_alone_is_seen(repository: Path, seen: Seen) -> None:
    packed = repository / ".git/packed-refs.new"
    packed.write_text(
        f"# pack-refs with: peeled fully-peeled sorted\n{git(repository, 'rev-parse', 'HEAD')} {BRANCH}\n"
    )
    packed.replace(repository / ".git/packed-refs")
    seen.next_within(SOON_S, after=0)
    assert git(repository, "rev-parse", BRANCH)


def test_a_branch_after_pack_refs_removed_its_directories_is_seen(repository: Path, seen: Seen) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    git(repository, "pack-refs", "--all", "--prune")
    assert not (repository / ".git/refs/heads/agents").exists()
    seen.next_within(SOON_S, after=0)
    before = seen.count
    git(repository, "update-ref", BRANCH.replace("w01", "w02"), "HEAD")
    seen.next_within(SOON_S, after=before)


def test_a_renamed_branch_is_seen(repository: Path, seen: Seen) -> None:
    git(repository, "branch", "topic")
    seen.next_within(SOON_S, after=0)
    before = seen.count
    git(repository, "branch", "-m", "topic", "agents/main/w01/starter/rope")
    seen.next_within(SOON_S, after=before)


def test_reading_refs_and_working_in_the_checkout_is_no_event(repository: Path, seen: Seen) -> None:
    git(repository, "for-each-ref")
    (repository / "file").write_text("text")
    git(repository, "add", "file")
    git(repository, "status")
    git(repository, "stash", "list")
    # The next move is the first thing seen: nothing before it was.
    assert seen.count == 0
    git(repository, "update-ref", BRANCH, "HEAD")
    seen.next_within(SOON_S, after=0)
    assert seen.count == 1


def test_a_burst_is_one_wake_up_and_a_stream_is_not_put_off_for_ever() -> None:
    debouncer = Debouncer(quiet_s=0.2, longest_s=0.6)
    ended = threading.Event()

    def stream() -> None:  # without a pause of quiet_s
        while not ended.wait(0.02):
            debouncer.touch()

    thread = threading.Thread(target=stream)
    thread.start()
    try:
        started = time.monotonic()
        assert debouncer.wait(30)
        assert time.monotonic() - started >= 0.5
    finally:
        ended.set()
        thread.join()
    debouncer.touch()
    debouncer.touch()
    assert debouncer.wait(30)
    assert not debouncer.wait(0), "one burst is one wake-up"


def test_a_closed_watcher_that_never_started_leaves_nothing_behind(repository: Path) -> None:
    threads = set(threading.enumerate())
    watcher = RefWatch(repository / ".git", Seen())
    watcher.start()
    watcher.close()
    watcher.close()
    assert set(threading.enumerate()) <= threads


def test_a_written_file_below_wakes_the_owner_once(tmp_path: Path) -> None:
    with FileWatch(tmp_path / "missing" / "yet") as changes:
        (tmp_path / "missing/yet/deeper").mkdir()
        for number in range(5):
            (tmp_path / f"missing/yet/deeper/{number}").write_text("x")
        assert changes.wait(10)
        assert not changes.wait(0.2), "one burst is one wake-up"


def test_reading_is_no_change_and_the_wait_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with FileWatch(tmp_path) as changes:
        (tmp_path / "file").read_text()
        started = time.monotonic()
        assert not changes.wait(0.2)
        assert time.monotonic() - started < 5


def test_someone_else_can_wake_the_owner(tmp_path: Path) -> None:
    nudge = threading.Event()
    with FileWatch(tmp_path, nudge=nudge) as changes:
        nudge.set()
        assert changes.wait(10)
    assert not any(thread.name == "file-watch" for thread in threading.enumerate())


def test_a_stopped_owner_does_not_wait_on(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with FileWatch(tmp_path) as changes:
        started = time.monotonic()
        assert not changes.wait(60, stop=stop)
        assert time.monotonic() - started < 10


def test_files_that_do_not_matter_wake_nobody(tmp_path: Path) -> None:
    with FileWatch(tmp_path, matters=lambda path: path.name.startswith("worker-")) as changes:
        (tmp_path / "daemon.json").write_text("{}")
        assert not changes.wait(0.2)
        (tmp_path / "worker-w01.json").write_text("{}")
        assert changes.wait(10)
