"""Copying many slices of pools into inputs at once, where each copy by itself would cost a launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch


class Piece(NamedTuple):
    """A slice of a pool on its way into an input."""

    source: int
    """Its address, as `target`."""
    target: int
    elements: int
    dtype: torch.dtype
    factor: float | None
    """None: as it is."""


class CopyAll(Protocol):
    """Copies many pieces at once, on a device where each copy by itself would cost a launch."""

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """Enqueue the copies. What has a factor is of float32, bfloat16 or float16."""
