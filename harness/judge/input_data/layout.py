"""Layout of one workload's inputs and outputs in a slot: offsets, strides, and the message to the runner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch

from harness.model.axis_types import ExprAxis, VarAxis
from harness.model.problem import Problem, TensorSpec, Workload

_ALIGN = 64
_SLOT_ALIGN = 4096
_INTEGERS = {"int64", "int32", "int16", "int8"}


@dataclass(frozen=True)
class Field:
    """One input or output. `scalar` is the kind of a Python scalar, which takes eight bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    scalar: Literal["int", "bool", "float"] | None
    updates: str | None = None
    """Of an output: the input whose content it has before each call."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """The element type; of a scalar the type its eight bytes have."""
        if self.scalar:
            return torch.float64 if self.scalar == "float" else torch.int64
        return getattr(torch, self.dtype)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Layout:
    """One workload's slots. Strides are bytes from slot to slot."""

    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    input_stride: int
    output_stride: int
    axes: tuple[int, ...]

    @property
    def updated(self) -> list[tuple[Field, Field]]:
        """Each input that is updated in place, and the output that begins as it."""
        inputs = {field.name: field for field in self.inputs}
        return [(inputs[field.updates], field) for field in self.outputs if field.updates is not None]

    @property
    def io_bytes(self) -> int:
        """Bytes of one call's inputs and outputs."""
        return sum(field.bytes for field in (*self.inputs, *self.outputs))

    def message(self, slots: int, variant: str) -> dict[str, Any]:
        """Message to the runner."""
        return {
            "op": "workload",
            "inputs": [asdict(field) for field in self.inputs],
            "outputs": [asdict(field) for field in self.outputs],
            "input_stride": self.input_stride,
            "output_stride": self.output_stride,
            "slots": slots,
            "axes": list(self.axes),
            "variant": variant,
        }


def layout_of(problem: Problem, workload: Workload) -> Layout:
    """Lay out one workload."""
    sizes = problem.sizes(workload)
    definition = problem.definition
    inputs, input_end = _place(definition.inputs, problem, sizes)
    outputs, output_end = _place(definition.outputs, problem, sizes)
    axes = tuple(sizes[name] for name, axis in definition.axes.items() if isinstance(axis, VarAxis | ExprAxis))
    return Layout(inputs, outputs, _up(input_end, _SLOT_ALIGN), _up(output_end, _SLOT_ALIGN), axes)


def _place(specs: Mapping[str, TensorSpec], problem: Problem, sizes: dict[str, int]) -> tuple[tuple[Field, ...], int]:
    fields, end = [], 0
    for name, spec in specs.items():
        shape = problem.shape(spec, sizes)
        dtype = spec.dtype
        if spec.shape is None:
            kind: Literal["int", "bool", "float"]
            kind = "int" if dtype in _INTEGERS else "bool" if dtype == "bool" else "float"
            fields.append(Field(name, dtype, (), end, 8, kind))
            end += 8
        else:
            size = math.prod(shape) * getattr(torch, dtype).itemsize
            fields.append(Field(name, dtype, shape, end, size, None, spec.x_updates))
            end += size
        end = _up(end, _ALIGN)
    return tuple(fields), max(end, 8)


def _up(value: int, align: int) -> int:
    return -(-value // align) * align
