"""A launch plan resolved for one workload: numbers only, for the trusted launcher.

The result is plain data, which the launcher receives as JSON. Every value is checked here against the hardware's
limits, so that an invalid plan gives an error that names its key in solution.yaml instead of a CUDA error code.
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
"""Maximum blocks of a cluster on sm_90 and sm_100; more than 8 are non-portable and need a function attribute.
Source: CUDA C++ programming guide."""
SM_COUNT = "SM_COUNT"
"""Name of the number of multiprocessors in expressions; an axis or param of this name takes precedence."""
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
"""Element types of TMA descriptors; every other dtype is copied as bytes (`u8`)."""


@dataclass(frozen=True)
class DeviceLimits:
    """Properties of a GPU that a plan depends on. The defaults are those of an H200, for checks without a GPU."""

    shared_bytes: int = 232_448
    """Maximum dynamic shared memory of a block."""
    sm_count: int = 132


@dataclass(frozen=True)
class _MapRules:
    """Restrictions of an element type on a TMA descriptor. Source: CUDA Driver API, `cuTensorMapEncodeTiled`."""

    bits: int
    first_dim: int = 1
    """The first dimension must be a multiple of this number of elements."""
    first_box: int | None = None
    """Required size of the box's first dimension; None for any size."""
    alignment: int = 16
    """Strides and offset must be multiples of this number of bytes."""


_MAP_RULES: dict[str, _MapRules] = {
    "fp4": _MapRules(4, first_dim=2),
    "fp4_padded": _MapRules(4, first_dim=128, first_box=128, alignment=32),
    "fp6_padded": _MapRules(6, first_dim=128, first_box=128, alignment=32),
    "tf32": _MapRules(32),
    "bf16": _MapRules(16),
}
"""Rules of the types that have restrictions, or whose name does not contain their number of bits."""


@dataclass(frozen=True)
class Pointer:
    """A device address: a buffer (`input:NAME`, `output:NAME` or `workspace:NAME`) and an offset in bytes."""

    buffer: str
    offset: int
    kind: Literal["pointer"] = "pointer"


@dataclass(frozen=True)
class Value:
    """A scalar that is passed by value; `format` is that of the module `struct`."""

    format: str
    value: float
    kind: Literal["value"] = "value"


@dataclass(frozen=True)
class EncodedMap:
    """The resolved parameters of a TMA descriptor."""

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
    """One launch with its resolved parameters."""

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
    """A step that writes zeros to `bytes` bytes of a buffer. Only recorded solutions have such steps."""

    buffer: str
    offset: int
    bytes: int
    kind: Literal["fill"] = "fill"


@dataclass(frozen=True)
class ResolvedPlan:
    """Steps and workspaces of one call of one workload, for the launcher."""

    steps: tuple[ResolvedLaunch | ResolvedFill, ...]
    """Launches and fills in the order of execution."""
    workspaces: Mapping[str, tuple[int, int | float | Literal["none"]]]
    """Name -> (bytes, init)."""

    @property
    def launches(self) -> tuple[ResolvedLaunch, ...]:
        """The steps that launch the solution's own kernels."""
        return tuple(step for step in self.steps if isinstance(step, ResolvedLaunch))

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data for the launcher."""
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
    """Return a plan with its expressions evaluated for one workload.

    Args:
        launches: `launch` of solution.yaml.
        workspaces: `workspaces` of solution.yaml.
        definition: the problem's definition; arguments name its inputs and outputs.
        params: the solution's params; expressions may contain the integer ones.
        device: limits of the GPU; None for those of an H200.

    Raises:
        FormatError: a value is not allowed; the error names the launch and the field in solution.yaml.
    """
    device = device or DeviceLimits()
    names: dict[str, int] = {SM_COUNT: device.sm_count, **sizes}
    names |= {name: int(value) for name, value in (*scalars.items(), *params.items()) if isinstance(value, int)}
    resolver = _WorkloadResolver(definition, names, scalars, dict(params), frozenset(workspaces), device)
    resolved: list[ResolvedLaunch] = []
    for number, launch in enumerate(launches):
        where = f"launch[{number}]"
        repeat = resolver.integer(launch.repeat, f"{where}.repeat", minimum=0, maximum=MAX_LAUNCHES)
        resolved += [resolver.launch(launch, where)] * repeat
    if len(resolved) > MAX_LAUNCHES:
        raise FormatError(
            f"the plan makes {len(resolved)} launches a call; expected at most {MAX_LAUNCHES}", where="launch"
        )
    resolved_workspaces = {
        name: (
            resolver.integer(spec.bytes, f"workspaces.{name}.bytes", minimum=1, maximum=MAX_WORKSPACE_BYTES),
            spec.init,
        )
        for name, spec in workspaces.items()
    }
    return ResolvedPlan(tuple(resolved), resolved_workspaces)


@dataclass(frozen=True)
class _WorkloadResolver:
    """Resolves expressions and arguments with the sizes and values of one workload."""

    definition: Definition
    names: Mapping[str, int]
    scalars: Mapping[str, float]
    params: Mapping[str, float | str]
    workspaces: frozenset[str]
    device: DeviceLimits

    def integer(self, expression: Expression, where: str, *, minimum: int, maximum: int) -> int:
        if isinstance(expression, int):
            value = expression
        else:
            try:
                value = evaluate(expression, self.names)
            except FormatError as error:
                raise FormatError(error.message, where=where) from error
        if not minimum <= value <= maximum:
            raise FormatError(f"`{expression}` gives {value}; expected {minimum} to {maximum}", where=where)
        return value

    def integers(
        self, expressions: tuple[Expression, ...], where: str, *, minimum: int, maximum: int
    ) -> tuple[int, ...]:
        return tuple(
            self.integer(expression, f"{where}[{i}]", minimum=minimum, maximum=maximum)
            for i, expression in enumerate(expressions)
        )

    def extent(self, parts: tuple[Expression, ...], limits: tuple[int, ...], where: str) -> tuple[int, int, int]:
        padded = (*parts, 1, 1)[:3]
        x, y, z = (
            self.integer(part, f"{where}[{i}]", minimum=1, maximum=limit)
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
        shared_bytes = self.integer(
            launch.shared_bytes, f"{where}.shared_bytes", minimum=0, maximum=self.device.shared_bytes
        )
        arguments = tuple(self.argument(argument, f"{where}.args[{i}]") for i, argument in enumerate(launch.args))
        return ResolvedLaunch(launch.kernel, grid, block, shared_bytes, cluster, launch.cooperative, arguments)

    def argument(self, argument: Argument, where: str) -> Pointer | Value | EncodedMap:  # noqa: PLR0911 - one a kind
        match argument:
            case str(name):
                return self.named(name, where)
            case TensorPointer(tensor=name, offset=offset):
                return Pointer(self.tensor(name, where), self.offset(offset, where))
            case WorkspacePointer(workspace=name, offset=offset):
                return Pointer(self.workspace(name, where), self.offset(offset, where))
            case Float32(f32=value):
                return Value("f", self.number(value, f"{where}.f32"))
            case Float64(f64=value):
                return Value("d", self.number(value, f"{where}.f64"))
            case TensorMapArgument(tensor_map=spec):
                return self.tensor_map(spec, f"{where}.tensor_map")
            case _:
                field, format_, minimum, maximum = _INTEGERS[type(argument)]
                expression = getattr(argument, field)
                return Value(format_, self.integer(expression, f"{where}.{field}", minimum=minimum, maximum=maximum))

    def offset(self, expression: Expression, where: str) -> int:
        return self.integer(expression, f"{where}.offset", minimum=0, maximum=2**48)

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
        tensors = ", ".join(f"`{tensor}`" for tensor in self.definition.tensors)
        raise FormatError(
            f"`{name}` is no input or output; expected one of {tensors}, or {{i32: …}} for a size", where=where
        )

    def workspace(self, name: str, where: str) -> str:
        if name not in self.workspaces:
            declared = ", ".join(f"`{workspace}`" for workspace in sorted(self.workspaces)) or "none is declared"
            raise FormatError(f"`{name}` is no workspace; expected one of: {declared}", where=where)
        return f"workspace:{name}"

    def number(self, value: float | str, where: str) -> float:
        if not isinstance(value, str):
            return value
        for source in (self.scalars, self.params, self.names):
            number = source.get(value)
            if isinstance(number, int | float):
                return float(number)
        raise FormatError(f"`{value}` is no scalar input, param or axis", where=where)

    def tensor_map(self, spec: TensorMap, where: str) -> EncodedMap:
        if (spec.tensor is None) == (spec.workspace is None):
            raise FormatError("expected either `tensor` or `workspace`", where=where)
        dtype: MapDtype | None = spec.dtype
        if spec.tensor is not None:
            buffer = self.tensor(spec.tensor, f"{where}.tensor")
            dtype = dtype or _MAP_DTYPES.get(self.definition.tensors[spec.tensor].dtype, "u8")
        else:
            buffer = self.workspace(spec.workspace or "", f"{where}.workspace")
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
        dims = self.integers(spec.dims, f"{where}.dims", minimum=1, maximum=2**32)
        box = self.integers(spec.box, f"{where}.box", minimum=1, maximum=256)
        if dims[0] % rules.first_dim:
            raise FormatError(
                f"{dims[0]} elements of {dtype}; expected a multiple of {rules.first_dim}", where=f"{where}.dims[0]"
            )
        if rules.first_box is not None and box[0] != rules.first_box:
            raise FormatError(f"a box of {box[0]}; {dtype} has {rules.first_box}", where=f"{where}.box[0]")
        element_strides = self.integers(spec.element_strides, f"{where}.element_strides", minimum=1, maximum=8)
        return EncodedMap(
            buffer,
            self.offset(spec.offset, where),
            dtype,
            dims,
            self.strides(spec, dims, rules, where),
            box,
            element_strides or (1,) * rank,
            spec.swizzle,
            spec.interleave,
            spec.l2_promotion,
            spec.fill,
        )

    def strides(self, spec: TensorMap, dims: tuple[int, ...], rules: _MapRules, where: str) -> tuple[int, ...]:
        if spec.strides:
            strides = self.integers(spec.strides, f"{where}.strides", minimum=16, maximum=2**40)
        else:
            contiguous, bits = [], rules.bits
            for dim in dims[:-1]:
                bits *= dim
                contiguous.append(bits // 8)
            strides = tuple(contiguous)
        for i, stride in enumerate(strides):
            if stride % rules.alignment:
                raise FormatError(
                    f"a stride of {stride} bytes; expected a multiple of {rules.alignment}",
                    where=f"{where}.strides[{i}]",
                )
        return strides
