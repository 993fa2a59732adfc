"""Forecast of the memory that a workload's reference and its float64 run need, without running them on a device.

The reference runs once on tensors without values (`harness.sol.tensor_values`). The peak is that of the storages that
are alive at a time. The float64 run is counted in the same pass: floats of 16 and 32 bits take eight bytes, and casts
between them take none.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.judge.input_data.layout import layout_of
from harness.judge.reference import load_reference
from harness.judge.truth.attention import workspace_bytes
from harness.judge.truth.wider_floats import RAISED
from harness.model.problem import Problem, Workload
from harness.sol.arguments import Untyped, is_composite, is_view, tensors_in, with_cpu
from harness.sol.element_regions import storage_of
from harness.sol.tensor_values import AnalysisLimits, TensorValues, load_meta_kernels
from harness.sol.trace_inputs import TraceInputs

_MAX_SECONDS = 1.0
"""Limit of the processor time of one forecast."""
REFERENCE_MULTIPLE = 32
"""Assumed peak of a reference that cannot be traced, as a multiple of the bytes of inputs and outputs. In 95 % of the
shipped workloads, all of which can be traced, the multiple is at most 25."""
TRUTH_MULTIPLE = 96
"""The same for the float64 run; at most 75 in 95 % of the shipped workloads."""


@dataclass(frozen=True)
class WorkloadMemory:
    """Bytes of device memory that the parts of one workload need."""

    input_bytes: int
    output_bytes: int
    reference_bytes: int
    """Peak of the eager reference's intermediates and outputs, with fused attention; without its inputs."""
    truth_bytes: int
    """Peak of the float64 run: copies of the inputs, intermediates and outputs, with attention by blocks."""
    is_traced: bool
    """The peaks are those of a trace; otherwise they are multiples of the bytes of inputs and outputs."""
    untraced_reason: str | None = None
    """Reason why there is no trace."""


_forecasts: dict[tuple[str, str], WorkloadMemory] = {}
_lock = threading.Lock()


def forecast(problem: Problem, workload: Workload) -> WorkloadMemory:
    """Return the memory that a workload needs; results are kept by the problem's digest and the workload's uuid.

    Args:
        problem: the problem.
        workload: one of its workloads.
    """
    key = problem.digest, workload.uuid
    with _lock:
        if key not in _forecasts:
            _forecasts[key] = _forecast(problem, workload)
        return _forecasts[key]


def _forecast(problem: Problem, workload: Workload) -> WorkloadMemory:
    layout = layout_of(problem, workload)
    input_bytes, output_bytes = (sum(field.bytes for field in part) for part in (layout.inputs, layout.outputs))
    load_meta_kernels()
    try:
        peaks = _traced_peaks(problem, workload)
    except Exception as error:  # noqa: BLE001 - a reference may raise anything on tensors without values
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        io_bytes = layout.io_bytes
        return WorkloadMemory(
            input_bytes,
            output_bytes,
            REFERENCE_MULTIPLE * io_bytes,
            TRUTH_MULTIPLE * io_bytes,
            is_traced=False,
            untraced_reason=reason,
        )
    return WorkloadMemory(input_bytes, output_bytes, peaks.reference_peak_bytes, peaks.truth_peak_bytes, is_traced=True)


def _traced_peaks(problem: Problem, workload: Workload) -> _LiveStorages:
    source = TraceInputs(problem, workload, AnalysisLimits(_MAX_SECONDS))
    reference = load_reference(problem)
    inputs = source.custom(reference.custom_inputs, 0) if workload.is_custom else source.without_values()
    values = TensorValues(source.limits)
    for name in source.invented:
        values.invent(inputs[name])
    live = _LiveStorages()
    updated = set(problem.definition.updates.values())
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor):
            live.add_input(value, is_copied=name in updated)
    arguments = list(inputs.values())
    with torch.no_grad(), _ExecutedOperators(values, live), _FusedAttention(live):
        returned = reference.run(*arguments)
    del returned
    return live


@dataclass
class _Float64Storage:
    """A storage of the float64 run, which several storages of the reference share if they are casts of each other."""

    bytes: int
    users: int = 0


class _LiveStorages:
    """Bytes of the storages that are alive, and the peaks of both runs."""

    def __init__(self) -> None:
        self._living: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Float64Storage]] = {}
        self._reference_bytes = self._truth_bytes = 0
        self.reference_peak_bytes = self.truth_peak_bytes = 0

    def add_input(self, tensor: torch.Tensor, *, is_copied: bool) -> None:
        """Count an input: the float64 run has a copy of each, the reference of those that it updates."""
        self._add(tensor, tensor.nbytes if is_copied else 0, _Float64Storage(_float64_bytes(tensor)))

    def add_results(self, results: list[torch.Tensor], cast_from: torch.Tensor | None) -> None:
        """Count the new storages of an operator.

        Args:
            results: of the operator.
            cast_from: operand of a cast that the float64 run does not have.
        """
        for tensor in results:
            if storage_of(tensor) not in self._living:
                source = None if cast_from is None else self._living.get(storage_of(cast_from))
                shared = _Float64Storage(_float64_bytes(tensor)) if source is None else source[1]
                self._add(tensor, tensor.untyped_storage().nbytes(), shared)
        self.add_workspace(0)

    def add_workspace(self, truth_bytes: int) -> None:
        """Update the peaks, with memory that the float64 run needs inside one operator."""
        self.reference_peak_bytes = max(self.reference_peak_bytes, self._reference_bytes)
        self.truth_peak_bytes = max(self.truth_peak_bytes, self._truth_bytes + truth_bytes)

    def _add(self, tensor: torch.Tensor, reference_bytes: int, shared: _Float64Storage) -> None:
        identity = storage_of(tensor)

        def died(_: object) -> None:
            self._living.pop(identity, None)
            self._reference_bytes -= reference_bytes
            shared.users -= 1
            if not shared.users:
                self._truth_bytes -= shared.bytes

        self._living[identity] = weakref.ref(tensor.untyped_storage(), died), shared
        self._reference_bytes += reference_bytes
        shared.users += 1
        if shared.users == 1:
            self._truth_bytes += shared.bytes


def _float64_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's storage in the float64 run."""
    size = tensor.untyped_storage().nbytes()
    if tensor.dtype in RAISED:
        return size // tensor.itemsize * torch.float64.itemsize
    return 2 * size if tensor.dtype is torch.complex64 else size


class _ExecutedOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Executes operators without values and counts their results."""

    def __init__(self, values: TensorValues, live: _LiveStorages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values = values
        self._live = live

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        out = self._values.run(func, args, kwargs)
        if not is_view(func):
            results = tensors_in(out)
            is_cast = func is torch.ops.aten._to_copy.default and {args[0].dtype, out.dtype} <= RAISED  # noqa: SLF001
            self._live.add_results(results, args[0] if is_cast else None)
        return out


class _FusedAttention(TorchFunctionMode):
    """Counts attention as one operator, and replaces devices by the CPU, because they may not exist on this host."""

    def __init__(self, live: _LiveStorages) -> None:
        super().__init__()
        self._live = live

    def __torch_function__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        args, kwargs = with_cpu(func, args, kwargs)
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        arguments = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        leading = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3])  # type: ignore[no-untyped-call]
        heads = query.shape[-3:-2] if arguments.get("enable_gqa") else _heads(query, key)
        out = query.new_empty((*leading, *heads, query.shape[-2], value.shape[-1]))
        self._live.add_workspace(workspace_bytes(query, key))
        return out


def _heads(query: torch.Tensor, key: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(query.shape[-3:-2], key.shape[-3:-2]))  # type: ignore[no-untyped-call]
