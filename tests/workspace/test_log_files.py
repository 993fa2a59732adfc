"""Log files of limited size, and reads of a file that grows, is truncated, or is missing at first."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harness.cli import process_commands
from harness.workspace.directories import Workspace
from harness.workspace.log_files import LOGS_KEPT, GrowingFile, limit_size, rotate


def test_rotation_keeps_the_newest(tmp_path: Path) -> None:
    file = tmp_path / "start.out"
    rotate(file)
    for number in range(LOGS_KEPT + 2):
        file.write_text(str(number))
        rotate(file)
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"start.out.1": "4", "start.out.2": "3", "start.out.3": "2"}


def test_a_file_that_a_process_appends_to_is_truncated_in_place(tmp_path: Path) -> None:
    file = tmp_path / "daemon.out"
    with file.open("ab", buffering=0) as writer:
        writer.write(b"x" * 100)
        assert not limit_size(file, 100)
        writer.write(b"y")
        assert limit_size(file, 100)
        writer.write(b"after")
    assert file.read_text() == "after"
    assert (tmp_path / "daemon.out.1").read_text() == "x" * 100 + "y"
    assert not limit_size(tmp_path / "missing", 100)


def test_new_lines_of_a_growing_file(tmp_path: Path) -> None:
    file = tmp_path / "start.out"
    growing = GrowingFile(file)
    assert growing.new_lines() == []
    with file.open("ab", buffering=0) as writer:
        writer.write("one\ntw\N{DEGREE SIGN}".encode()[:-1])  # in the middle of a character
        assert growing.new_lines() == ["one"]
        assert growing.new_lines() == []
        writer.write("\N{DEGREE SIGN}".encode()[1:] + b"\n\nthree")
        assert growing.new_lines() == ["tw\N{DEGREE SIGN}", ""]
        assert limit_size(file, 3)
        writer.write(b"\nfour\nend")
        assert growing.new_lines() == ["", "four"]
    assert growing.new_lines(at_end=True) == ["end"]
    assert growing.new_lines(at_end=True) == []
    assert GrowingFile(file, from_end=True).new_lines(at_end=True) == []


def test_a_log_of_a_process_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_commands, "LOG_BYTES", 500)
    logger = logging.getLogger("harness")
    before, level = list(logger.handlers), logger.level
    workspace = Workspace(tmp_path)
    process_commands.log_to_file(workspace, "planner")
    try:
        for number in range(100):
            logger.info("message %d", number)
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
            handler.close()
        logger.setLevel(level)
    files = sorted(workspace.logs.iterdir())
    assert [file.name for file in files] == ["planner.log", *(f"planner.log.{n}" for n in range(1, LOGS_KEPT + 1))]
    assert all(file.stat().st_size <= 500 for file in files)
    assert files[0].read_text().endswith("message 99\n")
