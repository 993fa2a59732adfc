"""The event loop of a session closes the processes that it started."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

import pytest

from harness.agents.claude import run_and_close


def test_a_process_whose_pipes_outlive_it_is_closed_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child of the process holds its standard output. The SDK, like this test, only checks that the process ended."""

    async def run_child() -> int:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec("sh", "-c", "sleep 20 & exit 3", stdout=pipe, stderr=pipe)
        while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for the pipes
            await asyncio.sleep(0)
        return process.returncode

    complaints: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    assert run_and_close(run_child()) == 3
    gc.collect()
    assert complaints == []
