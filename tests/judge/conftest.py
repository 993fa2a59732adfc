"""One real judge per test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workspace.blocking_judge import JudgeProcess
from tests.judge.courtroom import judge_with_own_locks


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory, judge_cache: Path) -> Iterator[JudgeProcess]:
    """A judge on the CPU in bubblewrap, with locks of its own."""
    with judge_with_own_locks("cpu", tmp_path_factory.mktemp("court"), cache=judge_cache) as process:
        yield process
