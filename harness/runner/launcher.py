"""The trusted launcher: makes every launch of a sealed solution and reads the device's events around each call.

No host code of the candidate runs in this process. A call is, in stream order: module-scope variables and workspaces
are set, L2 is displaced by reading other memory, then event, the plan's launches, event. The inputs of the next call
are written when this one has ended and its outputs are copied. The queue is held back until it is full, so that no
number has the host's speed in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from cuda.bindings import driver as cuda

from . import driver
from .device_memory import bytes_tensor
from .driver import PreparedLaunch
from .patterns import fill_word
from .variable_snapshot import VariableSnapshot
from .wire import TRUSTED_KERNELS

_HOLD_NS = 200_000_000
_DISPLACE_FACTOR = 3
_BLOCKS_PER_SM = 4
_PIECE = 4096
"""Elements of a piece that are worth a block of their own."""
_OWN_CYCLES = (2_000, 40_000)
_SHORT_BYTES, _SHORT_PLACES, _SHORT_REPEATS = 1 << 20, 16, 9
"""Memory of the short kernels that show a process' own overhead: size, number of places, readings at each."""


def _pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Trusted:
    """The trusted kernels, and the buffer that displaces everything from L2."""

    def __init__(self, cubin: bytes) -> None:
        module = driver.load(cubin)
        self._functions = {name: driver.kernel(module, name) for name in TRUSTED_KERNELS}
        device = torch.cuda.get_device_properties(0)
        self._grid, l2_bytes = _BLOCKS_PER_SM * device.multi_processor_count, device.L2_cache_size
        self._displaced = torch.zeros(_DISPLACE_FACTOR * l2_bytes // 16 * 16, dtype=torch.uint8, device="cuda")
        self._go = torch.zeros(1, dtype=torch.int32).pin_memory()
        self._took = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._ticket = 0
        self.displace = self.read(self._displaced.data_ptr(), self._displaced.numel())
        """Displaces everything else from L2, by reading: what is written would be written back in the next call."""

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
        """A launch that fills memory with a 32-bit pattern; sizes are rounded up to words."""
        return self._prepare("fill", self._grid, 256, [("Q", address), ("Q", -(-size // 4)), ("I", pattern)])

    def read(self, address: int, size: int) -> PreparedLaunch:
        """A launch that reads memory (a multiple of 16 bytes)."""
        arguments = [("Q", address), ("Q", size // 16), ("Q", self._took.data_ptr())]
        return self._prepare("read", 2 * self._grid, 256, arguments)

    def known(self, cycles: int) -> PreparedLaunch:
        """A launch that spins for so many cycles of the SM's clock."""
        return self._prepare("known", 1, 1, [("q", cycles), ("Q", self._took.data_ptr())])

    def compare(
        self, found: int, right: int, count: int, kind: int, limits: tuple[float, float, float], sums: int
    ) -> PreparedLaunch:
        """A launch that sums up how two arrays of floats differ; addresses, and (atol, rtol, least scale)."""
        numbers = [("Q", found), ("Q", right), ("Q", count), ("i", kind), *(("f", limit) for limit in limits)]
        blocks = max(1, min(2 * self._grid, -(-count // 2048)))
        return self._prepare("compare", blocks, 256, [*numbers, ("Q", sums)])

    def pieces(self, table: int, count: int, longest: int) -> PreparedLaunch:
        """A launch that copies the `count` pieces of a table (65,535 at most), the longest of so many elements."""
        blocks = max(1, min(4 * self._grid // count, -(-longest // _PIECE)))
        return self._prepare("pieces", blocks, 256, [("Q", table)], rows=count)

    def forget_persisting_lines(self) -> None:
        """Reset the lines of L2 that were marked to stay there, before each call of either side."""
        driver.call(cuda.cuCtxResetPersistingL2Cache)

    def held(self, enqueue: Callable[[], None], limit_ns: int = _HOLD_NS) -> None:
        """Enqueue behind a held queue, so that the device finds everything there when it starts."""
        self._ticket += 1
        self._prepare("hold", 1, 1, [("Q", self._go.data_ptr()), ("I", self._ticket), ("Q", limit_ns)]).run()
        try:
            enqueue()
        finally:
            self._go[0] = self._ticket

    def pair_overhead_us(self, repeats: int = 41) -> float:
        """Overhead of events around one kernel, in microseconds: median over pairs of kernels that time themselves.

        One is short and one long, and both are launched together, so that the SM's clock, which their own readings
        count in, is the same for both and cancels. About 3 us on an H200; with it subtracted, readings agree with CUPTI
        within 0.3 us (docs/clock.md).
        """
        took = [torch.zeros(1, dtype=torch.int64, device="cuda") for _ in _OWN_CYCLES]
        known = [
            self._prepare("known", 1, 1, [("q", cycles), ("Q", where.data_ptr())])
            for cycles, where in zip(_OWN_CYCLES, took, strict=True)
        ]
        found: list[float] = []
        for _ in range(repeats):
            short, long = self._readings_us(known)
            few, many = (where.item() for where in took)
            found.append((short * many - long * few) / (many - few))
        return statistics.median(found)

    def short_kernel_us(self) -> float:
        """Mean reading of events around short kernels of this process, in microseconds: one reads 1 MB, one writes it.

        Events around the same kernel read up to 0.3 us more in one process than in another, whatever the kernel's
        length. Short kernels show this offset (docs/clock.md).
        """
        buffer = torch.zeros(_SHORT_PLACES * 2 * _SHORT_BYTES, dtype=torch.uint8, device="cuda")
        addresses = [buffer.data_ptr() + place * 2 * _SHORT_BYTES for place in range(_SHORT_PLACES)]
        kernels = [self.read(address, _SHORT_BYTES) for address in addresses]
        kernels += [self.fill(address, _SHORT_BYTES, 0) for address in addresses]
        return statistics.fmean(
            statistics.median(self._readings_us([kernel])[0] for _ in range(_SHORT_REPEATS)) for kernel in kernels
        )

    def _readings_us(self, kernels: Sequence[PreparedLaunch]) -> list[float]:
        """Microseconds by events around each kernel, all enqueued at once, each behind a displacement of L2."""
        pairs = [_pair() for _ in kernels]

        def enqueue() -> None:
            for kernel, (start, stop) in zip(kernels, pairs, strict=True):
                self.displace.run()
                start.record()
                kernel.run()
                stop.record()

        self.held(enqueue)
        torch.cuda.synchronize()
        return [float(start.elapsed_time(stop)) * 1e3 for start, stop in pairs]


class Slots(Protocol):
    """A workload's layout as the launcher reads it."""

    @property
    def inputs(self) -> Sequence[Placed]:
        """In order."""

    @property
    def outputs(self) -> Sequence[Placed]:
        """In order."""

    @property
    def slots(self) -> int:
        """Number of placements."""


class Placed(Protocol):
    """An input or output in its slot."""

    @property
    def name(self) -> str:
        """As the plan calls it."""

    @property
    def offset(self) -> int:
        """Bytes from the beginning of its side of the slot."""


class SealedWorkload:
    """One workload of a sealed solution, ready to be called at each placement."""

    def __init__(
        self,
        trusted: Trusted,
        functions: Mapping[str, cuda.CUfunction],
        plan: Mapping[str, Any],
        layout: Slots,
        place: Callable[[int], tuple[int, int]],
        variables: Sequence[VariableSnapshot] = (),
    ) -> None:
        """Prepare every launch.

        Args:
            trusted: the trusted kernels.
            functions: the solution's kernels by the name its plan uses.
            plan: `ResolvedPlan` as plain data.
            layout: fields and number of placements.
            place: device addresses of a placement's inputs and of its outputs.
            variables: first values of the modules' variables, which every call begins with.
        """
        self._trusted, self._variables = trusted, variables
        spaces = plan["workspaces"]
        self._spaces = {
            name: torch.empty(-(-size // 16) * 16, dtype=torch.uint8, device="cuda")
            for name, (size, _) in spaces.items()
        }
        self._before = [
            trusted.fill(self._spaces[name].data_ptr(), size, fill_word(init)) for name, (size, init) in spaces.items()
        ]
        shared = {f"workspace:{name}": space.data_ptr() for name, space in self._spaces.items()}
        self._calls: list[list[PreparedLaunch]] = []
        for placement in range(layout.slots):
            inputs, outputs = place(placement)
            addresses = shared | {f"input:{field.name}": inputs + field.offset for field in layout.inputs}
            addresses |= {f"output:{field.name}": outputs + field.offset for field in layout.outputs}
            self._calls.append([self._prepared(step, functions, addresses) for step in plan["steps"]])

    def _prepared(
        self, step: Mapping[str, Any], functions: Mapping[str, cuda.CUfunction], addresses: Mapping[str, int]
    ) -> PreparedLaunch:
        if step["kind"] == "fill":
            return self._trusted.fill(addresses[step["buffer"]] + step["offset"], step["bytes"], 0)
        return PreparedLaunch(functions[step["kernel"]], step, addresses)

    def run(self, placement: int, *, cold: bool = True) -> float:
        """Make one call; microseconds by the device's events, nothing subtracted. `cold`: L2 is displaced before it.

        Raises:
            CudaError: a launch failed; the context may be gone.
        """
        start, stop = _pair()

        def enqueue() -> None:
            for snapshot in self._variables:
                snapshot.restore()
            for launch in self._before:
                launch.run()
            if cold:
                self._trusted.displace.run()
            start.record()
            for launch in self._calls[placement]:
                launch.run()
            stop.record()

        self._trusted.forget_persisting_lines()
        self._trusted.held(enqueue)
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3


def region(address: int, size: int) -> torch.Tensor:
    """Mapped device memory as bytes."""
    view: torch.Tensor = bytes_tensor(address, size)
    return view
