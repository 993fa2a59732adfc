"""One real judge per test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.workspace.blocking_judge import JudgeProcess, judge_process


@pytest.fixture(scope="session")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """A judge on the CPU in bubblewrap, with locks and cache of its own."""
    directory = tmp_path_factory.mktemp("court")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_LOCK_DIR", str(directory / "locks"))
        with judge_process("cpu", directory / "cache", "bubblewrap") as process:
            yield process
