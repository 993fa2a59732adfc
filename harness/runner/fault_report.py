"""Report a memory fault of compiled code on stderr: its signal, the kernel's code and the address.

The judge selects one of its own sentences by the code; the line has no other effect. The process then ends by the
signal, as it does without this module.

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


_installed_handlers: list[Any] = []
"""The handler, which C code references and Python must not free."""


def install() -> None:
    """Report faults from now on.

    ctypes releases the interpreter lock during a call of compiled code, so that the handler can run at a fault.
    """
    if _installed_handlers:
        return
    libc = ctypes.CDLL(None)

    def report(number: int, info: int, _: int) -> None:
        code = ctypes.c_int.from_address(info + 8).value
        address = ctypes.c_uint64.from_address(info + _ADDRESS).value
        os.write(2, f"\nfault: signal {number} code {code} address {address:#x}\n".encode())
        libc.sigaction(number, ctypes.byref(_SigAction()), None)  # the process repeats the instruction and ends

    handler = _Handler(report)
    _installed_handlers.append(handler)
    action = _SigAction(handler=ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
    for number in _SIGNALS:
        libc.sigaction(number, ctypes.byref(action), None)
