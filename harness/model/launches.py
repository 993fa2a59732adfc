"""A launch plan with one workload's sizes put in: numbers only, ready for the trusted launcher.

The result is plain data (it crosses to the launcher as JSON). Every value is checked here against what the hardware
allows, so that a bad plan is a sentence about solution.yaml and not a CUDA error code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.errors import FormatError
from harness.model.axes import evaluate
from harness.model.plan import (
    Argument,
    Expression,
    Float32,
    Float64,
    Int32,
    Int64,
    Launch,
    MapDtype,
    TensorMap,
    TensorMapArgument,
    TensorPointer,
    Uint32,
    Uint64,
    WorkspacePointer,
    WorkspaceSpec,
)
from harness.model.problem import Definition

MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
MAX_CLUSTER = 16
"""Blocks of a cluster on sm_90 and sm_100, above 8 on request. Source: CUDA C++ programming guide."""
SM_COUNT = "SM_COUNT"
"""Name of the number of multiprocessors in expressions, unless an axis or param has it."""
MAX_LAUNCHES = 256
MAX_WORKSPACE_BYTES = 8 << 30

_INTEGERS: dict[type[object], tuple[str, str, int, int]] = {
    Int32: ("i32", "i", -(2**31), 2**31 - 1),
    Int64: ("i64", "q", -(2**63), 2**63 - 1),
    Uint32: ("u32", "I", 0, 2**32 - 1),
    Uint64: ("u64", "Q", 0, 2**64 - 1),
}
_FORMATS: dict[str, str] = {
    "float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "int8": "b", "bool": "?",
}  # fmt: skip
_MAP_DTYPES: dict[str, MapDtype] = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int64": "i64",
    "int32": "i32",
    "int16": "u16",
}
"""Every other dtype travels as bytes."""


@dataclass(frozen=True)
class DeviceLimits:
    """Properties of a GPU that a plan depends on; the defaults, those of an H200, are for checks without a GPU."""

    shared_bytes: int = 232_448
    """Dynamic shared memory of a block at most."""
    sm_count: int = 132


@dataclass(frozen=True)
class _MapRules:
    """Restrictions on a TMA descriptor by its element type. Source: CUDA Driver API, `cuTensorMapEncodeTiled`."""

    bits: int
    first_dim: int = 1
    """The first dimension is a multiple of this."""
    first_box: int | None = None
    """The only size of the box's first dimension."""
    alignment: int = 16
    """Bytes: strides and offset are multiples."""


_MAP_RULES: dict[str, _MapRules] = {
    "fp4": _MapRules(4, first_dim=2),
    "fp4_padded": _MapRules(4, first_dim=128, first_box=128, alignment=32),
    "fp6_padded": _MapRules(6, first_dim=128, first_box=128, alignment=32),
    "tf32": _MapRules(32),
    "bf16": _MapRules(16),
}
"""The bits of every other type are in its name."""


@dataclass(frozen=True)
class Pointer:
    """A device address: a buffer and bytes into it. `buffer` is `input:NAME`, `output:NAME` or `workspace:NAME`."""

    buffer: str
    offset: int
    kind: Literal["pointer"] = "pointer"


@dataclass(frozen=True)
class Value:
    """A scalar by value, `format` as in `struct`."""

    format: str
    value: float
    kind: Literal["value"] = "value"


@dataclass(frozen=True)
class EncodedMap:
    """A TMA descriptor's parameters, resolved."""

    buffer: str
    offset: int
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: str
    interleave: str
    l2_promotion: str
    fill: str
    kind: Literal["tensor_map"] = "tensor_map"


@dataclass(frozen=True)
class ResolvedLaunch:
    """One launch, in numbers."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int] | None
    cooperative: bool
    args: tuple[Pointer | Value | EncodedMap, ...]
    kind: Literal["launch"] = "launch"


@dataclass(frozen=True)
class ResolvedFill:
    """Zeros written to `bytes` of a buffer, as a part of the call. Of recorded solutions only."""

    buffer: str
    offset: int
    bytes: int
    kind: Literal["fill"] = "fill"


@dataclass(frozen=True)
class ResolvedPlan:
    """Everything the launcher does for one call of one workload."""

    steps: tuple[ResolvedLaunch | ResolvedFill, ...]
    """In order."""
    workspaces: Mapping[str, tuple[int, int | float | Literal["none"]]]
    """Name -> (bytes, init)."""

    @property
    def launches(self) -> tuple[ResolvedLaunch, ...]:
        """The steps that are launches of the solution's own kernels."""
        return tuple(step for step in self.steps if isinstance(step, ResolvedLaunch))

    def as_json(self) -> dict[str, Any]:
        """Plain data for the launcher."""
        return asdict(self)


def resolve(
    launches: tuple[Launch, ...],
    workspaces: Mapping[str, WorkspaceSpec],
    definition: Definition,
    sizes: Mapping[str, int],
    scalars: Mapping[str, float],
    params: Mapping[str, float | str],
    device: DeviceLimits | None = None,
) -> ResolvedPlan:
    """Put sizes, scalar inputs and params into a plan.

    Args:
        launches: the plan.
        workspaces: its workspaces.
        definition: whose inputs and outputs the arguments name.
        sizes: every axis' size.
        scalars: values of the scalar inputs.
        params: the solution's params; the integer ones may stand in expressions.
        device: the GPU at hand.

    Raises:
        FormatError: naming the launch and field in solution.yaml.
    """
    device = device or DeviceLimits()
    names: dict[str, int] = {SM_COUNT: device.sm_count, **sizes}
    names |= {name: int(value) for name, value in (*scalars.items(), *params.items()) if isinstance(value, int)}
    one = _One(definition, names, scalars, dict(params), frozenset(workspaces), device)
    resolved: list[ResolvedLaunch] = []
    for number, launch in enumerate(launches):
        where = f"launch[{number}]"
        repeat = one.integer(launch.repeat, f"{where}.repeat", low=0, high=MAX_LAUNCHES)
        resolved += [one.launch(launch, where)] * repeat
    if len(resolved) > MAX_LAUNCHES:
        raise FormatError(
            f"the plan makes {len(resolved)} launches a call; expected at most {MAX_LAUNCHES}", where="launch"
        )
    spaces = {
        name: (one.integer(spec.bytes, f"workspaces.{name}.bytes", low=1, high=MAX_WORKSPACE_BYTES), spec.init)
        for name, spec in workspaces.items()
    }
    return ResolvedPlan(tuple(resolved), spaces)


@dataclass(frozen=True)
class _One:
    """What the expressions and arguments of one workload are resolved against."""

    definition: Definition
    names: Mapping[str, int]
    scalars: Mapping[str, float]
    params: Mapping[str, float | str]
    workspaces: frozenset[str]
    device: DeviceLimits

    def integer(self, expression: Expression, where: str, *, low: int, high: int) -> int:
        if isinstance(expression, int):
            value = expression
        else:
            try:
                value = evaluate(expression, self.names)
            except FormatError as error:
                raise FormatError(error.message, where=where) from error
        if not low <= value <= high:
            raise FormatError(f"`{expression}` gives {value}; expected {low} to {high}", where=where)
        return value

    def extent(self, parts: tuple[Expression, ...], limits: tuple[int, ...], where: str) -> tuple[int, int, int]:
        padded = (*parts, 1, 1)[:3]
        x, y, z = (
            self.integer(part, f"{where}[{i}]", low=1, high=limit)
            for i, (part, limit) in enumerate(zip(padded, limits, strict=True))
        )
        return x, y, z

    def launch(self, launch: Launch, where: str) -> ResolvedLaunch:
        grid = self.extent(launch.grid, MAX_GRID, f"{where}.grid")
        block = self.extent(launch.block, MAX_BLOCK, f"{where}.block")
        threads = block[0] * block[1] * block[2]
        if threads > MAX_THREADS:
            raise FormatError(f"a block of {threads} threads; expected at most {MAX_THREADS}", where=f"{where}.block")
        cluster = None
        if launch.cluster is not None:
            cluster = self.extent(launch.cluster, (MAX_CLUSTER,) * 3, f"{where}.cluster")
            size = cluster[0] * cluster[1] * cluster[2]
            if size > MAX_CLUSTER:
                raise FormatError(
                    f"a cluster of {size} blocks; expected at most {MAX_CLUSTER}", where=f"{where}.cluster"
                )
            if any(g % c for g, c in zip(grid, cluster, strict=True)):
                raise FormatError(f"the grid {grid} is not a multiple of the cluster {cluster}", where=f"{where}.grid")
        shared = self.integer(launch.shared_bytes, f"{where}.shared_bytes", low=0, high=self.device.shared_bytes)
        arguments = tuple(self.argument(argument, f"{where}.args[{i}]") for i, argument in enumerate(launch.args))
        return ResolvedLaunch(launch.kernel, grid, block, shared, cluster, launch.cooperative, arguments)

    def argument(self, argument: Argument, where: str) -> Pointer | Value | EncodedMap:  # noqa: PLR0911 - one a kind
        match argument:
            case str(name):
                return self.named(name, where)
            case TensorPointer(tensor=name, offset=offset):
                return Pointer(self.tensor(name, where), self.integer(offset, f"{where}.offset", low=0, high=2**48))
            case WorkspacePointer(workspace=name, offset=offset):
                return Pointer(self.space(name, where), self.integer(offset, f"{where}.offset", low=0, high=2**48))
            case Float32(f32=value):
                return Value("f", self.number(value, f"{where}.f32"))
            case Float64(f64=value):
                return Value("d", self.number(value, f"{where}.f64"))
            case TensorMapArgument(tensor_map=spec):
                return self.tensor_map(spec, f"{where}.tensor_map")
            case _:
                field, format_, low, high = _INTEGERS[type(argument)]
                return Value(format_, self.integer(getattr(argument, field), f"{where}.{field}", low=low, high=high))

    def named(self, name: str, where: str) -> Pointer | Value:
        spec = self.definition.inputs.get(name)
        if spec is not None and spec.shape is None:
            if spec.dtype not in _FORMATS:
                raise FormatError(f"scalar `{name}` is {spec.dtype}; pass it as {{f32: {name}}}", where=where)
            return Value(_FORMATS[spec.dtype], self.scalars[name])
        return Pointer(self.tensor(name, where), 0)

    def tensor(self, name: str, where: str) -> str:
        if name in self.definition.inputs and self.definition.inputs[name].shape is not None:
            return f"input:{name}"
        if name in self.definition.outputs:
            return f"output:{name}"
        known = ", ".join(f"`{n}`" for n in (*self.definition.inputs, *self.definition.outputs))
        raise FormatError(
            f"`{name}` is no input or output; expected one of {known}, or {{i32: …}} for a size", where=where
        )

    def space(self, name: str, where: str) -> str:
        if name not in self.workspaces:
            known = ", ".join(f"`{n}`" for n in sorted(self.workspaces)) or "none is declared"
            raise FormatError(f"`{name}` is no workspace; expected one of: {known}", where=where)
        return f"workspace:{name}"

    def number(self, value: float | str, where: str) -> float:
        if not isinstance(value, str):
            return value
        for source in (self.scalars, self.params, self.names):
            found = source.get(value)
            if isinstance(found, int | float):
                return float(found)
        raise FormatError(f"`{value}` is no scalar input, param or axis", where=where)

    def tensor_map(self, spec: TensorMap, where: str) -> EncodedMap:
        if (spec.tensor is None) == (spec.workspace is None):
            raise FormatError("expected either `tensor` or `workspace`", where=where)
        dtype: MapDtype | None = spec.dtype
        if spec.tensor is not None:
            buffer = self.tensor(spec.tensor, f"{where}.tensor")
            specs = self.definition.inputs | self.definition.outputs
            dtype = dtype or _MAP_DTYPES.get(specs[spec.tensor].dtype, "u8")
        else:
            buffer = self.space(spec.workspace or "", f"{where}.workspace")
        if dtype is None:
            raise FormatError("a descriptor of a workspace needs `dtype`", where=where)
        rank = len(spec.dims)
        if len(spec.box) != rank or (spec.strides and len(spec.strides) != rank - 1):
            raise FormatError(
                f"{rank} dims, {len(spec.box)} box sizes, {len(spec.strides)} strides; "
                f"expected {rank}, {rank} and {rank - 1} (or no strides)",
                where=where,
            )
        rules = _MAP_RULES.get(dtype) or _MapRules(int(dtype.lstrip("uif")))
        dims = tuple(self.integer(d, f"{where}.dims[{i}]", low=1, high=2**32) for i, d in enumerate(spec.dims))
        box = tuple(self.integer(b, f"{where}.box[{i}]", low=1, high=256) for i, b in enumerate(spec.box))
        if dims[0] % rules.first_dim:
            raise FormatError(
                f"{dims[0]} elements of {dtype}; expected a multiple of {rules.first_dim}", where=f"{where}.dims[0]"
            )
        if rules.first_box is not None and box[0] != rules.first_box:
            raise FormatError(f"a box of {box[0]}; {dtype} has {rules.first_box}", where=f"{where}.box[0]")
        element_strides = (
            tuple(
                self.integer(s, f"{where}.element_strides[{i}]", low=1, high=8)
                for i, s in enumerate(spec.element_strides)
            )
            or (1,) * rank
        )
        return EncodedMap(
            buffer,
            self.integer(spec.offset, f"{where}.offset", low=0, high=2**48),
            dtype,
            dims,
            self.strides(spec, dims, rules, where),
            box,
            element_strides,
            spec.swizzle,
            spec.interleave,
            spec.l2_promotion,
            spec.fill,
        )

    def strides(self, spec: TensorMap, dims: tuple[int, ...], rules: _MapRules, where: str) -> tuple[int, ...]:
        if spec.strides:
            given = tuple(
                self.integer(s, f"{where}.strides[{i}]", low=16, high=2**40) for i, s in enumerate(spec.strides)
            )
        else:
            sizes, bits = [], rules.bits
            for dim in dims[:-1]:
                bits *= dim
                sizes.append(bits // 8)
            given = tuple(sizes)
        for i, stride in enumerate(given):
            if stride % rules.alignment:
                raise FormatError(
                    f"a stride of {stride} bytes; expected a multiple of {rules.alignment}",
                    where=f"{where}.strides[{i}]",
                )
        return given
