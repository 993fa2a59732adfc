"""Language cpp: a C function of a shared object, called with pointers, scalars and axes (docs/formats.md).

A memory fault of compiled code is reported on stderr: its signal, the kernel's code and the address. The judge selects
one of its own sentences by the code; the line has no other effect. The process then ends by the signal, as it does
without the report.

Source: sigaction(2), sections on siginfo_t and on the codes of SIGSEGV and SIGBUS.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Callable
from typing import Any

from .messages import Load
from .shared_memory import HostWorkload, address

Call = Callable[[int], None]
_SA_SIGINFO, _SA_NODEFER = 0x4, 0x40000000
_ADDRESS = 16
"""Offset of si_addr in siginfo_t on 64-bit Linux; si_code is the third int."""
_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_byte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


@functools.cache
def _report_faults() -> object:
    """Report memory faults from now on.

    ctypes releases the interpreter lock during a call of compiled code, so that the handler can run at a fault.

    Returns:
        The handler, which C code references: the cache keeps Python from freeing it.
    """
    libc = ctypes.CDLL(None)

    def report(number: int, info: int, _: int) -> None:
        code = ctypes.c_int.from_address(info + 8).value
        address_of_fault = ctypes.c_uint64.from_address(info + _ADDRESS).value
        os.write(2, f"\nfault: signal {number} code {code} address {address_of_fault:#x}\n".encode())
        libc.sigaction(number, ctypes.byref(_SigAction()), None)  # the process repeats the instruction and ends

    handler = _Handler(report)
    action = _SigAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
    for number in (signal.SIGSEGV, signal.SIGBUS):
        libc.sigaction(number, ctypes.byref(action), None)
    return handler


def load(message: Load) -> Callable[[HostWorkload], Call]:
    """Open the shared object and return a function that prepares a workload and returns the call on one slot."""
    _report_faults()
    function = getattr(ctypes.CDLL(message.program.artefact), message.program.entry)
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
