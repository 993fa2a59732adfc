"""A call that does nothing, by the way of language cpp: what calibration measures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import cpp
from .arena import Workload


def load(message: dict[str, Any]) -> Callable[[Workload], cpp.Call]:
    """The C library's labs: it ignores all arguments but one and touches no memory."""
    del message
    function = ctypes.CDLL(None).labs
    function.restype = None
    return lambda workload: cpp.prepare(function, workload)
