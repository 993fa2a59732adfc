"""The binary protocol between judge and runner, both ends. Standard library only.

Judge to runner: JSON objects (first byte `{`) and CALL datagrams. Runner to judge: records of one fixed size.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

_MAGIC = b"KHR1"
_CALL_MAGIC = b"KHC1"
_RECORD = struct.Struct("<4sHHQq")
_CALL = struct.Struct("<4sIQ")
RECORD_BYTES = _RECORD.size
LARGEST = 1 << 18
"""Bytes of the largest message to a runner."""
MAX_CALLS = 4096
"""Calls of one batch at most: their slots fit one datagram."""


TRUSTED_KERNELS = ("fill", "read", "hold", "known", "compare", "pieces")
"""Kernels of trusted.cu: the judge compiles them, and its trusted runners load them."""


class Code(enum.IntEnum):
    """Kinds of record from a runner."""

    HELLO = 1
    LOADED = 2
    READY = 3
    DONE = 4
    FAILED = 5
    """An exception; its text is on stderr."""
    SHAPE = 6
    """Output number `detail` came back in another shape."""
    DTYPE = 7


class WireError(ValueError):
    """Bytes that are no message of this protocol."""


class Mismatch(Exception):  # noqa: N818 - what a runner found about a returned output
    """A returned output has not the declared shape or dtype."""

    def __init__(self, code: Code, output: int) -> None:
        super().__init__(code.name)
        self.code = code
        self.output = output


def pack_record(code: Code, *, detail: int = 0, call: int = 0, claimed_ns: int = 0) -> bytes:
    """A record of the runner."""
    return _RECORD.pack(_MAGIC, code, detail, call, claimed_ns)


def unpack_record(data: bytes) -> tuple[int, int, int, int]:
    """(code, detail, call, claimed_ns).

    Raises:
        WireError: the bytes are no record.
    """
    if len(data) != _RECORD.size:
        raise WireError("wrong size")
    magic, code, detail, call, claimed = _RECORD.unpack(data)
    if magic != _MAGIC:
        raise WireError("wrong magic")
    return code, detail, call, claimed


def pack_call(call: int, slots: Sequence[int]) -> bytes:
    """A CALL: id and the slots to compute, in order."""
    return _CALL.pack(_CALL_MAGIC, len(slots), call) + struct.pack(f"<{len(slots)}I", *slots)


def unpack_call(data: bytes) -> tuple[int, tuple[int, ...]]:
    """(id, slots).

    Raises:
        WireError: the bytes are no CALL.
    """
    if len(data) < _CALL.size:
        raise WireError("too short")
    magic, count, call = _CALL.unpack_from(data)
    if magic != _CALL_MAGIC or len(data) != _CALL.size + 4 * count:
        raise WireError("no call")
    return call, struct.unpack_from(f"<{count}I", data, _CALL.size)
