"""Hash of a graph without names, constants and sizes: models with the same computation have the same hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from harness.corpus.exporting import ExportedModule
from harness.corpus.printing import is_size, live_operations, resolved
from harness.corpus.variable_names import operation_of

_MOVING = {
    "reshape", "view", "_unsafe_view", "transpose", "permute", "t", "unsqueeze", "squeeze", "expand", "expand_as",
    "contiguous", "clone", "slice", "select", "to", "_to_copy", "type_as", "cat", "stack", "chunk", "split",
    "split_with_sizes", "unbind", "getitem", "arange", "zeros", "ones", "full", "empty", "new_zeros", "new_ones",
    "zeros_like", "ones_like", "full_like", "flatten", "unflatten", "repeat", "alias", "detach", "narrow", "movedim",
    "scalar_tensor", "copy", "tensor", "new_full", "empty_like", "pixel_shuffle", "pixel_unshuffle", "roll", "flip",
    "unfold", "pad", "constant_pad_nd", "slice_scatter", "repeat_interleave", "view_as", "lift_fresh_copy", "diagonal",
}  # fmt: skip
"""Operators that move or create data without arithmetic."""


def compute_operations(nodes: Sequence[fx.Node]) -> list[str]:
    """Return the names of the operators with arithmetic, in order."""
    return [operation for operation in map(operation_of, nodes) if operation not in _MOVING]


def graph_hash(exported: ExportedModule) -> str:
    """Return a sha256 over the operators and the data flow between them, cut to 16 hexadecimal digits."""
    nodes = live_operations(exported)
    numbers: dict[fx.Node, str] = {}
    lines = []
    for index, node in enumerate(nodes):
        arguments = _argument_text([*node.args, *(node.kwargs[key] for key in sorted(node.kwargs))], numbers)
        numbers[node] = f"n{index}"
        operation = operation_of(node)
        lines.append(f"{'reshape' if operation in {'view', '_unsafe_view'} else operation} {arguments}")
    lines += [f"return {numbers.get(resolved(node), 'input')}" for node in exported.outputs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _argument_text(value: Any, numbers: dict[fx.Node, str]) -> str:  # noqa: ANN401 - an argument of any kind
    """Return the number of a node, or `#` for constants and sizes; lists recursively."""
    if isinstance(value, fx.Node):
        value = resolved(value)
        if is_size(value):
            return "#"
        return numbers.setdefault(value, f"i{len(numbers)}")
    if isinstance(value, list | tuple):
        items = [_argument_text(item, numbers) for item in value]
        return "#" if items and set(items) == {"#"} else f"[{' '.join(items)}]"
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, torch.dtype):
        return "dtype"
    return "#"
