"""One real judge per test process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workspace.blocking_judge import JudgeProcess, judge_process


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory, judge_cache: Path) -> Iterator[JudgeProcess]:
    """A judge on the CPU in bubblewrap, with locks of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_LOCK_DIR", str(tmp_path_factory.mktemp("court") / "locks"))
        with judge_process("cpu", judge_cache, "bubblewrap") as process:
            yield process
