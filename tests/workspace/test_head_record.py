"""One head at a time, also if file locks do not work across hosts."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.workspace import head_record
from harness.workspace.head_record import HeadRecord, only_head
from tests.waiting import DEADLINE_S


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_record, "BEAT_S", 0.02)
    monkeypatch.setattr(head_record, "machine_id", lambda: "")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "daemon.head.json"


def never() -> None:
    raise AssertionError("no other head is here")


def test_a_second_head_on_another_host_is_refused(file: Path) -> None:
    with only_head(file, "harness daemon", taken_over=never, boot="a"):
        with (
            pytest.raises(ConfigurationError, match="harness daemon already runs on another host") as caught,
            only_head(file, "harness daemon", taken_over=never, boot="b"),
        ):
            pass
        assert "harness stop" in str(caught.value)
    assert not file.exists()
    with only_head(file, "harness daemon", taken_over=never, boot="b"):
        assert file.exists()


def test_a_silent_head_of_another_host_is_replaced(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_record, "_SILENT_S", 0.05)
    file.parent.mkdir()
    file.write_text(HeadRecord(id="x", boot="a", host="elsewhere", pid=7).model_dump_json())
    with only_head(file, "harness daemon", taken_over=never, boot="b"):
        assert HeadRecord.model_validate_json(file.read_text()).boot == "b"


def test_on_the_same_host_the_lock_decides_without_a_wait(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_record, "_SILENT_S", 10 * DEADLINE_S)
    file.parent.mkdir()
    file.write_text(HeadRecord(id="x", boot="a", host="here", pid=7).model_dump_json())
    with only_head(file, "harness daemon", taken_over=never, boot="a"):
        assert HeadRecord.model_validate_json(file.read_text()).id != "x"


def test_after_a_power_cut_there_is_no_wait(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_record, "_SILENT_S", 10 * DEADLINE_S)
    monkeypatch.setattr(head_record, "machine_id", lambda: "m")
    file.parent.mkdir()
    before = HeadRecord(id="x", boot="a", host=socket.gethostname(), machine="m", pid=7)
    file.write_text(before.model_dump_json())
    with only_head(file, "harness daemon", taken_over=never, boot="b"):
        assert HeadRecord.model_validate_json(file.read_text()).boot == "b"


def test_a_replaced_head_is_reported(file: Path) -> None:
    was_called = threading.Event()
    with only_head(file, "harness daemon", taken_over=was_called.set, boot="a"):
        other_record = HeadRecord(id="x", boot="b", host="elsewhere", pid=7).model_dump_json()
        file.write_text(other_record)
        assert was_called.wait(DEADLINE_S)
        assert file.read_text() == other_record
    assert file.read_text() == other_record, "the record of the other head stays"


def test_a_record_that_cannot_be_read_counts_as_none(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("{")
    with only_head(file, "harness daemon", taken_over=never):
        assert HeadRecord.model_validate_json(file.read_text()).boot == head_record.boot_id()
