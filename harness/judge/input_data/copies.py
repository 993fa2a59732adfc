"""Copies of slices of pools into inputs, many in one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Piece(NamedTuple):
    """One copy from a slice of a pool, or from two slices that are added, into an input."""

    source: int
    """Address of the slice."""
    target: int
    """Address in the input."""
    elements: int
    dtype: torch.dtype
    factor: float | None
    """Factor that each element is multiplied by; None: the elements are copied unchanged."""
    second_source: int = 0
    """Address of a slice that is added; 0: none."""
    second_factor: float = 0.0
    """Factor of the added slice."""


class BatchedCopy(Protocol):
    """Makes many copies with few kernel launches, or on several processors of the host."""

    scalable: frozenset[torch.dtype]
    """Dtypes of the pieces that may have a factor."""
    adds: bool
    """True if pieces may have a second slice."""

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """Copy all pieces; on a GPU the copies are only enqueued."""
