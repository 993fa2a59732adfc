"""A line on stderr about a memory fault of compiled code: its signal, the kernel's code and the address.

The judge picks one of its own sentences by the code; the line decides nothing. The process then ends by the signal, as
it would have without.

Source: sigaction(2), sections on siginfo_t and on the codes of SIGSEGV and SIGBUS.
"""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Any

_SA_SIGINFO, _SA_NODEFER = 0x4, 0x40000000
_SIGNALS = (signal.SIGSEGV, signal.SIGBUS)
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


_kept: list[Any] = []
"""The handler, which C code refers to."""


def install() -> None:
    """Report faults from now on. A call of compiled code does not hold the interpreter, so its fault is reported."""
    if _kept:
        return
    libc = ctypes.CDLL(None)

    def report(number: int, info: int, _: int) -> None:
        code = ctypes.c_int.from_address(info + 8).value
        address = ctypes.c_uint64.from_address(info + _ADDRESS).value
        os.write(2, f"\nfault: signal {number} code {code} address {address:#x}\n".encode())
        libc.sigaction(number, ctypes.byref(_SigAction()), None)  # the default: the instruction is repeated and ends us

    handler = _Handler(report)
    _kept.append(handler)
    action = _SigAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
    for number in _SIGNALS:
        libc.sigaction(number, ctypes.byref(action), None)
