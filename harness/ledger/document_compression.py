"""Hashes and compression of the index's documents, in a process of its own while many are added.

A thread cannot do it beside the thread that reads documents: it waits for the interpreter's lock after each document,
up to 5 ms. This file is also the program of that process, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import socket
import subprocess
import sys
import zlib
from collections.abc import Sequence
from typing import Any

Compressed = tuple[str, bytes]
"""SHA-256 of a document in hexadecimal digits, and the document compressed with zlib."""
_LENGTH_BYTES = 8


def compress_all(documents: Sequence[bytes]) -> list[Compressed]:
    """Return the hash and the compressed bytes of each document."""
    return [(hashlib.sha256(document).hexdigest(), zlib.compress(document, level=1)) for document in documents]


class DocumentCompressor:
    """A process that compresses lists of documents. If it fails, this process compresses them."""

    def __init__(self) -> None:
        self._socket, other_end = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        with other_end, contextlib.suppress(OSError):
            command = [sys.executable, "-I", "-S", __file__]
            self._process = subprocess.Popen(command, stdin=other_end.fileno(), stdout=subprocess.DEVNULL)

    def compress(self, documents: list[bytes]) -> list[Compressed]:
        """Return the hash and the compressed bytes of each document. Call it from one thread at a time."""
        compressed: list[Compressed] | None = None
        if self._process is not None:
            with contextlib.suppress(OSError):
                _send(self._socket, documents)
                compressed = _receive(self._socket)
            if compressed is None:
                self.close()
        return compress_all(documents) if compressed is None else compressed

    def close(self) -> None:
        """End the process: it ends when its socket is closed."""
        self._socket.close()
        process, self._process = self._process, None
        if process is not None:
            process.wait()


def _send(to: socket.socket, items: list[Any]) -> None:
    content = marshal.dumps(items)
    to.sendall(len(content).to_bytes(_LENGTH_BYTES, "big"))
    to.sendall(content)


def _receive(source: socket.socket) -> list[Any] | None:
    """Return the next list of items; None when the other end is closed.

    Each message is one system call: a thread that reads in pieces waits for the interpreter's lock after each.
    """
    header = source.recv(_LENGTH_BYTES, socket.MSG_WAITALL)
    size = int.from_bytes(header, "big")
    content = source.recv(size, socket.MSG_WAITALL) if len(header) == _LENGTH_BYTES else b""
    if not content or len(content) < size:
        return None
    items: list[Any] = marshal.loads(content)  # noqa: S302 - from this program's own process
    return items


def main() -> None:
    """Compress lists of documents from the socket at standard input until it is closed."""
    source = socket.socket(fileno=sys.stdin.fileno())
    with contextlib.suppress(KeyboardInterrupt, OSError):
        while (documents := _receive(source)) is not None:
            _send(source, compress_all(documents))


if __name__ == "__main__":
    main()
