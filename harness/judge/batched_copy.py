"""Protocol for copying many slices of memory pools into inputs with few kernel launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Piece(NamedTuple):
    """One copy from a slice of a pool into an input."""

    source: int
    """Address of the slice."""
    target: int
    """Address in the input."""
    elements: int
    dtype: torch.dtype
    factor: float | None
    """Factor that each element is multiplied by; None: the elements are copied unchanged."""


class CopyAll(Protocol):
    """Copies many pieces with few kernel launches."""

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """Enqueue the copies. Only pieces of float32, bfloat16 or float16 may have a factor."""
