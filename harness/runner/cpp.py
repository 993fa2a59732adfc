"""Language cpp: a C function of a shared object, called with pointers, scalars and axes (docs/formats.md)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import fault_report
from .shared_memory import HostWorkload, address

Call = Callable[[int], None]


def load(message: dict[str, Any]) -> Callable[[HostWorkload], Call]:
    """Open the shared object and return a function that prepares a workload and returns the call on one slot."""
    fault_report.install()
    function = getattr(ctypes.CDLL(message["artefact"]), message["entry"])
    function.restype = None
    return lambda workload: prepare(function, workload)


def prepare(function: Any, workload: HostWorkload) -> Call:  # noqa: ANN401 - a ctypes function has no type of its own
    """Return the call on one slot. The arguments of each slot are built here: a call adds only the overhead of ctypes.

    Args:
        function: C function of the ctypes library.
        workload: the slots.
    """
    inputs, outputs = address(workload.memory.inputs), address(workload.memory.outputs)
    axes = [ctypes.c_int64(size) for size in workload.axes]
    arguments: list[list[Any]] = []
    for slot in range(workload.slots):
        input_base, output_base = inputs + slot * workload.input_stride, outputs + slot * workload.output_stride
        arguments.append(
            [ctypes.c_void_p(input_base + field.offset) for field in workload.inputs]
            + [ctypes.c_void_p(output_base + field.offset) for field in workload.outputs]
            + axes
        )
    scalars = workload.scalar_readers()
    if not scalars:
        fixed_arguments = [tuple(slot_arguments) for slot_arguments in arguments]

        def call(slot: int) -> None:
            function(*fixed_arguments[slot])

        return call

    def call_with_scalars(slot: int) -> None:
        slot_arguments = arguments[slot]
        for position, kind, view in scalars:
            slot_arguments[position] = ctypes.c_double(view[slot]) if kind == "float" else ctypes.c_int64(view[slot])
        function(*slot_arguments)

    return call_with_scalars
