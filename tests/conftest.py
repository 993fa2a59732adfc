"""Fixtures and settings of every test."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from harness.git.repo import Repo
from harness.workspace.directories import Workspace
from tests.kept_directory import keep_below
from tests.site import STUB

# A busy machine is slow: neither an example's time nor the time to make examples may fail a test.
_PATIENT = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
# `make test` runs a few fixed examples; `make test-long` runs many new ones (--hypothesis-profile=long).
settings.register_profile(
    "harness", deadline=None, suppress_health_check=_PATIENT, max_examples=30, derandomize=True, database=None
)
settings.register_profile("long", deadline=None, suppress_health_check=_PATIENT, max_examples=500)
settings.load_profile("harness")


@pytest.fixture(scope="session", autouse=True)
def _kept_directories(tmp_path_factory: pytest.TempPathFactory) -> None:
    keep_below(tmp_path_factory.mktemp("kept"))


@pytest.fixture(scope="session", autouse=True)
def _no_terminal() -> None:
    """Make tables as wide as their text; pytest-xdist passes on the width of the suite's terminal."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(scope="session", autouse=True)
def _default_signals() -> None:
    """Restore SIGINT and SIGHUP for processes of tests: a shell ignores both in background jobs."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def judge_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a judge cache that all test processes share, so that the judge's own library is compiled once."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "kernel-harness"


@pytest.fixture
def repo(workspace: Workspace) -> Iterator[Repo]:
    """Yield the repository of the workspace that the module's fixture `workspace` makes."""
    with Repo(workspace) as opened:
        yield opened


@pytest.fixture
def stub_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Replace the judge by the stub; return the file that records its requests."""
    requests = tmp_path / "requests.jsonl"
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", shlex.join([sys.executable, str(STUB)]))
    monkeypatch.setenv("STUB_JUDGE_REQUESTS", str(requests))
    return requests


@pytest.fixture
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use separate locks, so that a judge at work on this machine does not delay a test."""
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of a group first: one process runs them in turn while other processes run the rest.

    The group `judge` runs real judges, which pin timed processes to the same processor and so wait for each other. It
    takes longest, so it starts first.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
