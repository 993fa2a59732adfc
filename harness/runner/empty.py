"""Calls for calibration, by the way of language cpp: the C library's bcopy, of no bytes or of so many."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import cpp
from .arena import ArenaWorkload


def load(message: dict[str, Any]) -> Callable[[ArenaWorkload], cpp.Call]:
    """bcopy(first input, output, axis) for one input; for several a call that ignores them (labs)."""
    del message
    library = ctypes.CDLL(None)

    def prepare(workload: ArenaWorkload) -> cpp.Call:
        function = library.bcopy if len(workload.inputs) == 1 else library.labs
        function.restype = None
        return cpp.prepare(function, workload)

    return prepare
