"""A problem's reference as a baseline: eager, with other backends, under torch.compile, or as a CUDA graph.

A library baseline is a reference that runs eagerly.

A reference is trusted code, called in the same way as a candidate: its results are copied to the given outputs. Under
torch.compile the copy is part of the compiled function, so that the compiler can write results directly to the outputs.
For an input that it updates, a reference receives the output that has the input's content. It updates this output in
place, and nothing is copied.

On a GPU each workload is compiled for its own shapes, as in a script of a user who has this workload only. On a CPU one
compilation with dynamic shapes serves all workloads, because each starts a C++ compiler, which takes tens of seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .messages import HostMemory, Load, SlotField
from .pytorch import Call, SplitCall, load_function, prepare, split_call, store
from .shared_memory import WorkloadSlots

UNCAPTURED = {"compile_graph": "compile", "max_autotune": "max_autotune_uncaptured"}
"""Variant that is captured as a CUDA graph -> name under which the same compiled function is called directly. A first
call under this name compiles it with real inputs, before the capture."""
_COMPILE_MODES = {
    "compile": None,
    "compile_graph": None,
    "max_autotune": "max-autotune-no-cudagraphs",
    UNCAPTURED["max_autotune"]: "max-autotune-no-cudagraphs",
}
"""Mode of torch.compile by variant. Its own CUDA graphs copy the inputs of each call; graphs captured here do not."""
_MOST_COMPILATIONS = 1 << 16
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
_BY_VARIANT = {"sdpa_math": "math", "sdpa_flash": "flash", "sdpa_efficient": "mem_efficient", "sdpa_cudnn": "cudnn"}
_WARM_UPS = 2
"""Calls before the capture of a graph, in which libraries create their handles and workspaces."""


def load(message: Load) -> Callable[[WorkloadSlots], Call | SplitCall]:
    """Import the reference and return a function that prepares a workload's variant."""
    run = load_function(message.program.source, message.program.entry)
    timed = message.reads_events
    build = split_call if timed else prepare
    compiled: dict[tuple[str | None, bool | None], Callable[..., Any]] = {}
    backends = _TorchBackends()

    def workload_call(workload: WorkloadSlots) -> Call | SplitCall:
        backends.use(workload.variant)
        fields = workload.outputs
        input_count = len(workload.inputs)
        updated = _updated(workload)
        complete = _completed(run, fields, updated) if updated else run
        slots = _updated_slots(workload, updated) if updated else workload
        if workload.variant == "cuda_graph":
            return _whole(_captured(complete, slots), timed=timed)
        if workload.variant not in _COMPILE_MODES:
            return build(complete, slots, {}, destination_passing=False)

        def run_into(*values: Any) -> None:  # noqa: ANN401 - tensors and scalars as the problem declares them
            inputs = [
                values[input_count + updated[position]] if position in updated else values[position]
                for position in range(input_count)
            ]
            store(complete(*inputs), values[input_count:], fields)

        key = mode, dynamic = _COMPILE_MODES[workload.variant], _dynamic_shapes(message, workload)
        if key not in compiled:
            compiled[key] = _compiled(run_into, mode=mode, dynamic=dynamic)
        if workload.variant in UNCAPTURED:
            try:
                return _whole(_captured(compiled[key], workload, destination_passing=True), timed=timed)
            except (RuntimeError, ValueError):
                if workload.variant == "compile_graph":
                    raise
                torch.cuda.synchronize()
        return build(compiled[key], workload, {}, destination_passing=True)

    return workload_call


def _dynamic_shapes(message: Load, workload: WorkloadSlots) -> bool | None:
    """Return the argument `dynamic` of torch.compile."""
    if isinstance(message.memory, HostMemory):
        return True
    # A Python scalar may have another value in each call. Static values would be compiled one by one.
    return None if workload.scalar_readers() else False


def _compiled(function: Callable[..., Any], *, mode: str | None, dynamic: bool | None) -> Callable[..., Any]:
    """Return a function under torch.compile. It fails instead of running eagerly when it was compiled too often."""
    from torch._dynamo import config  # noqa: PLC0415 - the import takes a second

    config.recompile_limit = config.accumulated_recompile_limit = _MOST_COMPILATIONS
    config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=dynamic, mode=mode)


def _whole(call: SplitCall, *, timed: bool) -> Call | SplitCall:
    """Return a call in two parts as one call, unless its parts are timed separately."""
    compute, deliver = call
    return call if timed else lambda slot: deliver(compute(slot), slot)


def _captured(function: Callable[..., Any], workload: WorkloadSlots, *, destination_passing: bool = False) -> SplitCall:
    """Return a call in two parts: the replay of a placement's graph, and the copy of returned values to the outputs.

    Each placement has its own graph, because a graph contains the addresses of its inputs. All graphs are captured when
    the workload is prepared, so that no timed call contains a capture. The judge has written no inputs then. The calls
    before the capture get zeros, because arbitrary indices could be out of bounds.
    Source: PyTorch documentation, CUDA semantics, "CUDA Graphs" (warm-up on a side stream, shared memory pools).

    Raises:
        ValueError: an input is a Python scalar, whose value a replay cannot read again.
        RuntimeError: the function does something that cannot be captured, such as waiting for the device.
    """
    if workload.scalar_readers():
        raise ValueError("a CUDA graph contains the values of Python scalars, and an input here is a Python scalar")
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]
    inputs = [workload.input_tensors(slot) for slot in range(workload.slots)]
    for tensor in (*inputs[0], *outputs[0]):
        tensor.untyped_storage().fill_(0)
    if destination_passing:
        inputs = [[*slot_inputs, *slot_outputs] for slot_inputs, slot_outputs in zip(inputs, outputs, strict=True)]
    _warm_up(function, inputs[0])
    pool = torch.cuda.graph_pool_handle()
    graphs: list[torch.cuda.CUDAGraph] = []
    returned: list[Any] = []
    for slot_inputs in inputs:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            returned.append(function(*slot_inputs))
        graphs.append(graph)

    def compute(slot: int) -> Any:  # noqa: ANN401 - whatever it returns
        graphs[slot].replay()
        return returned[slot]

    def deliver(value: Any, slot: int) -> None:  # noqa: ANN401
        if not destination_passing:
            store(value, outputs[slot], workload.outputs)

    return compute, deliver


def _warm_up(function: Callable[..., Any], inputs: list[Any]) -> None:
    side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(_WARM_UPS):
            function(*inputs)
    torch.cuda.current_stream().wait_stream(side_stream)
    torch.cuda.synchronize()


class _TorchBackends:
    """Chooses the backends of a variant, and those that PyTorch had at the start for all others.

    They are set once for each workload and not around each call, whose time would count. One process runs one variant
    at a time.
    """

    def __init__(self) -> None:
        cuda = torch.backends.cuda
        self._enabled = {name: bool(getattr(cuda, f"{name}_sdp_enabled")()) for name in _ATTENTION}
        self._products = cuda.preferred_blas_library()
        self._prefers_cublaslt = False

    def use(self, variant: str) -> None:
        """Choose the backends of a variant. A call that no enabled backend can compute raises."""
        cuda = torch.backends.cuda
        only = _BY_VARIANT.get(variant)
        for name, enabled in self._enabled.items():
            getattr(cuda, f"enable_{name}_sdp")(enabled if only is None else name == only)
        prefers = variant == "cublaslt"
        if prefers != self._prefers_cublaslt:  # a build of PyTorch without cuBLASLt refuses it
            cuda.preferred_blas_library("cublaslt" if prefers else self._products)
            self._prefers_cublaslt = prefers


def _updated(workload: WorkloadSlots) -> dict[int, int]:
    """Return the position of each input that is updated in place, with the position of its output."""
    positions = {field.name: position for position, field in enumerate(workload.inputs)}
    outputs = enumerate(workload.outputs)
    return {positions[field.updates]: output for output, field in outputs if field.updates is not None}


def _completed(run: Callable[..., Any], fields: Sequence[SlotField], updated: Mapping[int, int]) -> Callable[..., Any]:
    """Return a reference that returns every output, including those that it only updates."""
    position_of = {output: position for position, output in updated.items()}
    returned_outputs = [output for output in range(len(fields)) if output not in position_of]

    def complete(*inputs: Any) -> Any:  # noqa: ANN401 - tensors and scalars as the problem declares them
        returned = run(*inputs)
        if isinstance(returned, Mapping):
            return {**{fields[output].name: inputs[position] for output, position in position_of.items()}, **returned}
        values = [] if returned is None else list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(values) != len(returned_outputs):
            return values
        return [
            inputs[position_of[output]] if output in position_of else values[returned_outputs.index(output)]
            for output in range(len(fields))
        ]

    return complete


def _updated_slots(original: WorkloadSlots, updated: Mapping[int, int]) -> _UpdatedSlots:
    same = original.inputs, original.outputs, original.input_stride, original.slots, original.axes, original.variant
    return _UpdatedSlots(*same, original, updated)


@dataclass(frozen=True)
class _UpdatedSlots(WorkloadSlots):
    """Slots in which an updated input is the output that has its content."""

    original: WorkloadSlots
    updated: Mapping[int, int]
    _outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Outputs by slot. The same tensors are returned each time, so that no output is copied to itself."""

    def input_tensors(self, slot: int) -> list[Any]:
        tensors = self.original.input_tensors(slot)
        for position, output in self.updated.items():
            tensors[position] = self.output_tensors(slot)[output]
        return tensors

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        if slot not in self._outputs:
            self._outputs[slot] = self.original.output_tensors(slot)
        return self._outputs[slot]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        return self.original.scalar_readers()
