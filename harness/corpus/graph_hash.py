"""Identity of a graph without names, constants and sizes: two models that compute the same share it."""

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
"""Operators that move or make data and compute nothing."""


def compute_operations(nodes: Sequence[fx.Node]) -> list[str]:
    """Names of the operators that compute, in order."""
    return [operation for operation in map(operation_of, nodes) if operation not in _MOVING]


def graph_hash(exported: ExportedModule) -> str:
    """sha256 over the operators and how values flow between them, 16 hexadecimal digits."""
    nodes = live_operations(exported)
    numbers: dict[fx.Node, str] = {}
    lines = []
    for index, node in enumerate(nodes):
        arguments = _shape_of([*node.args, *(node.kwargs[key] for key in sorted(node.kwargs))], numbers)
        numbers[node] = f"n{index}"
        operation = operation_of(node)
        lines.append(f"{'reshape' if operation in {'view', '_unsafe_view'} else operation} {arguments}")
    lines += [f"return {numbers.get(resolved(node), 'input')}" for node in exported.outputs]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _shape_of(value: Any, numbers: dict[fx.Node, str]) -> str:  # noqa: ANN401 - an argument of any kind
    """An argument's kind: a value's number, or a mark for constants and sizes."""
    if isinstance(value, fx.Node):
        value = resolved(value)
        if is_size(value):
            return "#"
        return numbers.setdefault(value, f"i{len(numbers)}")
    if isinstance(value, list | tuple):
        marks = [_shape_of(item, numbers) for item in value]
        return "#" if marks and set(marks) == {"#"} else f"[{' '.join(marks)}]"
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, torch.dtype):
        return "dtype"
    return "#"
