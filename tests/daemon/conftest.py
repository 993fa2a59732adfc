"""What the daemon's tests share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

STUB = Path(__file__).parents[1] / "stub_judge.py"


@pytest.fixture
def stub_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The stub in place of the judge; the file that notes its requests."""
    requests = tmp_path / "requests.jsonl"
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", shlex.join([sys.executable, str(STUB)]))
    monkeypatch.setenv("STUB_JUDGE_REQUESTS", str(requests))
    return requests
