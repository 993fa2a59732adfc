"""One executed operator of a reference, in the form that the analysis stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from harness.sol.element_regions import StridedView


class Kind(Enum):
    """Dependence of an operator's results on its operands."""

    POINTWISE = auto()
    """Each element depends on the operands' elements at the same position."""
    MATRIX = auto()
    """Rows depend on rows of the first operand, columns on columns of the second."""
    PIECES = auto()
    """Each piece of the result is one operand."""
    MASK = auto()
    """Some elements depend on one operand, the others on another or on none."""
    GATHER = auto()
    """Elements depend on elements of a table, at positions in an index."""
    SCATTER = auto()
    """Some elements of the target depend on the values, the others are unchanged."""
    OTHER = auto()
    """Each element may depend on all elements."""


@dataclass(frozen=True)
class MaskShare:
    """Share of an operand's elements that a mask selects, and of its rows and columns with a selected element.

    `elements` is None, and the others are without meaning, if the values of the mask are not known.
    """

    elements: float | None
    rows: float = 1.0
    columns: float = 1.0


@dataclass(frozen=True)
class Lookup:
    """Rows that an index selects from a table."""

    rows: int
    """Rows of the table."""
    count: int
    """Selected rows, with repetitions."""
    positions: torch.Tensor | None
    """Distinct selected rows; None if the index is not known."""
    axes: tuple[int, ...]
    """Indexed axes of the table."""
    part: float = 1.0
    """Share of the table that can be selected; in `gather`, each lane selects from its own part."""


@dataclass
class Step:
    """One executed operator."""

    kind: Kind
    reads: tuple[StridedView, ...]
    writes: tuple[StridedView, ...]
    product: tuple[str, str] | None = None
    """For a product: stored dtypes of the operands."""
    product_operations: float = 0.0
    """Floating-point operations of matrix units."""
    elementwise: str = "float32"
    """Stored dtype of the other operations."""
    elementwise_operations: float = 0.0
    """Floating-point operations of vector units."""
    overwrites: bool = False
    """Every element of `writes` is written, and none of them is read."""
    changes: bool = False
    """`writes` is one of the operands."""
    pieces: tuple[tuple[StridedView, StridedView], ...] = ()
    """For PIECES: each part of the result, with its operand."""
    mask_shares: tuple[MaskShare, ...] = ()
    """For MASK: one for each of `reads`."""
    lookup: Lookup | None = None
    factors: list[Step] = field(default_factory=list)
    """Earlier multiplications whose result is a factor of this one."""
