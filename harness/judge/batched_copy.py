"""Types for copying many slices of memory pools into inputs with few kernel launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

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


CopyAll = Callable[[Sequence[Piece]], None]
"""Enqueues many copies with few kernel launches. Only pieces of float32, bfloat16 or float16 may have a factor."""
