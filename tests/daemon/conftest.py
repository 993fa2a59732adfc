"""Fixtures of the daemon's tests: a site, and the daemon running in a thread of the test."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.daemon.run import run_daemon
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.verdict import EntryKind
from harness.workspace import judge_client
from tests.site import Commit, Site, git, site_in
from tests.waiting import DEADLINE_S, wait_until

Once = Callable[..., None]
"""The fixture `once`: it runs the daemon from its start until no work is left."""


def entries_of(entries: list[Entry], commit: Commit, kind: EntryKind = EntryKind.EVALUATION) -> list[Entry]:
    """Return the entries of one kind about a commit's candidate."""
    return [
        entry
        for entry in entries
        if entry.kind is kind
        and entry.problem == commit.problem
        and entry.candidate
        and entry.candidate.tree == commit.tree
    ]


def kinds(site: Site) -> Counter[EntryKind]:
    """Return the number of entries of each kind."""
    return Counter(entry.kind for entry in site.entries())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Yield a workspace with two small problems and the stub judge, also for daemons in this process."""
    with site_in(tmp_path) as site:
        for name, value in site.environment().items():
            if name.startswith(("HARNESS_", "STUB_")):
                monkeypatch.setenv(name, value)
        # A concurrent test of memory raises the kernel's count of kills; these tests kill no judge for memory.
        monkeypatch.setattr(judge_client, "oom_kills", lambda: 0)
        yield site
        # This process has no marker, so any remaining process is one of the daemon's.
        assert not site.strays()


class Running:
    """A daemon in a thread."""

    def __init__(self, site: Site, config: Config, limit: int | None, metrics_port: int | None = None) -> None:
        self.site = site
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(config, limit, metrics_port), name="daemon under test")

    def _run(self, config: Config, limit: int | None, metrics_port: int | None) -> None:
        try:
            run_daemon(self.site.workspace, config, max_evaluations=limit, metrics_port=metrics_port, stop=self.stop)
        except BaseException as error:  # noqa: BLE001 - raised again in the test
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self.stop.set()
        self._thread.join(timeout=120)
        assert not self._thread.is_alive()

    def entry_of(self, commit: Commit, deadline_s: float = DEADLINE_S) -> Entry:
        """Wait for the outcome of a commit as a worker does, and return it."""
        file = self.site.workspace.outcome_file(commit.problem, "cpu", commit.tree)
        wait_until(lambda: file.exists() or self.error, event=f"the outcome of {commit.tree}", deadline_s=deadline_s)
        if self.error:
            raise self.error
        return Entry.model_validate_json(file.read_text())

    def git(self, *arguments: str) -> None:
        """Run a git command in the checkout, and repeat it while git's index is locked, as a person does."""

        def git_succeeds() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                git(self.site.root, *arguments)
                return True
            return False

        wait_until(git_succeeds, event=f"git {arguments[0]} by hand")

    def wait_for_message(self, words: str, deadline_s: float = DEADLINE_S) -> str:
        """Wait for a message on the display with these words, and return it."""

        def find_message() -> str | None:
            return next((message for message in self.site.daemon().messages if words in message), None)

        return wait_until(find_message, event=f"a message with {words!r}", deadline_s=deadline_s)


Daemon = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture
def daemon(site: Site) -> Daemon:
    """Return a context in which a daemon serves the site; the daemon is stopped cleanly at its end."""

    @contextlib.contextmanager
    def running(
        config: Config | None = None, limit: int | None = None, metrics_port: int | None = None
    ) -> Iterator[Running]:
        threads = set(threading.enumerate())
        running = Running(site, config or Config(), limit, metrics_port)
        running.start()
        try:
            yield running
        finally:
            running.end()
        if running.error:
            raise running.error
        assert set(threading.enumerate()) <= threads, "a thread outlived the daemon"

    return running


@pytest.fixture
def once(site: Site) -> Callable[..., None]:
    """Return a function that runs a daemon in this thread until no work is left."""

    def run(config: Config | None = None, limit: int | None = None) -> None:
        run_daemon(site.workspace, config or Config(), max_evaluations=limit, once=True, stop=threading.Event())

    return run
