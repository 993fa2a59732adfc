"""The profile `small`: workloads with sizes that a CPU computes in milliseconds (docs/how-to/small-problems.md).

Only `var` axes change, because references may contain the values of constant axes. Axes are halved, the largest first,
until each is at most `MAX_AXIS`, all tensors take at most `MAX_BYTES`, and the rows of the outputs times the bytes of
the weights are at most `MAX_WORK`. Constraints remain true, and exact divisions remain exact.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.model.axes import ConstAxis, ExprAxis, UncheckableError, VarAxis, evaluate, evaluate_axes, holds, names_in
from harness.model.problem import Definition, Problem, Workload

PROFILE = "small"
PROFILE_KEY = "x_profile"
"""Key of definition.json with the name of the profile that its workloads were scaled by."""
MAX_AXIS = 64
MAX_BYTES = 32 * 2**20
"""Limit of all inputs and outputs of a workload together."""
MAX_WORK = 2**29
"""Limit of the outputs' rows times the bytes of the weights (inputs without variable axes).

With weights of one byte, a matrix product at this limit has 1 GFLOP.
"""
_MAX_WORKLOADS = 3


def small_files(definition_text: str, workload_text: str) -> tuple[bytes, bytes] | str:
    """Scale a problem's workloads to at most three different sizes, which include the smallest and the largest.

    Args:
        definition_text: content of definition.json.
        workload_text: content of workload.jsonl.

    Returns:
        definition.json and workload.jsonl, or the reason why the problem has no small sizes.

    Raises:
        FormatError: a file is not JSON.
    """
    data: dict[str, Any] = load_json(definition_text, where="definition.json")
    definition = Definition.model_validate(data)
    rows = [load_json(line, where="workload.jsonl") for line in workload_text.splitlines() if line.strip()]
    scaled: dict[tuple[int, ...], dict[str, Any]] = {}
    for row in rows:
        axes = small_axes(definition, Workload.model_validate(row).axes)
        if axes is not None:
            name = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{row['uuid']}/{PROFILE}"))
            scaled.setdefault(tuple(axes.values()), {**row, "uuid": name, "axes": axes})
    if not scaled:
        return f"inputs and outputs take more than {MAX_BYTES // 2**20} MiB at the smallest sizes"
    chosen = _representative_rows(sorted(scaled.values(), key=lambda row: _total_bytes(definition, row["axes"])))
    text = "".join(json.dumps(row) + "\n" for row in chosen)
    return (json.dumps({**data, PROFILE_KEY: PROFILE}, indent=1) + "\n").encode(), text.encode()


def small_axes(definition: Definition, axes: Mapping[str, int]) -> dict[str, int] | None:
    """Return sizes of the `var` axes within the limits; None if halving does not reach the limits.

    Args:
        axes: sizes of the `var` axes in a workload.
    """
    sizes = dict(axes)
    while not _is_small(definition, sizes):
        smaller = next(_halved(definition, sizes), None)
        if smaller is None:
            return sizes if _fits(definition, sizes) else None
        sizes = smaller
    return sizes


def _halved(definition: Definition, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the sizes with one axis halved, the largest axis first, if constraints and exact divisions remain."""
    exact = exact_divisions(definition, sizes)
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        if size > 1:
            smaller = {**sizes, name: size // 2}
            if _is_valid(definition, smaller) and exact <= exact_divisions(definition, smaller):
                yield smaller


def _is_valid(definition: Definition, axes: Mapping[str, int]) -> bool:
    try:
        sizes = evaluate_axes(definition.axes, axes)
    except FormatError:
        return False
    if any(size < 1 for name, size in sizes.items() if not isinstance(definition.axes[name], ConstAxis)):
        return False
    for constraint in definition.constraints:
        try:
            if not holds(constraint, sizes):
                return False
        except (UncheckableError, FormatError):
            continue  # such a constraint needs more than sizes
    return True


def exact_divisions(definition: Definition, axes: Mapping[str, int]) -> frozenset[str]:
    """Return the names of the computed axes whose divisions have no remainder.

    Args:
        axes: sizes of the `var` axes.
    """
    sizes = evaluate_axes(definition.axes, axes)
    exact = set()
    for name, axis in definition.axes.items():
        if isinstance(axis, ExprAxis):
            try:
                evaluate(axis.expression.replace("//", "/"), sizes)
            except FormatError:
                continue
            exact.add(name)
    return frozenset(exact)


def _is_small(definition: Definition, axes: Mapping[str, int]) -> bool:
    return all(size <= MAX_AXIS for size in axes.values()) and _fits(definition, axes)


def _fits(definition: Definition, axes: Mapping[str, int]) -> bool:
    """Return true if memory and work are within the limits; the sizes of single axes are not limited here."""
    variable = _variable_axes(definition)
    sizes = evaluate_axes(definition.axes, axes)
    in_outputs = {axis for spec in definition.outputs.values() for axis in spec.shape or () if axis in variable}
    used = {name for axis in in_outputs for name in _sources(definition, axis)}
    rows = math.prod(size for name, size in axes.items() if name in used)
    constant = [spec for spec in definition.inputs.values() if variable.isdisjoint(spec.shape or ())]
    weights = sum(Problem.nbytes(spec, sizes) for spec in constant)
    return _total_bytes(definition, axes) <= MAX_BYTES and rows * weights <= MAX_WORK


def _variable_axes(definition: Definition) -> set[str]:
    """Return the `var` axes and the axes computed from them."""
    return {
        name
        for name in definition.axes
        if any(isinstance(definition.axes[source], VarAxis) for source in _sources(definition, name))
    }


def _sources(definition: Definition, name: str) -> set[str]:
    """Return the axis itself, or the axes that it is computed from."""
    axis = definition.axes[name]
    if not isinstance(axis, ExprAxis):
        return {name}
    return {source for part in names_in(axis.expression) for source in _sources(definition, part)}


def _total_bytes(definition: Definition, axes: Mapping[str, int]) -> int:
    sizes = evaluate_axes(definition.axes, axes)
    return sum(Problem.nbytes(spec, sizes) for spec in definition.tensors.values())


def _representative_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return at most three rows at equal distances, which include the first and the last."""
    if len(rows) <= _MAX_WORKLOADS:
        return list(rows)
    return [rows[round(number * (len(rows) - 1) / (_MAX_WORKLOADS - 1))] for number in range(_MAX_WORKLOADS)]
