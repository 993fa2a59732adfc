"""First values of a module's variables, kept in device memory and copied back before every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from cuda.bindings import driver as cuda

from . import driver

_GAP_BYTES = 256
"""Variables with no more than this between them are copied together: what lies between is padding."""
_MOST_RANGES = 256
"""Copies of a call. The device's queue takes 1,024 commands, and it is held until the call is complete."""


class VariableSnapshot:
    """A copy of the variables of a module that was just loaded.

    Headers of the CUDA toolkit define hundreds of small constants in each module, so neighbours are copied together.

    Args:
        module: the loaded module; none of its kernels has run.
        sizes: bytes of each variable, by symbol (`module_variables`).

    Raises:
        CudaError: the driver does not find a variable, or they lie in too many places.
    """

    def __init__(self, module: cuda.CUmodule, sizes: Mapping[str, int]) -> None:
        variables = [
            (int(driver.call(cuda.cuModuleGetGlobal, module, symbol.encode())), size) for symbol, size in sizes.items()
        ]
        ranges = merged_ranges(variables)
        if len(ranges) > _MOST_RANGES:
            raise driver.CudaError(
                f"module-scope variables lie in {len(ranges)} separate places, more than {_MOST_RANGES}: "
                "put them into one struct or array, or use a workspace"
            )
        self._kept = torch.empty(sum(size for _, size in ranges), dtype=torch.uint8, device="cuda")
        self._copies: list[tuple[int, int, int]] = []
        source = self._kept.data_ptr()
        for address, size in ranges:
            driver.call(cuda.cuMemcpyDtoD, source, address, size)
            self._copies.append((address, source, size))
            source += size

    def restore(self) -> None:
        """Enqueue the copies on the default stream."""
        for address, source, size in self._copies:
            driver.call(cuda.cuMemcpyDtoDAsync, address, source, size, 0)


def merged_ranges(variables: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Address and size in bytes of the ranges that contain all variables (addresses and sizes), in order."""
    ranges: list[tuple[int, int]] = []
    for address, size in sorted(variables):
        if ranges and address - sum(ranges[-1]) <= _GAP_BYTES:
            begin, length = ranges[-1]
            ranges[-1] = begin, max(length, address + size - begin)
        else:
            ranges.append((address, size))
    return ranges
