"""A problem's reference as a baseline: eagerly, with other backends, under torch.compile, or as a CUDA graph.

Trusted code, called like any. A library baseline is such a reference that runs eagerly.

Both deliver into the given outputs as a candidate must. Under torch.compile the delivery is part of the compiled
function, so that the compiler can write its last result where it belongs. In the place of an input that it updates, a
reference gets the output that has the input's content, so that it updates in place and copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .arena import ArenaField, Sets
from .pytorch import Call, Halves, halves, load_function, prepare, store
from .torch_backends import TorchBackends

_COMPILE_MODES = {"compile": None, "max_autotune": "max-autotune"}


def load(message: dict[str, Any]) -> Callable[[Sets], Call | Halves]:
    """Import the reference; a workload says which variant runs."""
    run = load_function(message["source"], message["entry"])
    build = halves if message.get("timed") else prepare
    compiled: dict[str, Callable[..., Any]] = {}
    backends = TorchBackends()

    def workload_call(workload: Sets) -> Call | Halves:
        backends.use(workload.variant)
        fields = workload.outputs
        given = len(workload.inputs)
        updated = _updated(workload)
        complete = _completed(run, fields, updated) if updated else run
        sets = _UpdatedSets(workload, updated) if updated else workload
        if workload.variant == "cuda_graph":
            return _graph_call(complete, sets, timed=bool(message.get("timed")))
        if workload.variant not in _COMPILE_MODES:
            return build(complete, sets, {}, destination_passing=False)

        def run_into(*values: Any) -> None:  # noqa: ANN401 - tensors and scalars as the problem declares them
            inputs = [values[given + updated[place]] if place in updated else values[place] for place in range(given)]
            store(complete(*inputs), values[given:], fields)

        if workload.variant not in compiled:
            mode = _COMPILE_MODES[workload.variant]
            compiled[workload.variant] = torch.compile(run_into, dynamic=True, mode=mode)
        return build(compiled[workload.variant], workload, {}, destination_passing=True)

    return workload_call


def _graph_call(complete: Callable[..., Any], sets: Sets, *, timed: bool) -> Call | Halves:
    from .cuda_graph import captured  # noqa: PLC0415 - only where there is a GPU

    compute, deliver = captured(complete, sets)
    return (compute, deliver) if timed else lambda slot: deliver(compute(slot), slot)


def _updated(workload: Sets) -> dict[int, int]:
    """Position of each input that is updated in place -> that of its output."""
    places = {each.name: place for place, each in enumerate(workload.inputs)}
    outputs = enumerate(workload.outputs)
    return {places[each.updates]: number for number, each in outputs if each.updates is not None}


def _completed(run: Callable[..., Any], fields: Sequence[ArenaField], updated: Mapping[int, int]) -> Callable[..., Any]:
    """A reference that returns every output, also those that it only updates."""
    place_of = {number: place for place, number in updated.items()}
    others = [number for number in range(len(fields)) if number not in place_of]

    def complete(*inputs: Any) -> Any:  # noqa: ANN401 - tensors and scalars as the problem declares them
        returned = run(*inputs)
        if isinstance(returned, Mapping):
            return {**{fields[number].name: inputs[place] for number, place in place_of.items()}, **returned}
        values = [] if returned is None else list(returned) if isinstance(returned, tuple | list) else [returned]
        if len(values) != len(others):
            return values
        return [
            inputs[place_of[number]] if number in place_of else values[others.index(number)]
            for number in range(len(fields))
        ]

    return complete


@dataclass(frozen=True)
class _UpdatedSets:
    """Sets whose updated inputs are the outputs that begin as them. See the protocol `Sets`."""

    sets: Sets
    updated: Mapping[int, int]
    _outputs: dict[int, list[torch.Tensor]] = field(default_factory=dict)
    """By slot: the same tensors each time, so that an output that is delivered to itself is not copied."""

    @property
    def inputs(self) -> tuple[ArenaField, ...]:
        return self.sets.inputs

    @property
    def outputs(self) -> tuple[ArenaField, ...]:
        return self.sets.outputs

    @property
    def slots(self) -> int:
        return self.sets.slots

    @property
    def variant(self) -> str:
        return self.sets.variant

    def input_tensors(self, slot: int) -> list[Any]:
        found = self.sets.input_tensors(slot)
        for place, number in self.updated.items():
            found[place] = self.output_tensors(slot)[number]
        return found

    def output_tensors(self, slot: int) -> list[torch.Tensor]:
        if slot not in self._outputs:
            self._outputs[slot] = self.sets.output_tensors(slot)
        return self._outputs[slot]

    def scalar_readers(self) -> list[tuple[int, str, Any]]:
        return self.sets.scalar_readers()
