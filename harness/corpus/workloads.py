"""Sizes, workloads and tolerances of a problem."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from harness.corpus.checkpoints import ShapeSet
from harness.corpus.draft import ProblemDraft
from harness.corpus.errors import SkippedError
from harness.corpus.printing import live_operations, resolved
from harness.sol.arguments import tensors_in

_NAMESPACE = uuid.UUID("6f2d7b1e-51b7-5a0f-9a63-0d3f6f0d8f11")
"""Namespace of the version 5 UUIDs: equal problems and sizes have equal UUIDs."""
_MAX_BYTES = 18 * 2**30
"""Maximum bytes of the inputs and the results that exist at the same time. A GPU of 80 GB holds those of the reference
and of a candidate."""
_MAX_ELEMENTS = 2**31 - 1
"""Maximum elements of one tensor: kernels commonly index with 32 bits."""
_MIN_WORKLOADS = 3
_SIZES = ((2, 1), (1, 4), (2, 3), (1, 7))
"""(batch, sequence) of the checks."""
_BATCHES = (1, 2, 3, 5)
"""Batch sizes of the checks of problems without a sequence axis."""
_TOLERANCES = {
    "float32": {"max_rtol": 1e-3, "required_matched_ratio": 0.999},
    "bfloat16": {"max_rtol": 2e-2, "required_matched_ratio": 0.99},
    "float16": {"max_rtol": 5e-3, "required_matched_ratio": 0.99},
}
RELATIVE_ATOL = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
"""`max_atol` relative to the outputs' root mean square. The rounding error of bfloat16 (8 bits) is up to 0.004."""


_OF_SUMS = {"max_rtol": 5e-2, "required_matched_ratio": 0.9}
"""Tolerance for an output that is a sum over all rows, such as the gradient of a weight, where the reference rounds the
summands. The sum of n summands of size 1 is about sqrt(n), and its error 0.1 % to 0.3 % of that. Elements near zero
then exceed any tolerance that fits the other elements. Their share is (2 / pi) * atan(0.003 / max_rtol) = 4 %, and up
to 10 % in an output with few elements."""


def sizes_for(axes: Sequence[str], shapes: ShapeSet) -> list[dict[str, int]]:
    """Return the sizes of a problem's variable axes for each entry of a shape set, without repetitions."""
    bases = {_base(axis) for axis in axes}
    triples: Iterable[tuple[int, int, int]] = ((batch, length, shapes.text) for batch, length in shapes.pairs)
    if bases == {"batch"}:
        triples = ((batch, 1, shapes.text) for batch in shapes.batches)
    elif bases == {"tokens"} and shapes.tokens:
        triples = ((1, tokens, shapes.text) for tokens in shapes.tokens)
    elif bases <= {"batch", "text", "text_tokens"} and shapes.text_pairs:
        triples = ((batch, 1, length) for batch, length in shapes.text_pairs)
    all_sizes = [{axis: axis_size(axis, *triple) for axis in axes} for triple in triples]
    return [sizes for index, sizes in enumerate(all_sizes) if sizes not in all_sizes[:index]]


_AXIS = re.compile(
    r"(?P<base>batch|sequence|text_tokens|text|tokens|joint)(_times_(?P<times>\d+))?(_plus_(?P<plus>\d+))?(_\d+)?$"
)
"""Name of a variable axis; the last number distinguishes axes of the same size."""


def _base(axis: str) -> str:
    match = _AXIS.match(axis)
    return match["base"] if match else axis


def axis_size(axis: str, batch: int, sequence: int, text: int) -> int:
    """Return the size of a variable axis, which its name determines.

    Args:
        axis: name from `harness.corpus.candidates`; an axis of unknown meaning is as long as the sequence.
        text: length of the second sequence.
    """
    match = _AXIS.match(axis)
    if match is None:
        return sequence
    base = {"batch": batch, "text": text, "tokens": batch * sequence, "joint": sequence + text,
            "text_tokens": batch * text}  # fmt: skip
    return base.get(match["base"], sequence) * int(match["times"] or 1) + int(match["plus"] or 0)


def check_sizes(axes: Sequence[str], pairs: tuple[tuple[int, int], ...] = _SIZES) -> list[dict[str, int]]:
    """Return the sizes of the variable axes at which a problem is checked.

    Args:
        pairs: (batch, sequence); ignored if all axes are batch sizes.
    """
    if any(not axis.startswith("batch") for axis in axes):
        return [
            {axis: axis_size(axis, batch, sequence, text=sequence + 1) for axis in axes} for batch, sequence in pairs
        ]
    return [dict.fromkeys(axes, batch) for batch in _BATCHES]


def shown(axes: Mapping[str, int]) -> str:
    """Return the sizes of axes as text, such as `batch=2, sequence=7`."""
    return ", ".join(f"{axis}={size}" for axis, size in axes.items())


def tolerance_for(
    dtype: str, root_mean_square: float, factor: float = 1.0, *, has_sums: bool = False
) -> dict[str, float]:
    """Return the tolerance of a workload; `max_atol` is proportional to the outputs, with one significant digit.

    Args:
        dtype: least precise dtype of the problem.
        root_mean_square: smallest root mean square of an output.
        factor: factor of both tolerances, above 1 where the reference itself is less precise.
        has_sums: an output of low precision is a sum over all rows.
    """
    atol = float(f"{RELATIVE_ATOL[dtype] * root_mean_square * factor:.0e}")
    rtol = float(f"{_TOLERANCES[dtype]['max_rtol'] * factor:.0e}")
    ratio = _TOLERANCES[dtype]["required_matched_ratio"]
    if has_sums:
        rtol, ratio = max(rtol, _OF_SUMS["max_rtol"]), min(ratio, _OF_SUMS["required_matched_ratio"])
    return {"max_atol": atol, "max_rtol": rtol, "required_matched_ratio": ratio}


def has_sums(draft: ProblemDraft) -> bool:
    """Return true if an output of low precision has only constant axes, so that it is a sum over all rows."""
    constant = {name for name, axis in draft.axes.items() if axis["type"] == "const"}
    return any(
        spec["dtype"] in {"bfloat16", "float16"} and all(axis in constant or axis.isdigit() for axis in spec["shape"])
        for spec in draft.outputs.values()
    )


def workload_lines(
    key: str, draft: ProblemDraft, shapes: ShapeSet, tolerance: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Return the lines of workload.jsonl.

    Args:
        key: the problem's key; the UUIDs depend on it.

    Raises:
        SkippedError: fewer than three workloads are allowed and fit into memory.
    """
    lines = []
    source = {name: {"type": "random"} for name in draft.inputs}
    for sizes in sizes_for(draft.variable_axes, shapes):
        if not draft.allows(sizes) or not _fits(draft, sizes):
            continue
        text = ",".join(f"{axis}={size}" for axis, size in sizes.items())
        identity = str(uuid.uuid5(_NAMESPACE, f"{key}:{text}"))
        lines.append({"uuid": identity, "axes": sizes, "inputs": source, "tolerance": dict(tolerance)})
    if len(lines) < _MIN_WORKLOADS:
        raise SkippedError(
            f"only {len(lines)} of the family's shapes are allowed and fit into {_MAX_BYTES // 2**30} GiB"
        )
    return lines


def largest_tensor(draft: ProblemDraft, sizes: Mapping[str, int]) -> int:
    """Return the number of elements of the largest result in a reference."""
    values = {symbol: sizes[name] for symbol, name in draft.exported.axes.items() if name in sizes}
    return max(_extent(node, values)[0] for node in live_operations(draft.exported))


def _fits(draft: ProblemDraft, sizes: Mapping[str, int]) -> bool:
    """Return true if a reference's tensors are not too large, and its peak memory at these sizes is allowed."""
    nodes = live_operations(draft.exported)
    last_use = {resolved(arg): index for index, node in enumerate(nodes) for arg in node.all_input_nodes}
    for node in draft.exported.outputs:
        last_use.pop(resolved(node), None)  # outputs are not freed
    values = {symbol: sizes[name] for symbol, name in draft.exported.axes.items() if name in sizes}
    inputs = [_extent(item.node, values) for item in draft.sources.values()]
    results = [_extent(node, values) for node in nodes]
    if max(count for count, _ in (*inputs, *results)) > _MAX_ELEMENTS:
        return False
    live_bytes = peak = sum(nbytes for _, nbytes in inputs)
    for index, (_, nbytes) in enumerate(results):
        live_bytes += nbytes
        peak = max(peak, live_bytes)
        freed = (extent for node, extent in zip(nodes, results, strict=True) if last_use.get(node) == index)
        live_bytes -= sum(freed_bytes for _, freed_bytes in freed)
    return peak <= _MAX_BYTES


def _extent(node: fx.Node, values: Mapping[sympy.Symbol, int]) -> tuple[int, int]:
    """Return the elements of a node's largest tensor, and the bytes of its tensors; a view counts as a copy."""
    tensors = tensors_in(node.meta.get("val"))
    counts = [math.prod(_number(size, values) for size in tensor.shape) for tensor in tensors]
    nbytes = sum(count * tensor.element_size() for count, tensor in zip(counts, tensors, strict=True))
    return max(counts, default=0), nbytes


def _number(size: int | torch.SymInt, values: Mapping[sympy.Symbol, int]) -> int:
    return int(size.node.expr.xreplace(dict(values))) if isinstance(size, torch.SymInt) else size
