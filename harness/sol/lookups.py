"""Rows that an operator reads from a table, with their positions if the index is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness.sol.arguments import OperatorCall
from harness.sol.steps import Lookup
from harness.sol.tensor_values import TensorValues


def lookup_of(call: OperatorCall, values: TensorValues) -> Lookup:
    """Return the lookup of a gathering operator; for `gather` and `take` a row is one element.

    Args:
        call: the operator; its first tensor is the table.
        values: knowledge about the values of indices.
    """
    name, args, table, out = call.name, call.args, call.operands[0], call.results[0]
    if "embedding" in name or name == "index_select":
        axis, index = (args[1] % max(1, table.dim()), args[2]) if name == "index_select" else (0, args[1])
        rows = table.shape[axis] if table.dim() else 1
        positions = torch.unique(index).long() if values.is_known(index) else None
        return Lookup(rows, index.numel(), positions, (axis,))
    if name == "index":
        return _index_lookup(args[1], table, out, values)
    if name == "take" or not table.dim():
        return Lookup(table.numel(), out.numel(), None, (-1,))
    size, count = table.shape[args[1]], out.shape[args[1]]
    lanes, used_lanes = table.numel() // max(1, size), out.numel() // max(1, count)
    return Lookup(size, count, None, (-1, args[1]), min(1.0, used_lanes / max(1, lanes)))


def _index_lookup(
    indices: Sequence[torch.Tensor | None], table: torch.Tensor, out: torch.Tensor, values: TensorValues
) -> Lookup:
    """Return the lookup of `table[i, :, j]`; a mask indexes as many axes as it has."""
    indexed = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and indexed[0][1].dtype is torch.bool:
        axis, mask = indexed[0]
        axes = tuple(range(axis, axis + mask.dim()))
        positions = torch.nonzero(mask.flatten()).flatten() if values.is_known(mask) else None
        rows = mask.numel()
    else:
        axes = tuple(axis for axis, _ in indexed)
        rows = math.prod(table.shape[axis] for axis in axes)
        positions = _joint_positions([index for _, index in indexed], [table.shape[axis] for axis in axes], values)
    return Lookup(rows, out.numel() // max(1, table.numel() // max(1, rows)), positions, axes)


def _joint_positions(
    indices: Sequence[torch.Tensor], sizes: Sequence[int], values: TensorValues
) -> torch.Tensor | None:
    """Return the distinct positions in the flattened indexed axes; None if an index is not known."""
    if not all(values.is_known(index) and index.dtype is not torch.bool for index in indices):
        return None
    joint = torch.zeros((), dtype=torch.int64)
    for index, size in zip(indices, sizes, strict=True):
        joint = joint * size + index.long() % max(1, size)
    unique: torch.Tensor = torch.unique(joint)
    return unique
