"""The speed of light of a workload: no kernel can be faster on a device than its arithmetic and its bytes allow.

Two bounds (docs/sol.md). `sol_us` is what an ideal kernel would take that does the reference's work, keeps every
intermediate result on chip and reads or writes each byte once. `floor_us` is what can be proved: below it, a latency is
not fast but wrong.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import FormatError
from harness.model.device_description import Limit
from harness.model.problem import Problem, Workload
from harness.model.truncate import one_line
from harness.sol.hardware import Hardware, widest

if TYPE_CHECKING:
    from harness.sol.trace import Trace

_DRAWS = 3
"""Custom inputs whose values are drawn at random are analysed so often, and the least bound counts."""
_MOST_CHARACTERS = 300
"""Of a failure in a message: torch's explanations can be pages long."""
_FEW_STEPS = 1_000
"""References of more operators are analysed once."""


class NoBoundError(FormatError):
    """A workload has no bound; the message names the reason and the fix."""


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
    limited_by: Limit
    floor_bytes: int
    """The part of `bytes` that must reach or leave the chip whatever a kernel does."""
    products: Mapping[tuple[str, str], int]
    """Operations of matrix products, by the dtypes that the operands can be stored in."""
    elementwise: Mapping[str, int]
    """Operations of everything else, by dtype."""
    times_us: Mapping[Limit, float]
    """Time for each of the three; the largest is `sol_us`."""
    is_measured: bool
    """The rates were measured on this host; otherwise they are the vendor's."""
    attainable_us: float | None = None
    """`sol_us` with the rates that were measured on such a device, where they were."""


def bounds(problem: Problem, workload: Workload, hardware: Hardware, *, most_s: float | None = None) -> Bounds:
    """Bounds of a workload; runs the reference once on tensors without values (milliseconds).

    Args:
        problem: the workload's.
        workload: one of the problem's.
        hardware: rates of the device.
        most_s: processor time that the analysis may take; 1 s by default.

    Raises:
        NoBoundError: the reference does not run, on values or without, or its analysis takes more than that time or
            2 GB.
    """
    found = [_bounds_of(seen, problem, workload, hardware) for seen in _traces(problem, workload, most_s)]
    return min(found, key=lambda one: one.sol_us)


def _bounds_of(seen: Trace, problem: Problem, workload: Workload, hardware: Hardware) -> Bounds:
    sizes = problem.sizes(workload)
    definition = problem.definition
    # What is updated in place is written where the reference touches it, which the trace counts; none of it is proved.
    outputs = {name: spec for name, spec in definition.outputs.items() if spec.x_updates is None}
    proved_inputs = sum(seen.needed[name] for name in seen.needed if name not in definition.updates.values())
    written = sum(problem.nbytes(spec, sizes) for spec in outputs.values())
    moved = written + sum(seen.read.values()) + sum(seen.written.values())
    # What a call writes may still be in a GPU's L2 cache when the clock stops; of a CPU the rate allows for caches.
    kept = (hardware.l2_mib or 0) * 2**20 if hardware.cached_gbs is None else 0
    proved = proved_inputs + max(0, written - int(kept))
    products, elementwise = _at_output_precision(seen, [spec.dtype for spec in definition.outputs.values()])
    times: dict[Limit, float] = {
        "products": sum(flops / hardware.product_tflops(*pair) / 1e6 for pair, flops in products.items()),
        "elementwise": sum(flops / hardware.vector_tflops(dtype) / 1e6 for dtype, flops in elementwise.items()),
        "memory": moved / hardware.bandwidth_gbs / 1e3,
    }
    limited_by = max(times, key=lambda what: times[what])
    return Bounds(
        sol_us=times[limited_by],
        floor_us=proved / hardware.floor_gbs / 1e3,
        flops=products.total() + elementwise.total(),
        bytes=moved,
        limited_by=limited_by,
        floor_bytes=proved,
        products=products,
        elementwise=elementwise,
        times_us=times,
        is_measured=hardware.is_measured,
        attainable_us=_attainable_us(products, times, moved, hardware),
    )


def _at_output_precision(seen: Trace, outputs: Iterable[str]) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Operations by dtype, none of them wider than the widest float output: more precision is not visible."""
    cap = widest([dtype for dtype in outputs if dtype.startswith(("float", "bfloat"))])
    products, elementwise = Counter[tuple[str, str]](), Counter[str]()
    for (first, second), flops in seen.products.items():
        products[_narrowed(first, cap), _narrowed(second, cap)] += flops
    for dtype, flops in seen.elementwise.items():
        elementwise[_narrowed(dtype, cap)] += flops
    return products, elementwise


def _narrowed(dtype: str, cap: str | None) -> str:
    return cap if cap is not None and dtype != cap and widest([cap, dtype]) == dtype else dtype


def _attainable_us(
    products: Mapping[tuple[str, str], int], times: Mapping[Limit, float], moved: int, hardware: Hardware
) -> float | None:
    if hardware.attainable is None:
        return None
    reached = hardware.with_attained_products()
    product_us = sum(flops / reached.product_tflops(*pair) / 1e6 for pair, flops in products.items())
    return max(product_us, times["elementwise"], moved / hardware.attainable.bandwidth_gbs / 1e3)


def _traces(problem: Problem, workload: Workload, most_s: float | None) -> list[Trace]:
    """Traces of the reference: without values, or with them where it does not run without; several of random inputs."""
    from harness.sol.tensor_values import AnalysisLimits, LimitReachedError  # noqa: PLC0415 - torch takes seconds to import

    where = str(problem.directory / "definition.json")
    _warm_up()
    limits = AnalysisLimits(most_s)
    try:
        found = [_traced(problem, workload, limits, seed=0)]
        for seed in range(1, _DRAWS):
            if found[0].is_random and found[0].steps <= _FEW_STEPS:
                found.append(_traced(problem, workload, limits, seed=seed))
    except LimitReachedError as error:
        raise NoBoundError(f"no bound: {error}", where=f"{where}, workload {workload.uuid}") from error
    except NoBoundError:
        raise
    except FormatError as error:
        raise NoBoundError(f"no bound: {error.message}", where=error.where or where, remedy=error.remedy) from error
    except Exception as error:
        failure = one_line(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)
        raise NoBoundError(
            f"the reference does not run for workload {workload.uuid}: {failure}", where=where
        ) from error
    return found


def _traced(problem: Problem, workload: Workload, limits: Any, *, seed: int) -> Trace:  # noqa: ANN401 - torch is imported late
    from harness.sol.tensor_values import LimitReachedError  # noqa: PLC0415 - as above
    from harness.sol.trace import trace  # noqa: PLC0415 - as above
    from harness.sol.trace_inputs import TraceInputs  # noqa: PLC0415 - as above

    run, namespace = _reference(problem.definition.reference, str(problem.directory / "definition.json"))
    making = TraceInputs(problem, workload, limits)
    updated = frozenset(problem.definition.updates.values())
    make = namespace[str(problem.definition.custom_inputs_entrypoint)] if making.is_custom else None
    try:
        inputs = making.custom(make, seed) if making.is_custom else making.without_values()
        return trace(run, inputs, making, updated=updated, limits=limits)
    except (LimitReachedError, FormatError):
        raise
    except Exception as error:  # noqa: BLE001 - an operation without a meta kernel, or any look at a value
        try:
            inputs = making.custom(make, seed, everything=True) if making.is_custom else making.with_values()
            return trace(run, inputs, making, updated=updated, everything=True, limits=limits)
        except LimitReachedError as limit:
            failure = one_line(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)
            raise LimitReachedError(f"{limit}; without values it fails with {failure}") from error


@functools.cache
def _warm_up() -> None:
    """Let torch load what it loads at the first operator without values (a second), before any limit counts."""
    import torch  # noqa: PLC0415 - takes seconds

    matrix = torch.empty(2, 2, device="meta")
    torch.relu(matrix @ matrix + matrix).sum(-1)


@functools.lru_cache(maxsize=64)
def _reference(source: str, where: str) -> tuple[Any, dict[str, Any]]:
    namespace: dict[str, Any] = {"__name__": "reference"}
    try:
        exec(compile(source, f"{where}:reference", "exec"), namespace)  # noqa: S102 - a problem's reference is trusted
        return namespace["run"], namespace
    except Exception as error:
        raise NoBoundError(f"the reference does not load: {type(error).__name__}: {error}", where=where) from error
