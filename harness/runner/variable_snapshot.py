"""First values of a module's variables, kept in device memory and copied back before every call."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import torch
from cuda.bindings import driver as cuda

from . import driver
from .driver import PreparedLaunch
from .module_variables import ModuleVariable

_ALIGNMENT = 256
_MOST_COPIES = 256
"""Copies of a call by the driver. The device's queue takes 1,024 commands, and is held until the call is complete."""
_MOST_PIECES = 65_535
"""Of one launch of the kernel `pieces`: blocks of a grid's second dimension."""
_PIECE = struct.Struct("QQQfi")
"""Source, target, bytes, factor, kind (3: as it is); `Piece` in trusted.cu."""
_AS_IT_IS = 3


class VariableSnapshot:
    """A copy of the variables of a module that was just loaded.

    Headers of the CUDA toolkit define hundreds of small constants in each module, and the driver refuses a copy that
    crosses from one variable to the next. So many `__device__` variables are copied by one launch of a trusted kernel.

    Args:
        module: the loaded module; none of its kernels has run.
        variables: by symbol (`module_variables`).
        pieces: `Trusted.pieces`.

    Raises:
        CudaError: the driver does not find a variable, or there are too many.
    """

    def __init__(
        self,
        module: cuda.CUmodule,
        variables: Mapping[str, ModuleVariable],
        pieces: Callable[[int, int, int], PreparedLaunch],
    ) -> None:
        copied, launched = divided(variables)
        offsets, total = {}, 0
        for symbol, variable in variables.items():
            offsets[symbol] = total
            total += -(-variable.bytes // _ALIGNMENT) * _ALIGNMENT
        self._kept = torch.empty(total, dtype=torch.uint8, device="cuda")
        places: dict[str, tuple[int, int, int]] = {}
        for symbol, variable in variables.items():
            address = int(driver.call(cuda.cuModuleGetGlobal, module, symbol.encode()))
            places[symbol] = address, self._kept.data_ptr() + offsets[symbol], variable.bytes
            driver.call(cuda.cuMemcpyDtoD, places[symbol][1], address, variable.bytes)
        self._copies = [places[symbol] for symbol in copied]
        self._launch: PreparedLaunch | None = None
        if launched:
            table = bytearray(b"".join(_row(*places[symbol]) for symbol in launched))
            self._table = torch.frombuffer(table, dtype=torch.uint8).cuda()
            longest = max(variables[symbol].bytes for symbol in launched)
            self._launch = pieces(self._table.data_ptr(), len(launched), longest)

    def restore(self) -> None:
        """Enqueue the copies on the default stream."""
        for address, source, size in self._copies:
            driver.call(cuda.cuMemcpyDtoDAsync, address, source, size, 0)
        if self._launch is not None:
            self._launch.run()


def divided(variables: Mapping[str, ModuleVariable]) -> tuple[list[str], list[str]]:
    """Symbols that the driver copies, and symbols that one launch copies.

    The driver copies all of few variables, and of many the `__constant__` ones, whose caches only it can invalidate.

    Raises:
        CudaError: there are too many.
    """
    if len(variables) <= _MOST_COPIES:
        return list(variables), []
    copied = [symbol for symbol, variable in variables.items() if variable.is_constant]
    launched = [symbol for symbol, variable in variables.items() if not variable.is_constant]
    if len(copied) > _MOST_COPIES or len(launched) > _MOST_PIECES:
        raise driver.CudaError(
            f"{len(variables)} module-scope variables, {len(copied)} of them __constant__, more than {_MOST_COPIES}: "
            "put them into one struct or array, or use a workspace"
        )
    return copied, launched


def _row(address: int, source: int, size: int) -> bytes:
    return _PIECE.pack(source, address, size, 0.0, _AS_IT_IS)
