"""The trusted launcher: makes each launch of a sealed solution and reads device events around each call.

No host code of the candidate runs in this process. A call consists of, in stream order: set module-scope variables and
workspaces, displace L2 by reading other memory, hold the queue until the rest is enqueued, record an event, run the
plan's launches, record an event. So the host's speed affects no reading, and it enqueues while the device displaces L2.
The judge writes the inputs of the next call when this call has ended and its outputs are copied.
"""

from __future__ import annotations

import statistics
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from cuda.bindings import driver as cuda

from . import driver
from .cubin import ModuleVariable
from .driver import PreparedLaunch, fill_word
from .wire import TRUSTED_KERNELS

_HOLD_NS = 200_000_000
_DISPLACE_FACTOR = 3
_BLOCKS_PER_SM = 4
_ELEMENTS_PER_BLOCK = 4096
"""Elements of a copied piece per block."""
_SPIN_CYCLES = (2_000, 40_000)
"""Durations of the two self-timed kernels, in cycles of the SM's clock."""
_SPIN_PAIRS = 41
_SHORT_BYTES, _SHORT_PLACES = 1 << 20, 16
"""Memory of the short kernels that show a process' own overhead: bytes, and number of addresses."""
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


def _event_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class TrustedKernels:
    """The trusted kernels, and the buffer whose reading displaces all other lines from L2.

    Args:
        cubin: trusted.cu, compiled by the judge.
    """

    SHORT_REPEATS = 9
    """Readings of each kernel in `short_kernel_us`, one after the other."""
    SHORT_READINGS = 2 * _SHORT_PLACES * SHORT_REPEATS
    """All readings of `short_kernel_us`."""

    def __init__(self, cubin: bytes) -> None:
        module = driver.load(cubin)
        self._functions = {name: driver.kernel(module, name) for name in TRUSTED_KERNELS}
        device = torch.cuda.get_device_properties(0)
        self._grid, l2_bytes = _BLOCKS_PER_SM * device.multi_processor_count, device.L2_cache_size
        self._displaced = torch.zeros(_DISPLACE_FACTOR * l2_bytes // 16 * 16, dtype=torch.uint8, device="cuda")
        self._go = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._sink = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._ticket = 0
        self.displace = self.read(self._displaced.data_ptr(), self._displaced.numel())
        """A launch that displaces all other lines from L2. It reads, because written lines would be written back in the
        next call."""

    def _prepare(
        self, name: str, grid: int, block: int, arguments: Sequence[tuple[str, float]], *, rows: int = 1
    ) -> PreparedLaunch:
        spec = {
            "grid": (grid, rows, 1),
            "block": (block, 1, 1),
            "shared_bytes": 0,
            "cluster": None,
            "cooperative": False,
            "args": [{"kind": "value", "format": kind, "value": value} for kind, value in arguments],
        }
        return PreparedLaunch(self._functions[name], spec, {})

    def fill(self, address: int, size: int, pattern: int) -> PreparedLaunch:
        """Return a launch that fills memory with a 32-bit pattern.

        Args:
            address: device address.
            size: bytes, rounded up to a multiple of 4.
            pattern: the word.
        """
        return self._prepare("fill", self._grid, 256, [("Q", address), ("Q", -(-size // 4)), ("I", pattern)])

    def read(self, address: int, size: int) -> PreparedLaunch:
        """Return a launch that reads memory.

        Args:
            address: device address.
            size: bytes, a multiple of 16.
        """
        arguments = [("Q", address), ("Q", size // 16), ("Q", self._sink.data_ptr())]
        return self._prepare("read", 2 * self._grid, 256, arguments)

    def spin(self, cycles: int) -> PreparedLaunch:
        """Return a launch of one thread that runs for this number of cycles of the SM's clock."""
        return self._prepare("spin", 1, 1, [("q", cycles), ("Q", self._sink.data_ptr())])

    def compare(
        self, output: int, expected: int, count: int, kind: int, limits: tuple[float, float, float], sums: int
    ) -> PreparedLaunch:
        """Return a launch that adds the differences of two arrays of floats to sums.

        Args:
            output: device address of the array to check.
            expected: device address of the expected array.
            count: elements.
            kind: 0 for float32, 1 for bfloat16, 2 for float16.
            limits: absolute tolerance, relative tolerance, smallest divisor of a relative error.
            sums: device address of `Sums` in trusted.cu.
        """
        numbers = [("Q", output), ("Q", expected), ("Q", count), ("i", kind), *(("f", limit) for limit in limits)]
        blocks = max(1, min(2 * self._grid, -(-count // 2048)))
        return self._prepare("compare", blocks, 256, [*numbers, ("Q", sums)])

    def batched_copy(self, table: int, count: int, longest: int) -> PreparedLaunch:
        """Return a launch that copies the pieces of a table.

        Args:
            table: device address of an array of `Piece` in trusted.cu.
            count: pieces of the table, at most 65,535.
            longest: elements of the longest piece.
        """
        blocks = max(1, min(4 * self._grid // count, -(-longest // _ELEMENTS_PER_BLOCK)))
        return self._prepare("batched_copy", blocks, 256, [("Q", table)], rows=count)

    def reset_persisting_lines(self) -> None:
        """Reset the persisting lines of L2, before each call of either side."""
        driver.call(cuda.cuCtxResetPersistingL2Cache)

    def enqueue_held(self, enqueue: Callable[[], None], limit_ns: int = _HOLD_NS) -> None:
        """Enqueue work while a kernel holds the queue, so that all of it is enqueued before the device starts it.

        Work that need not be held, as the displacement of L2, is enqueued before: the device does it meanwhile.

        Args:
            enqueue: enqueues the work on the default stream.
            limit_ns: longest time that the queue is held.
        """
        self._ticket += 1
        self._prepare("hold", 1, 1, [("Q", self._go.data_ptr()), ("I", self._ticket), ("Q", limit_ns)]).run()
        try:
            enqueue()
        finally:
            self._go[0] = self._ticket

    def pair_overhead_us(self) -> float:
        """Return the overhead of events around a kernel, in microseconds: median over pairs of self-timed kernels.

        A short and a long kernel are launched together. Both count cycles of the SM's clock, whose frequency is the
        same for both and cancels. The result is up to 0.8 us larger than CUPTI's, because the kernel does not count its
        own start and end (docs/clock.md).
        """
        cycle_counts = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in _SPIN_CYCLES]
        kernels = [
            self._prepare("spin", 1, 1, [("q", cycles), ("Q", count.data_ptr())])
            for cycles, count in zip(_SPIN_CYCLES, cycle_counts, strict=True)
        ]
        overheads_us: list[float] = []
        for _ in range(_SPIN_PAIRS):
            short_us, long_us = self._readings_us(kernels)
            short_cycles, long_cycles = (count.item() for count in cycle_counts)
            overheads_us.append((short_us * long_cycles - long_us * short_cycles) / (long_cycles - short_cycles))
        return statistics.median(overheads_us)

    def short_kernel_us(self) -> float:
        """Return the mean of `short_kernels_us`.

        The time between events around the same kernel differs by up to 0.3 us between processes, independently of the
        kernel's duration. Short kernels show this offset (docs/clock.md).
        """
        return statistics.fmean(self.short_kernels_us())

    def short_kernels_us(self) -> list[float]:
        """Return the median time between events around each of the short kernels, in microseconds.

        The first half of the kernels read 1 MiB, the second half write 1 MiB.
        """
        buffer = torch.zeros(_SHORT_PLACES * 2 * _SHORT_BYTES, dtype=torch.uint8, device="cuda")
        addresses = [buffer.data_ptr() + place * 2 * _SHORT_BYTES for place in range(_SHORT_PLACES)]
        kernels = [self.read(address, _SHORT_BYTES) for address in addresses]
        kernels += [self.fill(address, _SHORT_BYTES, 0) for address in addresses]
        return [
            statistics.median(self._readings_us([kernel])[0] for _ in range(self.SHORT_REPEATS)) for kernel in kernels
        ]

    def _readings_us(self, kernels: Sequence[PreparedLaunch]) -> list[float]:
        """Return the microseconds between events around each kernel, with L2 displaced before each.

        All kernels are enqueued at once.
        """
        pairs = [_event_pair() for _ in kernels]

        def enqueue() -> None:
            for number, (kernel, (start, stop)) in enumerate(zip(kernels, pairs, strict=True)):
                if number:
                    self.displace.run()
                start.record()
                kernel.run()
                stop.record()

        self.displace.run()
        self.enqueue_held(enqueue)
        torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) * 1e3 for start, stop in pairs]


class SealedWorkload:
    """A workload of a sealed solution, with prepared launches for each placement."""

    def __init__(
        self,
        trusted: TrustedKernels,
        functions: Mapping[str, cuda.CUfunction],
        plan: Mapping[str, Any],
        placements: Sequence[Mapping[str, int]],
        variables: Sequence[VariableSnapshot] = (),
    ) -> None:
        """Prepare all launches.

        Args:
            trusted: the trusted kernels.
            functions: the solution's kernels, by their names in the plan.
            plan: `ResolvedPlan` as plain data.
            placements: device address of each input and output by its name in the plan (`input:x`), for each placement.
            variables: initial values of the modules' variables, restored before each call.
        """
        self._trusted, self._variables = trusted, variables
        workspaces = plan["workspaces"]
        self._spaces = {
            name: torch.empty(-(-size // 16) * 16, dtype=torch.uint8, device="cuda")
            for name, (size, _) in workspaces.items()
        }
        self._before = [
            trusted.fill(self._spaces[name].data_ptr(), size, fill_word(init))
            for name, (size, init) in workspaces.items()
        ]
        workspace_addresses = {f"workspace:{name}": space.data_ptr() for name, space in self._spaces.items()}
        self._calls = [
            [self._prepared(step, functions, {**workspace_addresses, **addresses}) for step in plan["steps"]]
            for addresses in placements
        ]

    def _prepared(
        self, step: Mapping[str, Any], functions: Mapping[str, cuda.CUfunction], addresses: Mapping[str, int]
    ) -> PreparedLaunch:
        if step["kind"] == "fill":
            return self._trusted.fill(addresses[step["buffer"]] + step["offset"], step["bytes"], 0)
        return PreparedLaunch(functions[step["kernel"]], step, addresses)

    def run(self, placement: int, *, cold: bool = True) -> float:
        """Make one call and return the microseconds between its events, from which nothing is subtracted.

        Args:
            placement: number of the placement.
            cold: displace L2 before the call.

        Raises:
            CudaError: a launch failed; the context may be unusable.
        """
        start, stop = _event_pair()

        def enqueue() -> None:
            start.record()
            for launch in self._calls[placement]:
                launch.run()
            stop.record()

        self._trusted.reset_persisting_lines()
        for snapshot in self._variables:
            snapshot.restore()
        for launch in self._before:
            launch.run()
        if cold:
            self._trusted.displace.run()
        self._trusted.enqueue_held(enqueue)
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3


class VariableSnapshot:
    """A copy of the variables of a newly loaded module in device memory, which is restored before every call.

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
