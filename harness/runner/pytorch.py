"""Language pytorch: a Python function that fills the given outputs or returns them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import wire
from .messages import Load, SlotField
from .shared_memory import WorkloadSlots

Call = Callable[[int], None]


def load_function(path: str, name: str) -> Callable[..., Any]:
    """Import a source file, whose directory becomes the last one of the search path, and return one of its functions.

    Args:
        path: path of the file.
        name: name of the function.

    Raises:
        ImportError: Python cannot import a file of this name.
        AttributeError: the module has no such attribute.
        TypeError: the attribute is not callable.
    """
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


SplitCall = tuple[Callable[[int], Any], Callable[[Any, int], None]]
"""A call in two parts: compute, and copy the returned values to the outputs."""


def load(message: Load) -> Function:
    """Import the solution."""
    return bind(load_function(message.program.source, message.program.entry), message)


@dataclass(frozen=True)
class Function:
    """A loaded function, with the way of calling it that the judge's message states."""

    function: Callable[..., Any]
    constants: Mapping[str, Any]
    destination_passing: bool
    timed: bool

    def __call__(self, workload: WorkloadSlots) -> Call | SplitCall:
        """Prepare a workload and return the call on one slot, in two parts if it is `timed`."""
        build = split_call if self.timed else prepare
        return build(self.function, workload, self.constants, destination_passing=self.destination_passing)

    def split_call(self, workload: WorkloadSlots) -> SplitCall:
        """Prepare a workload and return the call on one slot, in two parts."""
        return split_call(self.function, workload, self.constants, destination_passing=self.destination_passing)


def bind(function: Callable[..., Any], message: Load) -> Function:
    """Return a loaded function with the way of calling it that the judge's message states.

    Args:
        function: the loaded function.
        message: the judge's request to load.
    """
    return Function(function, message.program.params, message.program.destination_passing, message.reads_events)


def prepare(
    function: Callable[..., Any], workload: WorkloadSlots, constants: Mapping[str, Any], *, destination_passing: bool
) -> Call:
    """Return the call on one slot; the tensors of every slot are created here.

    Args:
        function: function of the solution.
        workload: the slots.
        constants: keyword arguments of every call.
        destination_passing: pass the outputs to the function; otherwise it returns them.
    """
    arguments = _arguments(workload)
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]

    def call_passing(slot: int) -> None:
        function(*arguments(slot), *outputs[slot], **constants)

    def call_returning(slot: int) -> None:
        store(function(*arguments(slot), **constants), outputs[slot], workload.outputs)

    return call_passing if destination_passing else call_returning


def split_call(
    function: Callable[..., Any], workload: WorkloadSlots, constants: Mapping[str, Any], *, destination_passing: bool
) -> SplitCall:
    """Return the call on one slot in two parts, so that returned values can be copied after the end of the timing.

    Args:
        function: function of the solution.
        workload: the slots.
        constants: keyword arguments of every call.
        destination_passing: pass the outputs to the function; otherwise it returns them.
    """
    arguments = _arguments(workload)
    outputs = [workload.output_tensors(slot) for slot in range(workload.slots)]

    def compute(slot: int) -> Any:  # noqa: ANN401 - untrusted
        destinations = outputs[slot] if destination_passing else ()
        return function(*arguments(slot), *destinations, **constants)

    def deliver(returned: Any, slot: int) -> None:  # noqa: ANN401
        if not destination_passing:
            store(returned, outputs[slot], workload.outputs)

    return compute, deliver


def _arguments(workload: WorkloadSlots) -> Callable[[int], list[Any]]:
    """Return a function that returns a slot's inputs in order, with the current values of scalars."""
    inputs = [workload.input_tensors(slot) for slot in range(workload.slots)]
    scalars = workload.scalar_readers()

    def arguments(slot: int) -> list[Any]:
        slot_inputs = inputs[slot]
        for position, kind, view in scalars:
            slot_inputs[position] = bool(view[slot]) if kind == "bool" else view[slot]
        return slot_inputs

    return arguments


def store(returned: Any, outputs: Sequence[torch.Tensor], fields: Sequence[SlotField]) -> None:  # noqa: ANN401 - untrusted
    """Copy a function's result into the outputs.

    Args:
        returned: a tensor, a sequence or a dict by name.
        outputs: the tensors to fill.
        fields: the outputs' fields, in the same order.

    Raises:
        ValueError: the number of outputs is wrong.
        wire.OutputMismatchError: an output does not have the declared shape or dtype.
    """
    if isinstance(returned, torch.Tensor):
        returned = (returned,)
    elif isinstance(returned, Mapping):
        returned = tuple(returned[field.name] for field in fields)
    if len(returned) != len(outputs):
        raise ValueError(f"returned {len(returned)} outputs where {len(outputs)} are declared")
    for number, (result, output) in enumerate(zip(returned, outputs, strict=True)):
        value = result if isinstance(result, torch.Tensor) else torch.as_tensor(result, dtype=output.dtype)
        if tuple(value.shape) != tuple(output.shape):
            raise wire.OutputMismatchError(wire.Code.SHAPE, number)
        if value.dtype != output.dtype:
            raise wire.OutputMismatchError(wire.Code.DTYPE, number)
        output.copy_(value)
