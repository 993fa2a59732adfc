"""Language `empty` of the judge: calls of the C library in the way of language cpp, for calibration."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from . import cpp
from .messages import Load
from .shared_memory import HostWorkload


def load(message: Load) -> Callable[[HostWorkload], cpp.Call]:
    """Return a function that prepares a workload.

    Its call is `bcopy(input, output, axis)` for one input, and `labs`, which has no effect, for more inputs.
    """
    del message
    library = ctypes.CDLL(None)

    def prepare(workload: HostWorkload) -> cpp.Call:
        function = library.bcopy if len(workload.inputs) == 1 else library.labs
        function.restype = None
        return cpp.prepare(function, workload)

    return prepare
