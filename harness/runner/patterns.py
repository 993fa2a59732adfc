"""Words that workspaces are filled with before a call."""

from __future__ import annotations

import ctypes

POISON = 0xA5A5A5A5
"""A workspace without an initial value has this in each word when a call begins: nothing of an earlier call is left."""


def fill_word(init: float | str) -> int:
    """Return the 32-bit word of an initial value: a byte four times, a float's bits, or the poison for "none"."""
    if init == "none":
        return POISON
    if isinstance(init, int):
        return init * 0x01010101
    return ctypes.c_uint32.from_buffer(ctypes.c_float(float(init))).value
