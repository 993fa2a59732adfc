"""Workloads and tolerances of a problem."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx

from harness.corpus.checkpoints import ShapeSet
from harness.corpus.draft import ProblemDraft
from harness.corpus.errors import SkippedError
from harness.corpus.printing import live_operations, resolved

_NAMESPACE = uuid.UUID("6f2d7b1e-51b7-5a0f-9a63-0d3f6f0d8f11")
"""Namespace of the version 5 UUIDs: equal problems and sizes have equal UUIDs."""
_MAX_BYTES = 18 * 2**30
"""Maximum bytes of the inputs and the results that exist at the same time. A GPU of 80 GB holds those of the reference
and of a candidate."""
_MAX_ELEMENTS = 2**31 - 1
"""Maximum elements of one tensor: kernels commonly index with 32 bits."""
_MIN_WORKLOADS = 3
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
    """Return the sizes of a problem's variable axes for each entry of a shape set, without repetitions.

    Args:
        axes: the problem's variable axes.
        shapes: typical sizes of the model's family.
    """
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
        batch: batch size.
        sequence: length of the sequence.
        text: length of the second sequence.
    """
    match = _AXIS.match(axis)
    if match is None:
        return sequence
    base = {"batch": batch, "text": text, "tokens": batch * sequence, "joint": sequence + text}
    base["text_tokens"] = batch * text
    return base.get(match["base"], sequence) * int(match["times"] or 1) + int(match["plus"] or 0)


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
        draft: the problem.
        shapes: typical sizes of the model's family.
        tolerance: tolerance of every workload.

    Raises:
        SkippedError: fewer than three workloads are allowed and fit into memory.
    """
    lines = []
    memory = _MemoryModel(draft)
    source = {name: {"type": "random"} for name in draft.inputs}
    for sizes in sizes_for(draft.variable_axes, shapes):
        if not draft.allows(sizes) or not memory.fits(sizes):
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
    """Return the number of elements of the largest result in a reference.

    Args:
        draft: the problem.
        sizes: size of each variable axis.
    """
    values = {symbol: sizes[name] for symbol, name in draft.exported.axes.items() if name in sizes}
    return max(_extent(node, values)[0] for node in live_operations(draft.exported))


class _MemoryModel:
    """Peak memory of a reference as a function of the sizes."""

    def __init__(self, draft: ProblemDraft) -> None:
        self._symbols = draft.exported.axes
        nodes = live_operations(draft.exported)
        self._inputs = [item.node for item in draft.sources.values()]
        last_use = {resolved(arg): index for index, node in enumerate(nodes) for arg in node.all_input_nodes}
        output_nodes = {resolved(node) for node in draft.exported.outputs}
        # Each operation with the results that are freed after it.
        self._steps = [
            (node, [n for n in nodes[: index + 1] if last_use.get(n) == index and n not in output_nodes])
            for index, node in enumerate(nodes)
        ]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        values = {symbol: sizes[name] for symbol, name in self._symbols.items() if name in sizes}
        live_bytes = 0
        for node in self._inputs:
            count, nbytes = _extent(node, values)
            if count > _MAX_ELEMENTS:
                return False
            live_bytes += nbytes
        peak = live_bytes
        for node, freed in self._steps:
            count, nbytes = _extent(node, values)
            if count > _MAX_ELEMENTS:
                return False
            live_bytes += nbytes
            peak = max(peak, live_bytes)
            live_bytes -= sum(_extent(node, values)[1] for node in freed)
        return peak <= _MAX_BYTES


def _extent(node: fx.Node, values: Mapping[sympy.Symbol, int]) -> tuple[int, int]:
    """Return the elements of a node's largest tensor, and the bytes of its tensors; a view counts as a copy."""
    tensors = list(_tensors(node.meta.get("val")))
    counts = [math.prod(_number(size, values) for size in tensor.shape) for tensor in tensors]
    nbytes = sum(count * tensor.element_size() for count, tensor in zip(counts, tensors, strict=True))
    return max(counts, default=0), nbytes


def _tensors(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401 - a tensor, or several
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _number(size: int | torch.SymInt, values: Mapping[sympy.Symbol, int]) -> int:
    if isinstance(size, torch.SymInt):
        return int(size.node.expr.xreplace(dict(values)))
    return size
