"""What a reference does to its inputs: floating-point operations, and which bytes it reads.

The reference runs once under a dispatch mode that sees every operator. `harness.sol.tensor_values` executes them,
without values where these decide nothing; `harness.sol.liveness` then follows the outputs back to the inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from harness.sol.arguments import OperatorCall, Untyped, changed_argument, is_composite, is_view, tensors_in
from harness.sol.element_regions import ElementRegion, StridedView, storage_of, view_of
from harness.sol.liveness import Liveness
from harness.sol.operators import GATHERING, OVERWRITING, SCATTERING, SELECTING, SHAPED_LIKE, is_product
from harness.sol.step_recording import StepRecording
from harness.sol.steps import Step
from harness.sol.tensor_values import AnalysisLimits, TensorValues
from harness.sol.trace_inputs import TraceInputs

_Tensors = list[torch.Tensor]


@dataclass
class Trace:
    """Work that the outputs of one run of a reference needed."""

    products: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Floating-point operations of matrix products and convolutions, by the stored dtypes of their operands."""
    elementwise: Counter[str] = field(default_factory=Counter)
    """Those of everything else, by stored dtype."""
    read: dict[str, int] = field(default_factory=dict)
    """Input -> bytes of it that the outputs need."""
    written: dict[str, int] = field(default_factory=dict)
    """Input that is updated in place -> bytes of it that are written."""
    needed: dict[str, int] = field(default_factory=dict)
    """Input -> bytes that every way to the same outputs must read, as far as that can be proved."""
    is_random: bool = False
    """Values drawn at random decided something."""
    steps: int = 0
    """Operators that ran."""


def trace(
    run: Untyped,
    inputs: Mapping[str, Untyped],
    known: TraceInputs,
    *,
    updated: frozenset[str] = frozenset(),
    everything: bool = False,
    limits: AnalysisLimits,
) -> Trace:
    """Run `run(*inputs)` and return what it did.

    Args:
        run: the reference.
        inputs: tensors (meta or with values) and Python scalars, in the order of the arguments.
        known: what made the inputs, and what is known of their values.
        updated: inputs that the reference may change in place.
        everything: execute every operator with values.
        limits: of time and memory.

    Raises:
        LimitReachedError: the analysis uses too much time or memory.
    """
    values = TensorValues(limits, everything=everything)
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    for name in known.invented & set(tensors):
        values.invent(tensors[name])
    recorder = _OperationRecorder(tensors, values, updated)
    for name, share in known.hidden.items():
        recorder.recording.note_hidden(tensors[name], share)
    with torch.no_grad(), recorder, _Functions(recorder):
        returned = run(*inputs.values())
    found = recorder.result(tensors_in(returned))
    found.is_random, found.steps = known.has_random_values, len(recorder.recording.steps)
    return found


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: Mapping[str, torch.Tensor], values: TensorValues, updated: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.recording = StepRecording(values)
        self.inputs = dict(inputs)
        self.views = {name: view_of(tensor) for name, tensor in inputs.items()}
        self.regions = {name: ElementRegion(view.storage_bytes) for name, view in self.views.items()}
        self.storages = {view.storage: name for name, view in self.views.items()}
        self.updated = {self.views[name].storage: name for name in updated & set(inputs)}
        self.writes = {name: ElementRegion(self.views[name].storage_bytes) for name in self.updated.values()}
        self.scattered: Counter[str] = Counter()
        self.partial: set[str] = set()
        self.asked: list[StridedView] = []
        """Numbers that the reference took out of tensors to decide what to do."""
        self.origins: dict[int, frozenset[str]] = {}
        self.alive: list[torch.Tensor] = [*inputs.values()]  # keeps a storage's address from being used again
        for tensor in inputs.values():
            self.recording.dtypes.add_input(tensor)

    def __torch_dispatch__(self, func: Untyped, types: Untyped, args: Untyped = (), kwargs: Untyped = None) -> Untyped:
        kwargs = kwargs or {}
        packet = func._overloadpacket  # noqa: SLF001 - the operator without its overload, as torch's own counter does
        if is_composite(func) and not is_product(packet):
            with self:
                return func.decompose(*args, **kwargs)
        out = self.values.run(func, args, kwargs)
        self.record(func, packet, args, kwargs, out)
        return out

    def record(self, func: Untyped, packet: Untyped, args: Untyped, kwargs: Untyped, out: Untyped) -> None:
        """Keep one operator that ran."""
        taken, made = tensors_in(args, kwargs), tensors_in(out)
        name = packet.__name__
        self.alive += made
        storages = {storage_of(tensor) for tensor in taken}
        changes = changed_argument(func) is not None
        if is_view(func):
            # A view of an input is resolved when something reads it; of anything else it may drop what was computed.
            if name in SELECTING and not storages & self.storages.keys():
                self.partial |= self.sources(taken)
            return
        if made and not changes and all(storage_of(tensor) in storages for tensor in made):
            return  # `_unsafe_view` and its like: a view, whatever the schema promises
        sources = self.sources(taken)
        if name == "clone" and storage_of(taken[0]) in self.updated and self.is_unchanged(taken[0]):
            self.updated[storage_of(made[0])] = self.updated[storage_of(taken[0])]  # the output begins as this input
            self.origins[storage_of(made[0])] = sources
            self.recording.dtypes.record(name, args, taken, made)
            return
        self.prove(name, taken)
        if name == "_local_scalar_dense":
            self.asked.append(view_of(taken[0]))
            return
        if name in SELECTING or _has_boolean_choice(taken, made):
            chosen_from = [tensor for place, tensor in enumerate(taken) if not _chooses(place, tensor)]
            self.partial |= frozenset[str]().union(*(self.origin(tensor) for tensor in chosen_from))
        for tensor in made:
            self.origins[storage_of(tensor)] = self.origins.get(storage_of(tensor), frozenset()) | sources
        step = self.recording.step(OperatorCall(name, packet, args, kwargs, taken, made, changes))
        self.write(name, step, taken)

    def is_unchanged(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is all of an updated input, and nothing has been written to it yet."""
        name = self.updated[storage_of(tensor)]
        view = view_of(tensor)
        return view.is_whole and self.writes[name].empty and not self.scattered[name]

    def sources(self, tensors: _Tensors) -> frozenset[str]:
        """The inputs that any of some tensors was computed from."""
        return frozenset[str]().union(*(self.origin(tensor) for tensor in tensors))

    def origin(self, tensor: torch.Tensor) -> frozenset[str]:
        """The inputs a tensor is one of, or was computed from."""
        storage = storage_of(tensor)
        itself = {self.storages[storage]} if storage in self.storages else set[str]()
        return self.origins.get(storage, frozenset()) | itself

    def prove(self, name: str, taken: _Tensors) -> None:
        """Note which elements of inputs an operator takes in whatever the values are; of a table it indexes, none."""
        for position, tensor in enumerate(taken):
            source = self.storages.get(storage_of(tensor))
            if source is not None and not (position == 0 and name in _UNREAD):
                self.regions[source].add(view_of(tensor))

    def write(self, name: str, step: Step, taken: _Tensors) -> None:
        """Note what is written to inputs that are updated in place."""
        for view in step.writes:
            source = self.updated.get(view.storage)
            if source is None:
                continue
            if name in SCATTERING:
                given = max((other.numel() * view.itemsize for other in taken[1:]), default=0)
                self.scattered[source] += min(given, view.distinct_bytes)
            else:
                self.writes[source].add(view)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        out: torch.Tensor,
        *,
        causal: bool,
    ) -> None:
        """Keep one fused attention."""
        taken = [query, key, value, *([mask] if mask is not None else [])]
        self.alive += [*taken, out]
        sources = self.sources(taken)
        self.prove("attention", taken)
        self.partial |= sources
        self.origins[storage_of(out)] = sources
        self.recording.attention(taken, out, causal=causal)

    def result(self, outputs: _Tensors) -> Trace:
        """The result of the whole run; `outputs` is what it returned."""
        returned = [view_of(tensor) for tensor in outputs if storage_of(tensor) not in self.updated] + self.asked
        updated = frozenset(self.updated)
        steps = self.recording.steps
        with_all = Liveness(unknown_share=1.0, updated=updated)
        likely = certain = with_all.run(steps, returned, self.views)
        if with_all.has_unknown_masks:
            certain = Liveness(unknown_share=0.0, updated=updated).run(steps, returned, self.views)
        found = Trace(products=certain.products, elementwise=certain.elementwise, read=likely.read)
        for name, region in self.regions.items():
            found.needed[name] = 0 if name in self.partial else min(region.count(), certain.read[name])
        for name, region in self.writes.items():
            found.written[name] = min(region.count() + self.scattered[name], region.bytes)
        return found


class _Functions(TorchFunctionMode):
    """Records fused attention as one operator, which torch spells out in float32 on tensors without values.

    A device that the reference names is taken for the CPU: the one named may not be here.
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
        if func is torch.Tensor.to:
            args = tuple(_HERE if _is_device(value) else value for value in args)
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _HERE}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
        query, key, value = (given[name] for name in _ATTENTION_ARGUMENTS[:3])
        out = torch.zeros((*query.shape[:-1], value.shape[-1]), dtype=query.dtype)
        self.recorder.attention(query, key, value, given.get("attn_mask"), out, causal=bool(given.get("is_causal")))
        return out


_HERE = torch.device("cpu")
_UNREAD = GATHERING | SCATTERING | OVERWRITING | SHAPED_LIKE
"""Operators that prove nothing about what they are given first."""
_ATTENTION_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def _is_device(value: Untyped) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in {"cuda", "cpu"})


def _has_boolean_choice(taken: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> bool:
    """A mask among the operands of arithmetic makes some of the others' elements irrelevant."""
    return any(tensor.dtype is torch.bool for tensor in taken) and any(tensor.is_floating_point() for tensor in made)


def _chooses(place: int, tensor: torch.Tensor) -> bool:
    """A mask or an index says which elements matter, and is itself needed."""
    return tensor.dtype is torch.bool or (place > 0 and not tensor.is_floating_point())
