"""Problems in the SOL-ExecBench schema (docs/formats.md). The checker is `harness.formats.problems`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness.model.axes import Axis, NonEmpty, Size, evaluate_axes
from harness.model.base_models import LenientModel, StrictModel

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float4_e2m1fn_x2",
    "int64", "int32", "int16", "int8", "bool",
]  # fmt: skip

DTYPE_BYTES: dict[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float4_e2m1": 1, "float4_e2m1fn_x2": 1, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element; torch counts a packed pair of 4-bit numbers as one element."""


def _torch_name(dtype: Dtype) -> Dtype:
    return "float4_e2m1fn_x2" if dtype == "float4_e2m1" else dtype


def _none_is_empty(value: object) -> object:
    return () if value is None else tuple(value) if isinstance(value, list) else value


class TensorSpec(LenientModel):
    """Shape and dtype of an input or output. `shape` is null for a Python scalar and [] for a 0-d tensor.

    `dtype` gets torch's name: `float4_e2m1` becomes `float4_e2m1fn_x2`.
    """

    shape: tuple[NonEmpty, ...] | None
    dtype: Annotated[Dtype, AfterValidator(_torch_name)]
    description: str | None = None
    x_updates: NonEmpty | None = None
    """Only for an output: the input that the reference updates in place, which is the output's initial value."""


class Definition(LenientModel):
    """definition.json."""

    name: NonEmpty
    op_type: str | None = None
    description: str | None = None
    hf_id: str | None = None
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: NonEmpty
    custom_inputs_entrypoint: NonEmpty | None = None
    constraints: Annotated[tuple[NonEmpty, ...], BeforeValidator(_none_is_empty)] = ()

    @property
    def tensors(self) -> dict[str, TensorSpec]:
        """The inputs and the outputs by name."""
        return self.inputs | self.outputs

    @property
    def updates(self) -> dict[str, str]:
        """Map each output that is updated in place to the input that is its initial value."""
        return {name: spec.x_updates for name, spec in self.outputs.items() if spec.x_updates is not None}


class RandomInput(LenientModel):
    """A tensor that the judge draws by its dtype and role."""

    type: Literal["random"]


class ScalarInput(LenientModel):
    """A value in the workload."""

    type: Literal["scalar"]
    value: int | float | bool


class SafetensorsInput(LenientModel):
    """A tensor from a file, relative to the problem directory or the configured data root."""

    type: Literal["safetensors"]
    path: NonEmpty
    tensor_key: NonEmpty


class CustomInput(LenientModel):
    """A tensor from the definition's `custom_inputs_entrypoint`."""

    type: Literal["custom"]


InputSource = Annotated[RandomInput | ScalarInput | SafetensorsInput | CustomInput, Field(discriminator="type")]


class Tolerance(LenientModel):
    """Tolerance: |x - y| <= max_atol + max_rtol * |y| for at least the share `required_matched_ratio` of elements."""

    max_atol: float = Field(default=1e-2, ge=0)
    max_rtol: float = Field(default=1e-2, ge=0)
    required_matched_ratio: float = Field(default=0.99, ge=0, le=1)
    max_error_cap: float | None = Field(default=None, ge=0)
    allow_negative_inf: bool = False


class Workload(LenientModel):
    """One line of workload.jsonl: concrete sizes and values."""

    uuid: NonEmpty
    axes: dict[str, Size]
    inputs: dict[str, InputSource]
    tolerance: Tolerance = Tolerance()

    @property
    def is_custom(self) -> bool:
        """True if code of the problem creates the inputs."""
        return any(isinstance(source, CustomInput) for source in self.inputs.values())

    @property
    def scalars(self) -> dict[str, int | float | bool]:
        """The values that the workload states, by input."""
        return {name: source.value for name, source in self.inputs.items() if isinstance(source, ScalarInput)}


class Problem(StrictModel):
    """One problem directory, read and checked."""

    key: str
    """`suite/name`."""
    directory: Path
    data_root: Path | None = None
    """Directory of safetensors files besides the problem's own. The digest does not include it."""
    digest: str
    """`sha256:...` over every file that affects judging (all but solutions/ and *.md)."""
    definition: Definition
    workloads: tuple[Workload, ...]
    warnings: tuple[str, ...] = ()

    @property
    def request_fields(self) -> dict[str, Any]:
        """The fields by which a request to a judge names this problem."""
        root = str(self.data_root) if self.data_root else None
        return {
            "problem": self.key, "problem_dir": str(self.directory), "problem_digest": self.digest, "data_root": root
        }  # fmt: skip

    def sizes(self, workload: Workload) -> dict[str, int]:
        """Return the size of every axis for one workload, in declaration order."""
        return evaluate_axes(self.definition.axes, workload.axes)

    @staticmethod
    def shape(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the concrete shape of a tensor; () for a scalar or 0-d tensor."""
        return tuple(int(axis) if axis.isdigit() else sizes[axis] for axis in spec.shape or ())

    @staticmethod
    def nbytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
        """Return the bytes of a tensor; 0 for a scalar, which is passed by value."""
        return 0 if spec.shape is None else math.prod(Problem.shape(spec, sizes)) * DTYPE_BYTES[spec.dtype]
