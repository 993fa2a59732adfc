"""Crash reports: complete, without secrets, and bounded in number."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

import harness
from harness.workspace import crash_report
from harness.workspace.crash_report import report_crash

SECRET = "sk-0123456789abcdef"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "a workspace"
    subprocess.run(["git", "init", "--quiet", root], check=True)
    (root / "harness.yaml").touch()
    monkeypatch.chdir(root)
    return root


def fail(words: str) -> None:
    raise ValueError(words)


def crash(words: str = "no such axis") -> ValueError:
    try:
        fail(words)
    except ValueError as error:
        return error
    raise AssertionError


def report_of(line: str) -> Path:
    match = re.search(r"crash report: (.+)", line)
    assert match, line
    return Path(match[1])


def test_a_report_holds_what_is_needed_to_find_the_defect(workspace: Path) -> None:
    line = report_crash(crash())
    file = report_of(line)
    assert line == f"internal error: ValueError: no such axis; crash report: {file}"
    assert file.parent == workspace / ".harness" / "crashes"
    text = file.read_text()
    assert f"harness: {harness.__version__}" in text
    assert f"directory: {workspace}" in text
    assert "command: [" in text
    assert re.search(r"time: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", text)
    assert "Traceback (most recent call last)" in text
    assert "in fail\n    raise ValueError(words)" in text


def test_secrets_of_the_environment_are_in_neither_report_nor_line(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "SOME_TOKEN"):
        monkeypatch.setenv(name, f"{SECRET}-{name.lower()}")
    monkeypatch.setenv("SHORT_KEY", "a")
    line = report_crash(crash(f"refused: {SECRET}-anthropic_api_key, {SECRET}-some_token"))
    assert "refused: [ANTHROPIC_API_KEY], [SOME_TOKEN]" in line
    (file,) = (workspace / ".harness" / "crashes").iterdir()
    assert "refused: [ANTHROPIC_API_KEY], [SOME_TOKEN]" in file.read_text()
    assert SECRET not in line + file.read_text()
    assert "Traceback" in file.read_text(), "a short value is not searched for"


def test_outside_a_workspace_it_goes_to_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    file = report_of(report_crash(crash()))
    assert file.parent == tmp_path / "temporary"
    assert "no such axis" in file.read_text()


def test_the_oldest_reports_are_deleted(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_report, "_MAX_REPORTS", 2)
    report_files = [report_of(report_crash(crash(str(number)))) for number in range(3)]
    assert sorted((workspace / ".harness" / "crashes").iterdir()) == report_files[1:]


def test_a_report_that_cannot_be_written_still_leaves_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file" / "below a file"))
    line = report_crash(crash())
    assert line.startswith("internal error: ValueError: no such axis; no crash report could be written: ")
