"""Lower bounds of a workload's latency on a device, from its arithmetic and its bytes.

There are two bounds (docs/sol.md). `sol_us` is the time of an ideal kernel that does the reference's work, keeps every
intermediate result on chip, and reads or writes each byte once. `floor_us` is the provable bound: a latency below it is
a wrong measurement.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import FormatError
from harness.model.device_description import Limit
from harness.model.printable import one_line
from harness.model.problem import Problem, Workload
from harness.sol.hardware import Hardware, widest

if TYPE_CHECKING:
    from harness.sol.trace import Trace

_SEEDS = 3
"""Number of analyses of random custom inputs, of which the smallest bound is used."""
_MAX_CHARACTERS = 300
"""Characters of a failure in a message: torch's explanations can be pages long."""
_MAX_STEPS_FOR_SEEDS = 1_000
"""References of more operators are analysed only once."""


class NoBoundError(FormatError):
    """A workload has no bound; the message is the reason, without the words `no bound`."""


@dataclass(frozen=True)
class Bounds:
    """Bounds of one workload on one device."""

    sol_us: float
    """max(products / peak, elementwise / peak, bytes / bandwidth)."""
    floor_us: float
    """Time of the provably necessary bytes at the highest possible rate."""
    flops: int
    """Floating-point operations of the reference: products and all others."""
    bytes: int
    """Bytes that are read from inputs and written to outputs, each once."""
    limited_by: Limit
    """Key of the largest time in `times_us`."""
    floor_bytes: int
    """The part of `bytes` that every kernel must read or write."""
    products: Mapping[tuple[str, str], int]
    """Operations of matrix products, by the narrowest dtypes of their operands."""
    elementwise: Mapping[str, int]
    """All other operations, by dtype."""
    times_us: Mapping[Limit, float]
    """Time of products, of elementwise operations and of memory; the largest is `sol_us`."""
    is_measured: bool
    """The rates were measured on this host; otherwise they are from the vendor."""
    attainable_us: float | None = None
    """`sol_us` with rates that were measured on such a device; None if there are none."""


def bounds(problem: Problem, workload: Workload, hardware: Hardware, *, most_s: float | None = None) -> Bounds:
    """Return the bounds of a workload, by one run of the reference on tensors without values (milliseconds).

    Args:
        most_s: limit of the analysis in seconds of processor time; 1 s by default.

    Raises:
        NoBoundError: the reference runs neither with nor without values, or its analysis exceeds this time or 2 GB.
    """
    bounds_by_seed = [_bounds_of(trace, problem, workload, hardware) for trace in _traces(problem, workload, most_s)]
    return min(bounds_by_seed, key=lambda bound: bound.sol_us)


def _bounds_of(trace: Trace, problem: Problem, workload: Workload, hardware: Hardware) -> Bounds:
    sizes = problem.sizes(workload)
    definition = problem.definition
    # The trace has the writes to tensors that are updated in place; none of them is provably necessary.
    outputs = {name: spec for name, spec in definition.outputs.items() if spec.x_updates is None}
    updated_inputs = definition.updates.values()
    proved_inputs = sum(nbytes for name, nbytes in trace.proved_bytes.items() if name not in updated_inputs)
    output_bytes = sum(problem.nbytes(spec, sizes) for spec in outputs.values())
    moved = output_bytes + sum(trace.read_bytes.values()) + sum(trace.written_bytes.values())
    # Outputs may remain in a GPU's L2 cache at the end of the timing. The rates of a CPU include its caches.
    cached_output_bytes = (hardware.l2_mib or 0) * 2**20 if hardware.cached_gbs is None else 0
    proved = proved_inputs + max(0, output_bytes - int(cached_output_bytes))
    products, elementwise = _at_output_precision(trace, [spec.dtype for spec in definition.outputs.values()])
    times: dict[Limit, float] = {
        "products": sum(flops / hardware.product_tflops(*pair) / 1e6 for pair, flops in products.items()),
        "elementwise": sum(flops / hardware.vector_tflops(dtype) / 1e6 for dtype, flops in elementwise.items()),
        "memory": moved / hardware.bandwidth_gbs / 1e3,
    }
    limited_by = max(times, key=lambda limit: times[limit])
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


def _at_output_precision(trace: Trace, outputs: Iterable[str]) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Return operations by dtype, none wider than the widest float output, because outputs show no more precision."""
    cap = widest([dtype for dtype in outputs if dtype.startswith(("float", "bfloat"))])
    products, elementwise = Counter[tuple[str, str]](), Counter[str]()
    for (first, second), flops in trace.products.items():
        products[_narrowed(first, cap), _narrowed(second, cap)] += flops
    for dtype, flops in trace.elementwise.items():
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
    """Return the trace of a reference, or several of random inputs; values are only used if it does not run without."""
    from harness.sol.tensor_values import AnalysisLimits, LimitReachedError  # noqa: PLC0415 - torch takes seconds to import

    where = str(problem.directory / "definition.json")
    _warm_up()
    limits = AnalysisLimits(most_s)
    try:
        traces = [_traced(problem, workload, limits, seed=0)]
        for seed in range(1, _SEEDS):
            if traces[0].is_random and traces[0].steps <= _MAX_STEPS_FOR_SEEDS:
                traces.append(_traced(problem, workload, limits, seed=seed))
    except LimitReachedError as error:
        raise NoBoundError(str(error), where=f"{where}, workload {workload.uuid}") from error
    except NoBoundError:
        raise
    except FormatError as error:
        raise NoBoundError(error.message, where=error.where or where, remedy=error.remedy) from error
    except Exception as error:
        failure = one_line(f"{type(error).__name__}: {error}", _MAX_CHARACTERS)
        raise NoBoundError(
            f"the reference does not run for workload {workload.uuid}: {failure}", where=where
        ) from error
    return traces


def _traced(problem: Problem, workload: Workload, limits: Any, *, seed: int) -> Trace:  # noqa: ANN401 - torch is imported late
    from harness.sol.tensor_values import LimitReachedError  # noqa: PLC0415 - as above
    from harness.sol.trace import trace  # noqa: PLC0415 - as above
    from harness.sol.trace_inputs import TraceInputs  # noqa: PLC0415 - as above

    run, namespace = _reference(problem.definition.reference, str(problem.directory / "definition.json"))
    source = TraceInputs(problem, workload, limits)
    make = namespace[str(problem.definition.custom_inputs_entrypoint)] if workload.is_custom else None
    try:
        inputs = source.custom(make, seed) if workload.is_custom else source.without_values()
        return trace(run, inputs, source)
    except (LimitReachedError, FormatError):
        raise
    except Exception as error:  # noqa: BLE001 - an operator without a meta kernel, or control flow that depends on values
        try:
            inputs = source.custom(make, seed, everything=True) if workload.is_custom else source.with_values()
            return trace(run, inputs, source, everything=True)
        except LimitReachedError as limit:
            failure = one_line(f"{type(error).__name__}: {error}", _MAX_CHARACTERS)
            raise LimitReachedError(f"{limit}; without values it fails with {failure}") from error


@functools.cache
def _warm_up() -> None:
    """Execute a first operator without values, for which torch loads modules for a second, before a limit applies."""
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
