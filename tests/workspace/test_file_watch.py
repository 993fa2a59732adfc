"""File watches on real files, and on real git repositories for every way of moving refs."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workspace import file_watch
from harness.workspace.file_watch import Debouncer, FileWatch, RefWatch

SOON_S = 120.0
"""A limit for busy machines; `make bench` measures the latency on an idle one."""

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
    completed = subprocess.run(
        ["git", *arguments], cwd=repository, env=environment, check=True, capture_output=True, text=True, timeout=240
    )
    return completed.stdout.strip()


class Calls:
    """A counter of calls, on which a test can wait for the next call."""

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
def calls(repository: Path) -> Iterator[Calls]:
    threads = set(threading.enumerate())
    watched = Calls()
    watcher = RefWatch(repository / ".git", watched)
    watcher.start()
    yield watched
    watcher.close()
    assert set(threading.enumerate()) <= threads, "a thread outlived the watcher"


def test_a_branch_in_directories_that_did_not_exist_is_seen(repository: Path, calls: Calls) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    calls.next_within(SOON_S, after=0)


def test_every_later_move_of_the_branch_is_seen(repository: Path, calls: Calls) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    calls.next_within(SOON_S, after=0)
    for number in range(3):
        before = calls.count
        commit = git(repository, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", str(number))
        git(repository, "update-ref", BRANCH, commit)
        calls.next_within(SOON_S, after=before)


def test_a_change_of_packed_refs_alone_is_seen(repository: Path, calls: Calls) -> None:
    packed = repository / ".git/packed-refs.new"
    packed.write_text(
        f"# pack-refs with: peeled fully-peeled sorted\n{git(repository, 'rev-parse', 'HEAD')} {BRANCH}\n"
    )
    packed.replace(repository / ".git/packed-refs")
    calls.next_within(SOON_S, after=0)
    assert git(repository, "rev-parse", BRANCH)


def test_a_branch_after_pack_refs_removed_its_directories_is_seen(repository: Path, calls: Calls) -> None:
    git(repository, "update-ref", BRANCH, "HEAD")
    git(repository, "pack-refs", "--all", "--prune")
    assert not (repository / ".git/refs/heads/agents").exists()
    calls.next_within(SOON_S, after=0)
    before = calls.count
    git(repository, "update-ref", BRANCH.replace("w01", "w02"), "HEAD")
    calls.next_within(SOON_S, after=before)


def test_a_renamed_branch_is_seen(repository: Path, calls: Calls) -> None:
    git(repository, "branch", "topic")
    calls.next_within(SOON_S, after=0)
    before = calls.count
    git(repository, "branch", "-m", "topic", "agents/main/w01/starter/rope")
    calls.next_within(SOON_S, after=before)


def test_reading_refs_and_working_in_the_checkout_is_no_event(repository: Path, calls: Calls) -> None:
    git(repository, "for-each-ref")
    (repository / "file").write_text("text")
    git(repository, "add", "file")
    git(repository, "status")
    git(repository, "stash", "list")
    assert not calls.called_within(0.5)
    git(repository, "update-ref", BRANCH, "HEAD")
    calls.next_within(SOON_S, after=0)


def test_a_stream_that_never_pauses_is_not_put_off_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "QUIET_S", 3600.0)
    monkeypatch.setattr(file_watch, "LONGEST_S", 0.3)
    debouncer = Debouncer()
    started = time.monotonic()
    for _ in range(5):
        debouncer.touch()
    assert debouncer.wait(SOON_S)
    assert time.monotonic() - started >= 0.3
    assert not debouncer.wait(0), "one stream is one wake-up"


def test_a_wake_up_waits_for_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_watch, "QUIET_S", 0.2)
    monkeypatch.setattr(file_watch, "LONGEST_S", 3600.0)
    debouncer = Debouncer()
    started = time.monotonic()
    debouncer.touch()
    assert debouncer.wait(SOON_S)
    assert time.monotonic() - started >= 0.2


def test_a_closed_watcher_that_never_started_leaves_nothing_behind(repository: Path) -> None:
    threads = set(threading.enumerate())
    watcher = RefWatch(repository / ".git", Calls())
    watcher.start()
    watcher.close()
    watcher.close()
    assert set(threading.enumerate()) <= threads


def test_a_written_file_below_wakes_the_owner(tmp_path: Path) -> None:
    with FileWatch(tmp_path / "missing" / "yet") as changes:
        (tmp_path / "missing/yet/deeper").mkdir()
        (tmp_path / "missing/yet/deeper/file").write_text("x")
        assert changes.wait(120)


def test_a_burst_wakes_the_owner_once(tmp_path: Path) -> None:
    with FileWatch(tmp_path) as changes:
        for _ in range(5):
            changes.touch()
        assert changes.wait(120)
        assert not changes.wait(0), "one burst is one wake-up"


def test_reading_is_no_change_and_the_wait_ends_in_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with FileWatch(tmp_path) as changes:
        (tmp_path / "file").read_text()
        assert not changes.wait(0.2)


def test_an_event_can_wake_the_owner(tmp_path: Path) -> None:
    with FileWatch(tmp_path) as changes:
        changes.touch()
        assert changes.wait(120)
    assert not any(thread.name == "file-watch" for thread in threading.enumerate())


def test_a_stopped_owner_does_not_wait_on(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with FileWatch(tmp_path) as changes:
        assert not changes.wait(3600, stop=stop)  # the test's own time limit is far shorter


def test_irrelevant_files_wake_no_waiter(tmp_path: Path) -> None:
    with FileWatch(tmp_path, matters=lambda path: path.name.startswith("worker-")) as changes:
        (tmp_path / "daemon.json").write_text("{}")
        assert not changes.wait(0.2)
        (tmp_path / "worker-w01.json").write_text("{}")
        assert changes.wait(120)
