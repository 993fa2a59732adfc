"""The watcher says, soon, that refs have moved: on real git repositories, whatever way the refs moved."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.daemon.watch import Debouncer, RefWatcher

SOON_S = 120.0
"""These tests run on busy machines. How soon it is on a quiet one, `make bench` measures."""

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
        ["git", *arguments], cwd=repository, env=environment, check=True, capture_output=True, text=True, timeout=240
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

    def called_within(self, seconds: float, *, after: int = 0) -> bool:
        with self._called:
            return self._called.wait_for(lambda: self.count > after, timeout=seconds)

    def next_within(self, seconds: float, *, after: int) -> None:
        assert self.called_within(seconds, after=after), f"not seen within {seconds} s"


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
    watcher = RefWatcher(repository / ".git", watched)
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
    assert not seen.called_within(0.5)
    git(repository, "update-ref", BRANCH, "HEAD")
    seen.next_within(SOON_S, after=0)


def test_a_burst_is_one_call_and_a_stream_is_not_put_off_for_ever() -> None:
    calls: list[float] = []
    called = threading.Event()

    def callback() -> None:
        calls.append(time.monotonic())
        called.set()

    debouncer = Debouncer(callback, quiet_s=3600.0, longest_s=0.3)
    started = time.monotonic()
    for _ in range(5):
        debouncer.touch()
    debouncer.start()
    assert called.wait(SOON_S), "a stream that never pauses is looked at all the same"
    debouncer.close()
    assert len(calls) == 1
    assert calls[0] - started >= 0.3


def test_a_call_waits_for_a_pause() -> None:
    called = threading.Event()
    debouncer = Debouncer(called.set, quiet_s=0.2, longest_s=3600.0)
    started = time.monotonic()
    debouncer.touch()
    debouncer.start()
    assert called.wait(SOON_S)
    assert time.monotonic() - started >= 0.2
    debouncer.close()


def test_a_closed_watcher_that_never_started_leaves_nothing_behind(repository: Path) -> None:
    threads = set(threading.enumerate())
    watcher = RefWatcher(repository / ".git", Seen())
    watcher.start()
    watcher.close()
    watcher.close()
    assert set(threading.enumerate()) <= threads
