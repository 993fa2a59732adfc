"""A failpoint kills the process that passes it, and has no effect at other places."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from harness.failpoints import failpoint
for _ in range(3):
    failpoint("area.other")
    failpoint("area.place")
    print("passed", flush=True)
"""


def run(**variables: str) -> tuple[int, int]:
    """Return the exit code and the number of times that the program passed the place."""
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return completed.returncode, completed.stdout.count("passed")


@pytest.mark.parametrize(("setting", "passed"), [("area.place", 0), ("area.place:3", 2)])
def test_it_kills_the_process_at_the_given_time(setting: str, passed: int) -> None:
    assert run(HARNESS_FAILPOINT=setting) == (-signal.SIGKILL, passed)


@pytest.mark.parametrize("setting", ["area", "area.place:4", "area.places", ""])
def test_elsewhere_the_process_continues(setting: str) -> None:
    assert run(HARNESS_FAILPOINT=setting) == (0, 3)


def test_with_a_mark_only_the_first_process_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    variables = {"HARNESS_FAILPOINT": "area.place", "HARNESS_FAILPOINT_MARK": str(mark)}
    assert run(**variables) == (-signal.SIGKILL, 0)
    assert mark.read_text().startswith("area.place ")
    assert run(**variables) == (0, 3)
