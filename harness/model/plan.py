"""The launch plan of a sealed CUDA solution: the schema of `launch` and `workspaces` in solution.yaml.

A solution consists of device code and this plan; no host code of its author runs. Every size is an expression over the
problem's axes, its integer scalar inputs and the solution's params (`harness.model.axes`). So the judge computes the
parameters of each launch.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.model.base_models import StrictModel

Expression = int | str
"""An integer, or an expression over axes, integer scalar inputs and params."""
MapDtype = Literal[
    "u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bf16", "tf32", "fp4", "fp4_padded", "fp6_padded"
]
"""Element types of a TMA descriptor. The last three are for sm_100: `fp4` (also for nvfp4 and mxfp4) packs two
elements into a byte. The padded types store 16 elements in 16 bytes of shared memory, as tcgen05 reads mixed operands.
"""


class Int32(StrictModel):
    """A 32-bit integer argument."""

    i32: Expression


class Int64(StrictModel):
    """A 64-bit integer argument."""

    i64: Expression


class Uint32(StrictModel):
    """An unsigned 32-bit integer argument."""

    u32: Expression


class Uint64(StrictModel):
    """An unsigned 64-bit integer argument."""

    u64: Expression


class Float32(StrictModel):
    """A 32-bit float: a number, or the name of a scalar input."""

    f32: float | str


class Float64(StrictModel):
    """A 64-bit float: a number, or the name of a scalar input."""

    f64: float | str


class WorkspacePointer(StrictModel):
    """The address of a workspace plus `offset` bytes."""

    workspace: str
    offset: Expression = 0


class TensorPointer(StrictModel):
    """The address of an input or output plus `offset` bytes; the plain name is short for offset 0."""

    tensor: str
    offset: Expression = 0


class TensorMap(StrictModel):
    """A TMA descriptor (`CUtensorMap`) that the trusted launcher encodes and passes as `__grid_constant__`.

    Source: CUDA Driver API, `cuTensorMapEncodeTiled`. Dimensions run from the fastest-moving one.
    """

    tensor: str | None = None
    workspace: str | None = None
    offset: Expression = 0
    dtype: MapDtype | None = None
    """null: the tensor's element type."""
    dims: Annotated[tuple[Expression, ...], Field(min_length=1, max_length=5)]
    """Elements of each dimension."""
    strides: Annotated[tuple[Expression, ...], Field(max_length=4)] = ()
    """Bytes between elements of dimension 1 and up; empty: contiguous."""
    box: Annotated[tuple[Expression, ...], Field(min_length=1, max_length=5)]
    """Elements of the tile."""
    element_strides: tuple[Expression, ...] = ()
    swizzle: Literal["none", "32B", "64B", "128B", "128B_atom_32B", "128B_atom_32B_flip_8B", "128B_atom_64B"] = "none"
    """The last three are for sm_100."""
    interleave: Literal["none", "16B", "32B"] = "none"
    l2_promotion: Literal["none", "64B", "128B", "256B"] = "128B"
    fill: Literal["zero", "nan"] = "zero"
    """Value of reads outside the tensor."""


class TensorMapArgument(StrictModel):
    """A TMA descriptor as an argument."""

    tensor_map: TensorMap


Argument = (
    str | Int32 | Int64 | Uint32 | Uint64 | Float32 | Float64 | WorkspacePointer | TensorPointer | TensorMapArgument
)
"""A plain name is an input or output: the address of a tensor, or the value of a scalar in its declared dtype."""

Extent = Annotated[tuple[Expression, ...], Field(min_length=1, max_length=3)]


class Launch(StrictModel):
    """One kernel launch of the plan."""

    kernel: str
    """Name of an `extern "C" __global__` function, or a C++ name expression such as `gemm<128, 2>`."""
    grid: Extent
    block: Extent
    shared_bytes: Expression = 0
    """Dynamic shared memory; above 48 KB the launcher raises the kernel's limit."""
    cluster: Extent | None = None
    """Thread block cluster (sm_90 and up)."""
    cooperative: bool = False
    """Cooperative launch: all blocks are resident at once, so that the grid may synchronise."""
    args: tuple[Argument, ...] = ()
    repeat: Expression = 1
    """Number of consecutive launches."""


class WorkspaceSpec(StrictModel):
    """Scratch memory of the solution on the device, allocated before the first call."""

    bytes: Expression
    init: Annotated[int, Field(ge=0, le=255)] | Annotated[float, Field(strict=True)] | Literal["none"] = 0
    """Content before the first launch of every call: a byte (0 to 255), a float32 (written with a decimal point), or
    `none` for the content after the previous call (before the first call: poison)."""
