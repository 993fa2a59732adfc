"""Words with which a workspace is filled before a call."""

from __future__ import annotations

import ctypes

POISON = 0xA5A5A5A5
"""Each word of a workspace without an initial value when a call begins, so that nothing of an earlier call remains."""


def fill_word(init: float | str) -> int:
    """Return the word of an initial value: an integer's byte four times, a float32's bits, or `POISON` for "none"."""
    if init == "none":
        return POISON
    if isinstance(init, int):
        return init * 0x01010101
    return ctypes.c_uint32.from_buffer(ctypes.c_float(float(init))).value
