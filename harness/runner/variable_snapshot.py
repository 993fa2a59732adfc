"""First values of a module's variables, kept in device memory and copied back before every call."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from cuda.bindings import driver as cuda

from . import driver

_ALIGNMENT = 256


class VariableSnapshot:
    """A copy of the variables of a module that was just loaded.

    Args:
        module: the loaded module; none of its kernels has run.
        sizes: bytes of each variable, by symbol (`module_variables`).

    Raises:
        CudaError: the driver does not find a variable.
    """

    def __init__(self, module: cuda.CUmodule, sizes: Mapping[str, int]) -> None:
        self._copies: list[tuple[int, int, int]] = []
        total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes.values())
        self._kept = torch.empty(total, dtype=torch.uint8, device="cuda")
        source = self._kept.data_ptr()
        for symbol, size in sizes.items():
            address = driver.call(cuda.cuModuleGetGlobal, module, symbol.encode())
            driver.call(cuda.cuMemcpyDtoD, source, address, size)
            self._copies.append((int(address), source, size))
            source += -(-size // _ALIGNMENT) * _ALIGNMENT

    def restore(self) -> None:
        """Enqueue the copies on the default stream."""
        for address, source, size in self._copies:
            driver.call(cuda.cuMemcpyDtoDAsync, address, source, size, 0)
