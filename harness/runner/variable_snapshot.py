"""Initial values of a module's variables, stored in device memory and restored before every call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import torch
from cuda.bindings import driver as cuda

from . import driver
from .cubin import ModuleVariable
from .driver import PreparedLaunch

_ALIGNMENT = 256
_MAX_COPIES = 256
"""Copies that the driver makes before a call. The device's queue has space for 1,024 commands, and is held until all
commands of the call are enqueued."""
_MAX_PIECES = 65_535
"""Pieces of one launch of the kernel `batched_copy`: the largest second dimension of a grid."""
_PIECE = struct.Struct("QQQfi")
"""Source, target, bytes, factor, kind; `Piece` in trusted.cu."""
_RAW_BYTES = 3
"""Kind of a piece that is copied without conversion."""


class VariableSnapshot:
    """A copy of the variables of a newly loaded module.

    Headers of the CUDA toolkit define hundreds of small constants in each module, and the driver rejects a copy that
    extends over two variables. One launch of a trusted kernel therefore copies the `__device__` variables if there are
    many.

    Args:
        module: the loaded module; none of its kernels has run.
        variables: variables by symbol (`module_variables`).
        batched_copy: `TrustedKernels.batched_copy`.

    Raises:
        CudaError: the driver does not find a variable, or there are too many variables.
    """

    def __init__(
        self,
        module: cuda.CUmodule,
        variables: Mapping[str, ModuleVariable],
        batched_copy: Callable[[int, int, int], PreparedLaunch],
    ) -> None:
        copied, launched = copy_methods(variables)
        offsets, total = {}, 0
        for symbol, variable in variables.items():
            offsets[symbol] = total
            total += -(-variable.bytes // _ALIGNMENT) * _ALIGNMENT
        self._initial_values = torch.empty(total, dtype=torch.uint8, device="cuda")
        places: dict[str, tuple[int, int, int]] = {}
        for symbol, variable in variables.items():
            address = int(driver.call(cuda.cuModuleGetGlobal, module, symbol.encode()))
            places[symbol] = address, self._initial_values.data_ptr() + offsets[symbol], variable.bytes
            driver.call(cuda.cuMemcpyDtoD, places[symbol][1], address, variable.bytes)
        self._copies = [places[symbol] for symbol in copied]
        self._launch: PreparedLaunch | None = None
        if launched:
            table = bytearray(b"".join(_row(*places[symbol]) for symbol in launched))
            self._table = torch.frombuffer(table, dtype=torch.uint8).cuda()
            longest = max(variables[symbol].bytes for symbol in launched)
            self._launch = batched_copy(self._table.data_ptr(), len(launched), longest)

    def restore(self) -> None:
        """Enqueue the copies on the default stream."""
        for address, source, size in self._copies:
            driver.call(cuda.cuMemcpyDtoDAsync, address, source, size, 0)
        if self._launch is not None:
            self._launch.run()


def copy_methods(variables: Mapping[str, ModuleVariable]) -> tuple[list[str], list[str]]:
    """Return the symbols that the driver copies, and the symbols that one launch copies.

    The driver copies all variables if there are few, and otherwise the `__constant__` ones, whose caches only the
    driver can invalidate.

    Raises:
        CudaError: there are too many variables.
    """
    if len(variables) <= _MAX_COPIES:
        return list(variables), []
    copied = [symbol for symbol, variable in variables.items() if variable.is_constant]
    launched = [symbol for symbol, variable in variables.items() if not variable.is_constant]
    if len(copied) > _MAX_COPIES or len(launched) > _MAX_PIECES:
        raise driver.CudaError(
            f"{len(variables)} module-scope variables, {len(copied)} of them __constant__, more than {_MAX_COPIES}: "
            "put them into one struct or array, or use a workspace"
        )
    return copied, launched


def _row(address: int, source: int, size: int) -> bytes:
    return _PIECE.pack(source, address, size, 0.0, _RAW_BYTES)
