"""Trace a reference: its floating-point operations, and the bytes that it reads and writes.

The reference runs once under a dispatch mode that receives every operator. `harness.sol.tensor_values` executes them,
without values that have no effect on the analysis. `harness.sol.liveness` then follows the outputs back to the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.sol.arguments import OperatorCall, Untyped, changed_argument, is_composite, is_view, tensors_in, with_cpu
from harness.sol.element_regions import ElementRegion, StridedView, storage_of, view_of
from harness.sol.liveness import Liveness
from harness.sol.operators import GATHERING, OVERWRITING, SCATTERING, SELECTING, SHAPED_LIKE, is_product
from harness.sol.step_recording import StepRecording
from harness.sol.steps import Step
from harness.sol.tensor_values import TensorValues
from harness.sol.trace_inputs import TraceInputs

_Tensors = list[torch.Tensor]


@dataclass
class Trace:
    """Work on which the outputs of one run of a reference depend."""

    products: Counter[tuple[str, str]]
    """Floating-point operations of matrix products and convolutions, by the stored dtypes of their operands."""
    elementwise: Counter[str]
    """Other floating-point operations, by stored dtype."""
    read_bytes: dict[str, int]
    """Input -> bytes on which the outputs depend."""
    written_bytes: dict[str, int]
    """Input that is updated in place -> bytes that are written."""
    proved_bytes: dict[str, int]
    """Input -> bytes that provably every implementation of the same outputs must read."""
    is_random: bool
    """The trace depends on random values."""
    steps: int
    """Number of executed operators."""


def trace(run: Untyped, inputs: Mapping[str, Untyped], source: TraceInputs, *, everything: bool = False) -> Trace:
    """Run `run(*inputs)` and return its trace.

    Args:
        inputs: tensors (meta or with values) and Python scalars, in the order of the arguments.
        source: source of the inputs, with knowledge about their values and limits of time and memory.
        everything: execute every operator with values.

    Raises:
        LimitReachedError: the analysis uses too much time or memory.
    """
    values = TensorValues(source.limits, everything=everything)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    for name in source.invented & set(tensors):
        values.invent(tensors[name])
    recorder = _OperationRecorder(tensors, values, set(source.problem.definition.updates.values()))
    for name, share in source.visible_shares.items():
        recorder.recording.set_visible_share(tensors[name], share)
    with torch.no_grad(), recorder, _Functions(recorder):
        returned = run(*inputs.values())
    return recorder.result(tensors_in(returned), is_random=source.has_random_values)


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: Mapping[str, torch.Tensor], values: TensorValues, updated: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.recording = StepRecording(values)
        self.views = {name: view_of(tensor) for name, tensor in inputs.items()}
        self.regions = {name: ElementRegion(view.storage_bytes) for name, view in self.views.items()}
        self.storages = {view.storage: name for name, view in self.views.items()}
        self.updated = {self.views[name].storage: name for name in updated & set(inputs)}
        self.writes = {name: ElementRegion(self.views[name].storage_bytes) for name in self.updated.values()}
        self.scattered: Counter[str] = Counter()
        self.partial: set[str] = set()
        self.scalar_reads: list[StridedView] = []
        """Numbers that the reference read from tensors for its control flow."""
        self.origins: dict[int, frozenset[str]] = {}
        self.alive: list[torch.Tensor] = [*inputs.values()]  # prevents that the address of a storage is reused
        for tensor in inputs.values():
            self.recording.dtypes.add_input(tensor)

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        packet = func._overloadpacket  # noqa: SLF001 - the operator without its overload, as in torch's own counter
        if is_composite(func) and not is_product(packet):
            with self:
                return func.decompose(*args, **kwargs)
        out = self.values.run(func, args, kwargs)
        self.record(func, packet, args, kwargs, out)
        return out

    def record(self, func: Untyped, packet: Untyped, args: Untyped, kwargs: Untyped, out: Untyped) -> None:
        """Record an executed operator."""
        operands, results = tensors_in(args, kwargs), tensors_in(out)
        name = packet.__name__
        self.alive += results
        storages = {storage_of(tensor) for tensor in operands}
        changes = changed_argument(func) is not None
        if is_view(func):
            # A view of an input is resolved when an operator reads it. Other views may drop computed values.
            if name in SELECTING and not storages & self.storages.keys():
                self.partial |= self.sources(operands)
            return
        if results and not changes and all(storage_of(tensor) in storages for tensor in results):
            return  # a view despite its schema, such as `_unsafe_view`
        sources = self.sources(operands)
        if name == "clone" and storage_of(operands[0]) in self.updated and self.is_unchanged(operands[0]):
            copy = storage_of(results[0])
            self.updated[copy] = self.updated[storage_of(operands[0])]  # the output has this input's content
            self.origins[copy] = sources
            self.recording.dtypes.record(name, args, operands, results)
            return
        self.prove(name, operands)
        if name == "_local_scalar_dense":
            self.scalar_reads.append(view_of(operands[0]))
            return
        if name in SELECTING or _has_boolean_choice(operands, results):
            chosen_from = [tensor for position, tensor in enumerate(operands) if not _selects(position, tensor)]
            self.partial |= self.sources(chosen_from)
        for tensor in results:
            self.origins[storage_of(tensor)] = self.origins.get(storage_of(tensor), frozenset()) | sources
        step = self.recording.step(OperatorCall(name, packet, args, kwargs, operands, results, changes))
        self.write(name, step, operands)

    def is_unchanged(self, tensor: torch.Tensor) -> bool:
        """Return true if a tensor is a whole updated input that has not been written yet."""
        name = self.updated[storage_of(tensor)]
        view = view_of(tensor)
        return view.is_whole and self.writes[name].empty and not self.scattered[name]

    def sources(self, tensors: _Tensors) -> frozenset[str]:
        """Return the inputs from which any of the tensors was computed."""
        return frozenset[str]().union(*(self.origin(tensor) for tensor in tensors))

    def origin(self, tensor: torch.Tensor) -> frozenset[str]:
        """Return the input that a tensor is, and the inputs from which it was computed."""
        storage = storage_of(tensor)
        itself = [self.storages[storage]] if storage in self.storages else []
        return self.origins.get(storage, frozenset()).union(itself)

    def prove(self, name: str, operands: _Tensors) -> None:
        """Mark the elements of inputs that an operator reads independently of values; none of an indexed table."""
        for position, tensor in enumerate(operands):
            source = self.storages.get(storage_of(tensor))
            if source is not None and not (position == 0 and name in _UNREAD):
                self.regions[source].add(view_of(tensor))

    def write(self, name: str, step: Step, operands: _Tensors) -> None:
        """Mark the elements of inputs that are updated in place and that a step writes."""
        for view in step.writes:
            source = self.updated.get(view.storage)
            if source is None:
                continue
            if name in SCATTERING:
                value_bytes = max((operand.numel() * view.itemsize for operand in operands[1:]), default=0)
                self.scattered[source] += min(value_bytes, view.distinct_bytes)
            else:
                self.writes[source].add(view)

    def attention(self, operands: _Tensors, out: torch.Tensor, *, causal: bool) -> None:
        """Record a fused attention of a query, a key, a value, and a mask if there is one."""
        self.alive += [*operands, out]
        sources = self.sources(operands)
        self.prove("attention", operands)
        self.partial |= sources
        self.origins[storage_of(out)] = sources
        self.recording.attention(operands, out, causal=causal)

    def result(self, outputs: _Tensors, *, is_random: bool) -> Trace:
        """Return the trace of a run that returned `outputs`."""
        returned = [view_of(tensor) for tensor in outputs if storage_of(tensor) not in self.updated] + self.scalar_reads
        updated = frozenset(self.updated)
        steps = self.recording.steps
        with_all = Liveness(unknown_share=1.0, updated=updated)
        likely = certain = with_all.run(steps, returned, self.views)
        if with_all.has_unknown_masks:
            certain = Liveness(unknown_share=0.0, updated=updated).run(steps, returned, self.views)
        written_bytes = {
            name: min(region.count() + self.scattered[name], region.bytes) for name, region in self.writes.items()
        }
        proved_bytes = {
            name: 0 if name in self.partial else min(region.count(), certain.read[name])
            for name, region in self.regions.items()
        }
        return Trace(
            certain.products, certain.elementwise, likely.read, written_bytes, proved_bytes, is_random, len(steps)
        )


class _Functions(TorchFunctionMode):
    """Records fused attention as one operator, which torch decomposes in float32 on tensors without values.

    Devices in the reference are replaced by the CPU, because they may not exist on this host.
    """

    def __init__(self, recorder: _OperationRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        enabled = [device for device in ("cuda", "cpu") if torch.is_autocast_enabled(device)]
        cast = str(torch.get_autocast_dtype(enabled[0])).removeprefix("torch.") if enabled else None
        self.recorder.recording.autocast = cast
        if func is torch.Tensor.cuda:
            return args[0]
        args, kwargs = with_cpu(func, args, kwargs)
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        arguments = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
        operands = tensors_in([arguments.get(name) for name in _ATTENTION_ARGUMENTS[:4]])
        query, _, value = operands[:3]
        out = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
        self.recorder.attention(operands, out, causal=bool(arguments.get("is_causal")))
        return out


_UNREAD = GATHERING | SCATTERING | OVERWRITING | SHAPED_LIKE
"""Operators that prove no reads of their first argument."""
_ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _has_boolean_choice(operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> bool:
    """Return true for arithmetic with a mask, which can make elements of the other operands irrelevant."""
    has_mask = any(tensor.dtype is torch.bool for tensor in operands)
    return has_mask and any(tensor.is_floating_point() for tensor in results)


def _selects(position: int, tensor: torch.Tensor) -> bool:
    """Return true for a mask or an index, which selects elements and is itself needed."""
    return tensor.dtype is torch.bool or (position > 0 and not tensor.is_floating_point())
