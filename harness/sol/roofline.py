"""The speed of light of a workload: no kernel can be faster on a device than its arithmetic and its bytes allow.

Two bounds (docs/sol.md). `sol_us` is what an ideal kernel would take that does the reference's work, keeps every
intermediate result on chip and reads or writes each byte once. `floor_us` is what can be proved: below it, a latency is
not fast but wrong.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import FormatError
from harness.model.problem import DTYPE_BYTES, Problem, ScalarInput, TensorSpec, Workload
from harness.sol.hardware import Hardware

if TYPE_CHECKING:
    from harness.sol.trace import Trace

_REAL_BYTES = 256 * 2**20
"""Inputs up to this size are made for real where the reference's way depends on their values."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of one workload on one device."""

    sol_us: float
    """max(products / peak, elementwise / peak, bytes / bandwidth)."""
    floor_us: float
    """Bytes that provably must move, at the highest rate at which they can."""
    flops: int
    """Floating-point operations of the reference: products, and everything else."""
    bytes: int
    """Read from inputs and written to outputs, each once."""
    limited_by: Literal["products", "elementwise", "memory"]
    floor_bytes: int
    """The part of `bytes` that must reach or leave the chip whatever a kernel does."""
    attainable_us: float | None = None
    """`sol_us` with the rates that were measured on such a device, where they were."""


def bounds(problem: Problem, workload: Workload, hardware: Hardware) -> Bounds:
    """Bounds of a workload; runs the reference once on tensors without values (milliseconds).

    Raises:
        FormatError: the reference does not run, on values or without.
    """
    seen = _traced(problem.definition.reference, problem, workload)
    sizes = problem.sizes(workload)
    definition = problem.definition
    # What is updated in place is written where the reference touches it, which the trace counts; none of it is proved.
    outputs = {name: spec for name, spec in definition.outputs.items() if spec.x_updates is None}
    proved_inputs = {name: seen.needed[name] for name in seen.needed if name not in definition.updates.values()}
    written = sum(problem.nbytes(spec, sizes) for spec in outputs.values())
    read = _input_bytes(definition.inputs, seen.read)
    # What a call writes may still be in a GPU's L2 cache when the clock stops; of a CPU the rate allows for caches.
    kept = (hardware.l2_mib or 0) * 2**20 if hardware.cached_gbs is None else 0
    proved = _input_bytes(definition.inputs, proved_inputs) + max(0, written - int(kept))
    gbs = hardware.bandwidth_gbs
    times: dict[Literal["products", "elementwise", "memory"], float] = {
        "products": sum(flops / hardware.product_tflops(dtype) / 1e6 for dtype, flops in seen.products.items()),
        "elementwise": sum(flops / hardware.vector_tflops(dtype) / 1e6 for dtype, flops in seen.elementwise.items()),
        "memory": (written + read) / gbs / 1e3,
    }
    limited_by = max(times, key=lambda what: times[what])
    return Bounds(
        sol_us=times[limited_by],
        floor_us=proved / hardware.floor_gbs / 1e3,
        flops=seen.products.total() + seen.elementwise.total(),
        bytes=written + read,
        limited_by=limited_by,
        floor_bytes=proved,
        attainable_us=_attainable_us(seen, times, written + read, hardware),
    )


def _attainable_us(
    seen: Trace, times: Mapping[Literal["products", "elementwise", "memory"], float], moved: int, hardware: Hardware
) -> float | None:
    if hardware.attainable is None:
        return None
    tensor = hardware.attainable.tensor
    products = sum(
        flops / tensor.get(dtype, hardware.product_tflops(dtype)) / 1e6 for dtype, flops in seen.products.items()
    )
    return max(products, times["elementwise"], moved / hardware.attainable.bandwidth_gbs / 1e3)


def _input_bytes(inputs: Mapping[str, TensorSpec], elements: Mapping[str, int]) -> int:
    return sum(math.ceil(elements.get(name, 0) * DTYPE_BYTES[spec.dtype]) for name, spec in inputs.items())


def _traced(reference: str, problem: Problem, workload: Workload) -> Trace:
    """The reference's trace: on meta tensors, or on real ones where it looks at values."""
    from harness.sol.trace import trace  # noqa: PLC0415 - torch takes seconds to import

    run, namespace = _reference(reference, str(problem.directory / "definition.json"))
    where = str(problem.directory / "definition.json")
    given = problem.definition.custom_inputs_entrypoint
    try:
        if given is not None and any(source.type == "custom" for source in workload.inputs.values()):
            return trace(run, _custom_inputs(namespace[given], problem, workload))
        try:
            return trace(run, _inputs(problem, workload, device="meta"))
        except (RuntimeError, TypeError, ValueError):  # an operation without a meta kernel, or a look at a value
            if _total_bytes(problem, workload) > _REAL_BYTES:
                raise
            return trace(run, _inputs(problem, workload, device="cpu"))
    except Exception as error:
        raise FormatError(
            f"the reference does not run for workload {workload.uuid}: {type(error).__name__}: {error}", where=where
        ) from error


@functools.lru_cache(maxsize=64)
def _reference(source: str, where: str) -> tuple[Any, dict[str, Any]]:
    namespace: dict[str, Any] = {"__name__": "reference"}
    try:
        exec(compile(source, f"{where}:reference", "exec"), namespace)  # noqa: S102 - a problem's reference is trusted
        return namespace["run"], namespace
    except Exception as error:
        raise FormatError(f"the reference does not load: {type(error).__name__}: {error}", where=where) from error


def _total_bytes(problem: Problem, workload: Workload) -> float:
    sizes = problem.sizes(workload)
    return sum(problem.nbytes(spec, sizes) for spec in problem.definition.inputs.values())


def _inputs(problem: Problem, workload: Workload, *, device: str) -> dict[str, Any]:
    """Inputs of the workload's shapes. Real ones: floats of one, integers of zero, which are in every range."""
    import torch  # noqa: PLC0415 - takes seconds

    sizes = problem.sizes(workload)
    made: dict[str, Any] = {}
    for name, spec in problem.definition.inputs.items():
        source = workload.inputs.get(name)
        if isinstance(source, ScalarInput):
            made[name] = source.value
            continue
        dtype = getattr(torch, "float4_e2m1fn_x2" if spec.dtype == "float4_e2m1" else spec.dtype)
        shape = problem.shape(spec, sizes)
        made[name] = torch.empty(shape, dtype=dtype, device="meta") if device == "meta" else _ones(shape, dtype)
    return made


def _ones(shape: tuple[int, ...], dtype: Any) -> Any:  # noqa: ANN401 - torch's types, and torch is imported late
    import torch  # noqa: PLC0415 - takes seconds

    if dtype.is_floating_point and dtype.itemsize > 1:
        return torch.ones(shape, dtype=dtype)
    return torch.zeros(shape, dtype=torch.uint8).view(dtype) if dtype.itemsize == 1 else torch.zeros(shape, dtype=dtype)


def _custom_inputs(make: Any, problem: Problem, workload: Workload) -> dict[str, Any]:  # noqa: ANN401 - theirs
    scalars = {name: one.value for name, one in workload.inputs.items() if isinstance(one, ScalarInput)}
    made = make({**problem.sizes(workload), **scalars}, "cpu")
    return {name: made[name] if name in made else scalars[name] for name in problem.definition.inputs}
