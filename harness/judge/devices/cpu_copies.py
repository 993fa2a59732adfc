"""Copies of many slices of pools into inputs, on several processors of this host."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import torch

from harness.judge.input_data.copies import Piece
from harness.judge.native import Native

_PIECE = struct.Struct("QQQQffi4x")
"""`Piece` in copies.cpp: two sources, target, elements or bytes, two factors, kind."""
_BYTES = 0
_KINDS = {torch.float32: 1, torch.bfloat16: 2}


class HostBatchedCopy:
    """`harness.judge.input_data.copies.BatchedCopy` for the host's memory.

    Args:
        native: the library that copies.
        for_each_part: calls a function with each number of a sequence, on several processors.
        parts: number of processors.
    """

    scalable = frozenset(_KINDS)
    adds = True

    def __init__(
        self, native: Native, for_each_part: Callable[[Callable[[int], None], Sequence[int]], object], parts: int
    ) -> None:
        self._native, self._for_each_part, self._parts = native, for_each_part, parts

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """See `BatchedCopy`."""
        table = b"".join(_PIECE.pack(*_row(piece)) for piece in pieces)

        def copy_part(part: int) -> None:
            self._native.copy(table, len(pieces), part, self._parts)

        self._for_each_part(copy_part, range(self._parts))


def _row(piece: Piece) -> tuple[int, int, int, int, float, float, int]:
    if piece.factor is None:
        return piece.source, 0, piece.target, piece.elements * piece.dtype.itemsize, 1.0, 0.0, _BYTES
    kind = _KINDS[piece.dtype]
    return (
        piece.source, piece.second_source, piece.target, piece.elements, piece.factor, piece.second_factor, kind,
    )  # fmt: skip
