"""Layout of a workload's inputs and outputs in a slot: offsets, strides, and the message to the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from harness.judge.reference import Value
from harness.model.axes import ExprAxis, VarAxis
from harness.model.problem import Problem, TensorSpec, Workload
from harness.runner.messages import Prepare, SlotField
from harness.sol.problem_tensors import torch_dtype

_ALIGN, _SLOT_ALIGN = 64, 4096


@dataclass(frozen=True)
class Field:
    """One input or output of a slot."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the first input or the first output of the slot."""
    bytes: int
    scalar: Literal["int", "bool", "float"] | None
    """Kind of a Python scalar, which takes eight bytes; None for a tensor."""
    updates: str | None = None
    """For an output: the input whose content it has before each call."""

    @property
    def torch_dtype(self) -> torch.dtype:
        """Element type; for a Python scalar, the type of its eight bytes."""
        if self.scalar:
            return torch.float64 if self.scalar == "float" else torch.int64
        return torch_dtype(self.dtype)

    @property
    def in_slot(self) -> SlotField:
        """This field in a message to a runner."""
        return SlotField(self.name, self.dtype, self.shape, self.offset, self.bytes, self.scalar, self.updates)

    def view(self, slot_bytes: torch.Tensor) -> torch.Tensor:
        """Return this field as a tensor on the bytes of a slot; a Python scalar is a 0-d tensor of 64 bits."""
        return slot_bytes[self.offset : self.offset + self.bytes].view(self.torch_dtype).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Layout of the slots of one workload."""

    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    input_stride: int
    """Bytes from the inputs of one slot to those of the next."""
    output_stride: int
    """Bytes from the outputs of one slot to those of the next."""
    axes: tuple[int, ...]
    """Sizes of var and expr axes, in declaration order."""

    @property
    def updated(self) -> list[tuple[Field, Field]]:
        """Return each input that is updated in place, with the output that has its content before a call."""
        inputs = {field.name: field for field in self.inputs}
        return [(inputs[field.updates], field) for field in self.outputs if field.updates is not None]

    def input_views(self, slot_bytes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a slot's inputs by name as tensors on its bytes, for writing."""
        return {field.name: field.view(slot_bytes) for field in self.inputs}

    def input_values(self, views: Mapping[str, torch.Tensor]) -> list[Value]:
        """Return a slot's inputs in declaration order, given as tensors by name: tensors and Python scalars."""
        values: list[Value] = []
        for field in self.inputs:
            value = views[field.name]
            number = value.item() if field.scalar else value
            values.append(bool(number) if field.scalar == "bool" else number)
        return values

    def output_views(self, slot_bytes: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a slot's outputs by name as tensors on its bytes; bools as uint8, because they may have any byte."""
        views = {field.name: field.view(slot_bytes) for field in self.outputs}
        return {name: view.view(torch.uint8) if view.dtype == torch.bool else view for name, view in views.items()}

    @property
    def io_bytes(self) -> int:
        """Bytes of one call's inputs and outputs."""
        return sum(field.bytes for field in (*self.inputs, *self.outputs))

    def message(
        self, slots: int, variant: str = "", launches: Mapping[str, Any] | None = None, placement_bytes: int = 0
    ) -> Prepare:
        """Return the message that prepares a runner for the workload.

        Args:
            slots: number of slots.
            variant: variant of a baseline, such as eager; empty for a candidate.
            launches: launch plan of a sealed solution.
            placement_bytes: on a GPU, bytes from one placement to the next.
        """
        return Prepare(
            inputs=tuple(field.in_slot for field in self.inputs),
            outputs=tuple(field.in_slot for field in self.outputs),
            input_stride=self.input_stride,
            output_stride=self.output_stride,
            axes=self.axes,
            slots=slots,
            variant=variant,
            plan=launches or {},
            placement_bytes=placement_bytes,
        )


def layout_of(problem: Problem, workload: Workload) -> Layout:
    """Return the layout of a workload.

    Args:
        problem: the problem.
        workload: one of its workloads.
    """
    sizes = problem.sizes(workload)
    definition = problem.definition
    inputs, input_end = _place(definition.inputs, problem, sizes)
    outputs, output_end = _place(definition.outputs, problem, sizes)
    axes = tuple(sizes[name] for name, axis in definition.axes.items() if isinstance(axis, VarAxis | ExprAxis))
    return Layout(inputs, outputs, _round_up(input_end, _SLOT_ALIGN), _round_up(output_end, _SLOT_ALIGN), axes)


def calibration_layout(inputs: int, size: int, axes: tuple[int, ...] = ()) -> Layout:
    """Return the layout of the judge's own calls, whose inputs and output are bytes.

    Args:
        inputs: number of inputs.
        size: bytes of each input and of the output.
        axes: sizes of var and expr axes.
    """
    fields = tuple(Field(f"a{number}", "uint8", (size,), number * size, size, None) for number in range(inputs))
    stride = _round_up(inputs * size, _SLOT_ALIGN)
    return Layout(fields, (Field("out", "uint8", (size,), 0, size, None),), stride, stride, axes)


def _place(specs: Mapping[str, TensorSpec], problem: Problem, sizes: dict[str, int]) -> tuple[tuple[Field, ...], int]:
    fields, end = [], 0
    for name, spec in specs.items():
        kind = _scalar_kind(spec.dtype) if spec.shape is None else None
        size = problem.nbytes(spec, sizes) if kind is None else 8
        fields.append(Field(name, spec.dtype, problem.shape(spec, sizes), end, size, kind, spec.x_updates))
        end = _round_up(end + size, _ALIGN)
    return tuple(fields), max(end, 8)


def _scalar_kind(dtype: str) -> Literal["int", "bool", "float"]:
    if dtype == "bool":
        return "bool"
    return "int" if dtype.startswith("int") else "float"


def _round_up(value: int, align: int) -> int:
    return -(-value // align) * align
