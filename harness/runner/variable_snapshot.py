"""First values of a module's variables, kept in device memory and copied back before every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
        groups = neighbours(variables)
        scratch = torch.empty(max(_span(group)[1] for group in groups), dtype=torch.uint8, device="cuda")

        def is_copied_at_once(address: int, size: int) -> bool:
            """A copy must not cross the driver's own allocations, which may be next to each other."""
            (code,) = cuda.cuMemcpyDtoD(scratch.data_ptr(), address, size)
            return bool(code == cuda.CUresult.CUDA_SUCCESS)

        ranges = [part for group in groups for part in copied_ranges(group, is_copied_at_once)]
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


def neighbours(variables: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Variables (addresses and sizes in bytes) in groups without gaps, in order."""
    groups: list[list[tuple[int, int]]] = []
    end = 0
    for address, size in sorted(variables):
        if groups and address - end <= _GAP_BYTES:
            groups[-1].append((address, size))
        else:
            groups.append([(address, size)])
        end = max(end, address + size)
    return groups


def copied_ranges(
    group: Sequence[tuple[int, int]], is_copied_at_once: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """Addresses and sizes of few ranges that contain a group of variables, each of which one copy takes.

    Args:
        group: addresses and sizes in bytes, in order.
        is_copied_at_once: true for the address and size of a range that one copy takes.
    """
    address, size = _span(group)
    if len(group) == 1 or is_copied_at_once(address, size):
        return [(address, size)]
    middle = len(group) // 2
    return [*copied_ranges(group[:middle], is_copied_at_once), *copied_ranges(group[middle:], is_copied_at_once)]


def _span(group: Sequence[tuple[int, int]]) -> tuple[int, int]:
    begin = group[0][0]
    return begin, max(address + size for address, size in group) - begin
