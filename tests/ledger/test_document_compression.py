"""Compression of documents in another process, and in this one after the other has ended."""

from __future__ import annotations

import hashlib
import os
import signal
import zlib
from contextlib import closing
from pathlib import Path

import pytest

from harness.ledger.document_compression import DocumentCompressor, compress_all
from tests.waiting import wait_until

DOCUMENTS = [b"", b"---\nseq: 1\n", os.urandom(300_000), b"a" * 2_000_000]


def child_pid() -> int | None:
    """Return the compressing process of this process, if it runs."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next((int(pid) for pid in children if b"document_compression" in command_line(int(pid))), None)


def command_line(pid: int) -> bytes:
    """Return the arguments of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def test_documents_are_compressed_by_another_process_that_ends_with_the_block() -> None:
    with closing(DocumentCompressor()) as compressor:
        for _ in range(3):
            compressed = compressor.compress(DOCUMENTS)
            assert [zlib.decompress(body) for _, body in compressed] == DOCUMENTS
            assert [digest for digest, _ in compressed] == [hashlib.sha256(raw).hexdigest() for raw in DOCUMENTS]
        assert child_pid() is not None
    assert child_pid() is None


def test_a_killed_process_is_replaced_by_this_one() -> None:
    with closing(DocumentCompressor()) as compressor:
        os.kill(wait_until(child_pid, event="the process"), signal.SIGKILL)
        for _ in range(2):
            assert compressor.compress(DOCUMENTS) == compress_all(DOCUMENTS)


def test_a_process_that_cannot_start_is_replaced_by_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with closing(DocumentCompressor()) as compressor:
        assert compressor.compress(DOCUMENTS) == compress_all(DOCUMENTS)
