"""Encode and decode the binary protocol between judge and runner. Standard library only.

Judge to runner: JSON objects (first byte `{`, see `messages`) and CALL datagrams. Runner to judge: records of one fixed
size.
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
"""Largest number of calls in a batch: their slots fit one datagram."""


TRUSTED_KERNELS = ("fill", "read", "hold", "spin", "compare", "batched_copy")
"""Kernels of trusted.cu, which the judge compiles and its trusted runners load."""


class Code(enum.IntEnum):
    """Kinds of record from a runner."""

    HELLO = 1
    LOADED = 2
    READY = 3
    DONE = 4
    FAILED = 5
    """An exception occurred; its text is on stderr."""
    SHAPE = 6
    """Output number `detail` does not have the declared shape."""
    DTYPE = 7
    """Output number `detail` does not have the declared dtype."""
    NO_MEMORY = 8
    """An allocation of device memory failed; the exception's text is on stderr."""


FAILURES = frozenset({Code.FAILED, Code.SHAPE, Code.DTYPE, Code.NO_MEMORY})
"""Records that report a failure in place of the expected answer."""


class OutputMismatchError(Exception):
    """A returned output does not have the declared shape or dtype."""

    def __init__(self, code: Code, output: int) -> None:
        super().__init__(code.name)
        self.code = code
        self.output = output


def pack_record(code: Code, *, detail: int = 0, call: int = 0, claimed_ns: int = 0) -> bytes:
    """Return the bytes of a record of the runner.

    Args:
        code: kind of the record.
        detail: number of an output, for SHAPE and DTYPE.
        call: id of the batch, for DONE; nanoseconds of a cold call after a request `cold_and_warm`.
        claimed_ns: nanoseconds by the runner's clock.
    """
    return _RECORD.pack(_MAGIC, code, detail, call, claimed_ns)


def unpack_record(data: bytes) -> tuple[int, int, int, int]:
    """Return (code, detail, call, claimed_ns); see `pack_record`.

    Raises:
        ValueError: the bytes are not a record.
    """
    if len(data) != _RECORD.size:
        raise ValueError("wrong size")
    magic, code, detail, call, claimed = _RECORD.unpack(data)
    if magic != _MAGIC:
        raise ValueError("wrong magic")
    return code, detail, call, claimed


def pack_call(call: int, slots: Sequence[int]) -> bytes:
    """Return the bytes of a CALL.

    Args:
        call: id of the batch.
        slots: slots to compute, in order; at most `MAX_CALLS`.
    """
    return _CALL.pack(_CALL_MAGIC, len(slots), call) + struct.pack(f"<{len(slots)}I", *slots)


def unpack_call(data: bytes) -> tuple[int, tuple[int, ...]]:
    """Return (id, slots) of a CALL.

    Raises:
        ValueError: the bytes are not a CALL.
    """
    if len(data) < _CALL.size:
        raise ValueError("too short")
    magic, count, call = _CALL.unpack_from(data)
    if magic != _CALL_MAGIC or len(data) != _CALL.size + 4 * count:
        raise ValueError("no call")
    return call, struct.unpack_from(f"<{count}I", data, _CALL.size)
