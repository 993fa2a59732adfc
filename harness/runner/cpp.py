"""Language cpp: one C function in a shared object, called with pointers, scalars and axes (docs/formats.md)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import fault_report
from .arena import ArenaWorkload, address

Call = Callable[[int], None]


def load(message: dict[str, Any]) -> Callable[[ArenaWorkload], Call]:
    """Open the artefact; the answer prepares a workload and gives the call on one slot."""
    fault_report.install()
    function = getattr(ctypes.CDLL(message["artefact"]), message["entry"])
    function.restype = None
    return lambda workload: prepare(function, workload)


def prepare(function: Any, workload: ArenaWorkload) -> Call:  # noqa: ANN401 - a ctypes function has no type of its own
    """Build every slot's arguments beforehand, so that a call costs what ctypes costs."""
    inputs, outputs = address(workload.arena.inputs), address(workload.arena.outputs)
    axes = [ctypes.c_int64(size) for size in workload.axes]
    arguments: list[list[Any]] = []
    for slot in range(workload.slots):
        first, second = inputs + slot * workload.input_stride, outputs + slot * workload.output_stride
        arguments.append(
            [ctypes.c_void_p(first + field.offset) for field in workload.inputs]
            + [ctypes.c_void_p(second + field.offset) for field in workload.outputs]
            + axes
        )
    scalars = workload.scalar_readers()
    if not scalars:
        fixed = [tuple(each) for each in arguments]

        def call(slot: int) -> None:
            function(*fixed[slot])

        return call

    def call_with_scalars(slot: int) -> None:
        mine = arguments[slot]
        for position, kind, view in scalars:
            mine[position] = ctypes.c_double(view[slot]) if kind == "float" else ctypes.c_int64(view[slot])
        function(*mine)

    return call_with_scalars
