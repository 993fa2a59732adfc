"""Language pytorch: a Python function, given the outputs to fill or returning them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import wire
from .arena import ArenaField, Sets

Call = Callable[[int], None]


def load_function(path: str, name: str) -> Callable[..., Any]:
    """Import a source file by its path, its directory searched last, and take a function from it."""
    sys.path.append(str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("solution_" + Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function = getattr(module, name)
    if not callable(function):
        raise TypeError(f"{name} is not a function")
    return function  # type: ignore[no-any-return]


Halves = tuple[Callable[[int], Any], Callable[[Any, int], None]]
"""A call in two parts: compute, and deliver what it returned."""


def load(message: dict[str, Any]) -> Function:
    """Import the solution."""
    return bound(load_function(message["source"], message["entry"]), message)


@dataclass(frozen=True)
class Function:
    """A loaded function, to be called as the judge's message says."""

    function: Callable[..., Any]
    constants: Mapping[str, Any]
    destination_passing: bool
    timed: bool

    def __call__(self, workload: Sets) -> Call | Halves:
        """Prepare a workload: the call on one slot (in halves, if `timed`)."""
        build = halves if self.timed else prepare
        return build(self.function, workload, self.constants, destination_passing=self.destination_passing)

    def halves(self, workload: Sets) -> Halves:
        """Prepare a workload's calls in two parts."""
        return halves(self.function, workload, self.constants, destination_passing=self.destination_passing)


def bound(function: Callable[..., Any], message: dict[str, Any]) -> Function:
    """A loaded function with what the judge's message says of its calls."""
    return Function(function, message["params"], message["destination_passing"], bool(message.get("timed")))


def prepare(
    function: Callable[..., Any], workload: Sets, constants: Mapping[str, Any], *, destination_passing: bool
) -> Call:
    """Make every slot's tensors beforehand."""
    arguments = _arguments(workload)
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]

    def call_passing(slot: int) -> None:
        function(*arguments(slot), *outputs[slot], **constants)

    def call_returning(slot: int) -> None:
        store(function(*arguments(slot), **constants), outputs[slot], workload.outputs)

    return call_passing if destination_passing else call_returning


def halves(
    function: Callable[..., Any], workload: Sets, constants: Mapping[str, Any], *, destination_passing: bool
) -> Halves:
    """Like `prepare`, in two parts: what is returned can be delivered when the clock has stopped."""
    arguments = _arguments(workload)
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]

    def compute(slot: int) -> Any:  # noqa: ANN401 - whatever it returns
        given = outputs[slot] if destination_passing else ()
        return function(*arguments(slot), *given, **constants)

    def deliver(returned: Any, slot: int) -> None:  # noqa: ANN401
        if not destination_passing:
            store(returned, outputs[slot], workload.outputs)

    return compute, deliver


def _arguments(workload: Sets) -> Callable[[int], list[Any]]:
    """A slot's inputs in order, scalars as they are at that moment."""
    inputs = [workload.input_tensors(slot) for slot in range(workload.slots)]
    scalars = workload.scalar_readers()

    def arguments(slot: int) -> list[Any]:
        mine = inputs[slot]
        for position, kind, view in scalars:
            mine[position] = bool(view[slot]) if kind == "bool" else view[slot]
        return mine

    return arguments


def store(returned: Any, outputs: Sequence[torch.Tensor], fields: Sequence[ArenaField]) -> None:  # noqa: ANN401 - untrusted
    """Copy what a function returned (a tensor, a sequence or a dict by name) into the outputs.

    Raises:
        wire.Mismatch: an output has not the declared shape or dtype.
    """
    if isinstance(returned, torch.Tensor):
        returned = (returned,)
    elif isinstance(returned, Mapping):
        returned = tuple(returned[field.name] for field in fields)
    if len(returned) != len(outputs):
        raise ValueError(f"returned {len(returned)} outputs where {len(outputs)} are declared")
    for number, (mine, output) in enumerate(zip(returned, outputs, strict=True)):
        value = mine if isinstance(mine, torch.Tensor) else torch.as_tensor(mine, dtype=output.dtype)
        if tuple(value.shape) != tuple(output.shape):
            raise wire.Mismatch(wire.Code.SHAPE, number)
        if value.dtype != output.dtype:
            raise wire.Mismatch(wire.Code.DTYPE, number)
        output.copy_(value)
