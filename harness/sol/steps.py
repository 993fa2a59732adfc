"""One operator of a reference's run, as the analysis keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from harness.sol.element_regions import StridedView


class Kind(Enum):
    """Dependence of an operator's results on its operands."""

    POINTWISE = auto()
    """Each element on the elements at its own place."""
    MATRIX = auto()
    """Rows on rows of the first operand, columns on columns of the second."""
    PIECES = auto()
    """Each piece of the result on one operand."""
    MASK = auto()
    """Some elements on one operand, the others on another or on none."""
    GATHER = auto()
    """On elements of a table, at places that an index holds."""
    SCATTER = auto()
    """Some elements of the target on the values, the others unchanged."""
    OTHER = auto()
    """Each element on any elements."""


@dataclass(frozen=True)
class Kept:
    """Share of an operand's elements that a mask lets through, and of its rows and columns with any of them.

    None of the three is known of a mask whose values are not.
    """

    elements: float | None
    rows: float = 1.0
    columns: float = 1.0


@dataclass(frozen=True)
class Lookup:
    """Rows that an index takes from a table."""

    rows: int
    """Of the table."""
    count: int
    """Rows that are taken; one may be taken twice."""
    positions: torch.Tensor | None
    """Different rows that are taken, where the index is known."""
    axes: tuple[int, ...]
    """Of the table: those that are indexed."""
    part: float = 1.0
    """Share of the table that is looked up at all, of `gather`: each lane takes from its own part."""


@dataclass
class Step:
    """One operator that ran."""

    name: str
    kind: Kind
    reads: tuple[StridedView, ...]
    writes: tuple[StridedView, ...]
    product: tuple[str, str] | None = None
    """Stored dtypes of the operands, of a product."""
    product_operations: float = 0.0
    elementwise: str = "float32"
    elementwise_operations: float = 0.0
    overwrites: bool = False
    """Every element of `writes` is written, and none of them read."""
    changes: bool = False
    """`writes` is one of the operands."""
    pieces: tuple[tuple[StridedView, StridedView], ...] = ()
    """Of PIECES: a part of the result, and the operand that it is."""
    kept: tuple[Kept, ...] = ()
    """Of MASK: for each of `reads`."""
    lookup: Lookup | None = None
    factors: list[Step] = field(default_factory=list)
    """Multiplications whose result this one's is, so far."""
