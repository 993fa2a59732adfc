"""The spool keeps acknowledged records, and reports the damage of a crash or a full disk."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import LedgerError
from harness.formats.ledger_documents import render
from harness.ledger.spool import HEADER, Record, Spool, read_all, read_segment, segments, signature
from tests.ledger.ledgers import required_small_disk

_FILE = "ledger/starter/a b.yaml"


def record(seq: int, text: str = "x") -> Record:
    return Record(render({"seq": seq, "text": text}), file=_FILE)


@contextmanager
def opened(directory: Path) -> Iterator[Spool]:
    spool = Spool(directory)
    try:
        yield spool
    finally:
        spool.close_segment()


def spooled_records(directory: Path) -> list[Record]:
    return [record for path in segments(directory) for record in read_segment(path)]


def test_records_survive_reopening_in_order(tmp_path: Path) -> None:
    for seq in (1, 3, 5):
        with opened(tmp_path) as spool:
            spool.append(record(seq))
            spool.append(record(seq + 1))
    assert [record.seq for record in spooled_records(tmp_path)] == [1, 2, 3, 4, 5, 6]
    assert spooled_records(tmp_path)[0] == record(1)


def test_an_empty_spool_has_no_segment(tmp_path: Path) -> None:
    with opened(tmp_path / "daemon"):
        pass
    assert segments(tmp_path / "daemon") == []
    assert read_all(tmp_path / "nowhere") == []
    assert signature(tmp_path / "nowhere") == ""


def test_dropping_closed_segments_leaves_what_came_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        spool.append(record(1))
        closed = spool.close_segment()
        spool.append(record(2))
        spool.drop(closed)
    assert [record.seq for record in spooled_records(tmp_path)] == [2]


def test_readers_see_every_writer_and_no_half_record(tmp_path: Path) -> None:
    with opened(tmp_path / "daemon") as daemon, opened(tmp_path / "planner") as planner:
        daemon.append(record(1))
        planner.append(Record(render({"seq": 1}), file="ledger/decisions.yaml"))
        before = signature(tmp_path)
        with segments(tmp_path / "daemon")[0].open("ab") as file:
            file.write(b"record 100 ")
        assert [record.file for record in read_all(tmp_path)] == [_FILE, "ledger/decisions.yaml"]
        assert signature(tmp_path) != before


@given(st.data())
def test_a_tail_torn_anywhere_is_set_aside(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("spool")
    with opened(directory) as spool:
        for seq in (1, 2, 3):
            spool.append(record(seq, "---\nrecord 3 x\n"))
    path = segments(directory)[0]
    content = path.read_bytes()
    cut = data.draw(st.integers(0, len(content) - 1))
    path.write_bytes(content[:cut])
    frame = (len(content) - len(HEADER)) // 3
    whole = max(cut - len(HEADER), 0) // frame
    torn = content[len(HEADER) + whole * frame if cut >= len(HEADER) else 0 : cut]
    with opened(directory) as spool:
        assert [record.seq for record in spooled_records(directory)] == [1, 2, 3][:whole]
        if torn:
            assert len(spool.recovered) == 1
            assert f"the last {len(torn)} bytes were a record torn by a crash" in spool.recovered[0]
            assert [aside.read_bytes() for aside in directory.glob("*.torn-at-*")] == [torn]
        spool.append(record(9))
    with opened(directory) as spool:
        assert spool.recovered == []  # reported once
        assert [record.seq for record in spooled_records(directory)] == [*[1, 2, 3][:whole], 9]
    shutil.rmtree(directory)


def test_damage_before_whole_records_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        for seq in (1, 2, 3):
            spool.append(record(seq))
    path = segments(tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[len(HEADER) + 90] ^= 1
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=r"a record is damaged at byte \d+, and whole ones follow it") as caught:
        Spool(tmp_path)
    assert "truncate -s" in str(caught.value)
    assert path.read_bytes() == content  # the file is unchanged


def test_a_full_disk_keeps_nothing_of_the_entry_and_is_reported(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands in for the full disk: a part of the record is written, then the write is refused."""
    code = f"""
import resource, sys
from pathlib import Path
from tests.ledger.test_spool import record, spooled_records, opened
from harness.errors import LedgerError
directory = Path({str(tmp_path)!r})
with opened(directory) as spool:
    spool.append(record(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
    for _ in range(2):
        try:
            spool.append(record(2, "long" * 5000))
        except LedgerError as error:
            print(error)
    assert [item.seq for item in spooled_records(directory)] == [1]
    spool.append(record(2))
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert completed.stdout.count("no space left to write the ledger's spool (File too large)") == 2
    assert "free some space" in completed.stdout
    assert [record.seq for record in spooled_records(tmp_path)] == [1, 2]
    with opened(tmp_path) as spool:
        assert spool.recovered == []


def test_a_really_full_disk(tmp_path: Path) -> None:
    with required_small_disk(tmp_path, "64k"):
        with opened(tmp_path / "daemon") as spool:
            spool.append(record(1))
            with pytest.raises(LedgerError, match="no space left to write the ledger's spool"):
                spool.append(record(2, "long" * 40_000))
            assert [record.seq for record in spooled_records(tmp_path / "daemon")] == [1]
            spool.append(record(2))
        assert [record.seq for record in spooled_records(tmp_path / "daemon")] == [1, 2]


def test_a_read_only_spool(tmp_path: Path) -> None:
    with required_small_disk(tmp_path, "64k"):
        with opened(tmp_path / "daemon") as spool:
            spool.append(record(1))
            spool.close_segment()
            subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
            with pytest.raises(LedgerError, match=r"the ledger's spool cannot be written \(Read-only file system\)"):
                spool.append(record(2))
        with opened(tmp_path / "daemon"):  # reading continues
            assert [record.seq for record in spooled_records(tmp_path / "daemon")] == [1]


def test_an_unwritable_spool_is_reported(tmp_path: Path) -> None:
    blocked = tmp_path / "daemon"
    blocked.write_text("a file where the directory should be")
    with pytest.raises(LedgerError, match="the ledger's spool cannot be written"):
        Spool(blocked)


def test_a_segment_that_cannot_be_started_is_started_later(tmp_path: Path) -> None:
    with opened(tmp_path) as spool:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        try:
            with pytest.raises(LedgerError, match="no space left"):
                spool.append(record(1))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        spool.append(record(1))
    assert [record.seq for record in spooled_records(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("failpoint", "seqs"),
    [
        ("spool.after_new_segment", []),
        ("spool.before_write", []),
        ("spool.half_written", []),
        ("spool.before_sync", [1]),  # written, perhaps not synced: without a crash of the machine, the kernel keeps it
        ("spool.after_sync", [1]),
        ("spool.after_sync:2", [1, 2]),
        ("spool.half_written:3", [1, 2]),
    ],
)
def test_killed_while_appending(tmp_path: Path, failpoint: str, seqs: list[int]) -> None:
    code = f"""
from pathlib import Path
from tests.ledger.test_spool import record, opened
with opened(Path({str(tmp_path)!r})) as spool:
    for seq in range(1, 5):
        spool.append(record(seq))
"""
    environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
    completed = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=240)
    assert completed.returncode == -signal.SIGKILL
    with opened(tmp_path) as spool:
        assert [record.seq for record in spooled_records(tmp_path)] == seqs
        assert len(spool.recovered) == ("half" in failpoint)


@pytest.mark.parametrize("failpoint", ["spool.torn_set_aside", "spool.torn_cut"])
def test_killed_while_repairing(tmp_path: Path, failpoint: str) -> None:
    with opened(tmp_path) as spool:
        spool.append(record(1))
    with segments(tmp_path)[0].open("ab") as file:
        file.write(b"record 12 torn")
    code = f"from pathlib import Path; from harness.ledger.spool import Spool; Spool(Path({str(tmp_path)!r}))"
    environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
    completed = subprocess.run([sys.executable, "-c", code], env=environment, check=False, timeout=240)
    assert completed.returncode == -signal.SIGKILL
    with opened(tmp_path):
        assert [record.seq for record in spooled_records(tmp_path)] == [1]
    assert [aside.read_bytes() for aside in tmp_path.glob("*.torn-at-*")] == [b"record 12 torn"]
