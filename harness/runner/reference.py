"""A problem's reference as a baseline: eager, with other backends, under torch.compile, or as a CUDA graph.

A library baseline is a reference that runs eagerly.

A reference is trusted code, called in the same way as a candidate: its results are copied to the given outputs. Under
torch.compile the copy is part of the compiled function, so that the compiler can write results directly to the outputs.
For an input that it updates, a reference receives the output that has the input's content. It updates this output in
place, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .pytorch import Call, SplitCall, load_function, prepare, split_call, store
from .shared_memory import SlotField, WorkloadSlots
from .torch_backends import TorchBackends

_COMPILE_MODES = {"compile": None, "max_autotune": "max-autotune"}


def load(message: dict[str, Any]) -> Callable[[WorkloadSlots], Call | SplitCall]:
    """Import the reference and return a function that prepares a workload's variant."""
    run = load_function(message["source"], message["entry"])
    build = split_call if message.get("timed") else prepare
    compiled: dict[str, Callable[..., Any]] = {}
    backends = TorchBackends()

    def workload_call(workload: WorkloadSlots) -> Call | SplitCall:
        backends.use(workload.variant)
        fields = workload.outputs
        input_count = len(workload.inputs)
        updated = _updated(workload)
        complete = _completed(run, fields, updated) if updated else run
        slots = _UpdatedSlots(workload, updated) if updated else workload
        if workload.variant == "cuda_graph":
            return _graph_call(complete, slots, timed=bool(message.get("timed")))
        if workload.variant not in _COMPILE_MODES:
            return build(complete, slots, {}, destination_passing=False)

        def run_into(*values: Any) -> None:  # noqa: ANN401 - tensors and scalars as the problem declares them
            inputs = [
                values[input_count + updated[position]] if position in updated else values[position]
                for position in range(input_count)
            ]
            store(complete(*inputs), values[input_count:], fields)

        if workload.variant not in compiled:
            mode = _COMPILE_MODES[workload.variant]
            compiled[workload.variant] = torch.compile(run_into, dynamic=True, mode=mode)
        return build(compiled[workload.variant], workload, {}, destination_passing=True)

    return workload_call


def _graph_call(complete: Callable[..., Any], slots: WorkloadSlots, *, timed: bool) -> Call | SplitCall:
    from .cuda_graph import captured  # noqa: PLC0415 - only where there is a GPU

    compute, deliver = captured(complete, slots)
    return (compute, deliver) if timed else lambda slot: deliver(compute(slot), slot)


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


@dataclass(frozen=True)
class _UpdatedSlots:
    """Slots in which an updated input is the output that has its content. See the protocol `WorkloadSlots`."""

    original: WorkloadSlots
    updated: Mapping[int, int]
    _outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """Outputs by slot. The same tensors are returned each time, so that no output is copied to itself."""

    @property
    def inputs(self) -> tuple[SlotField, ...]:
        return self.original.inputs

    @property
    def outputs(self) -> tuple[SlotField, ...]:
        return self.original.outputs

    @property
    def slots(self) -> int:
        return self.original.slots

    @property
    def variant(self) -> str:
        return self.original.variant

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
