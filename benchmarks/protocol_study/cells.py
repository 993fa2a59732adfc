"""The cells of the study: combinations of protocol, adversary and conditions. Pure data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

PROTOCOLS = {
    "a": "judge kernels, then a polled doorbell",
    "b": "runner stopped while inputs are written; t0 at SIGCONT",
    "c": "judge kernels, untimed ping, fill from pinned host memory by copy engine, then the doorbell",
    "cb": "like c, filled within the device by copy engine (a batched copy with the overlap hint)",
    "cf": "like c, then L2 displaced by copying 128 MB to the host",
    "cd": "like c, filled by an ordinary copy within the device, which is a kernel",
    "v1": "version 1: a batch of sets visible at once, outputs gathered by a kernel",
    "events": "trusted launcher in the runner process, CUDA events around the kernel",
}
PINGED = {"c", "cb", "cf", "cd"}
_GATHER = {"cb": "engine", "cd": "ordinary", "v1": "kernel"}
OWN_TURN = (
    "resident", "waitvalue", "poll_copy", "background", "mapped", "graph_spin", "early_2", "early_5", "early_10",
    "early_20", "early_all", "slow_calibration",
)  # fmt: skip
"""Adversaries that act in their own turn."""
BASELINE_TURN = ("base_kernel", "base_copy", "base_delayed", "base_callback", "base_wait", "base_cpu")
"""Adversaries that act while the baseline is timed."""
_PLACEMENTS = ((1, 64), (16, 24), (128, 8), (1024, 3))
"""(Maximum MB of a set, number of placements)."""


@dataclass(frozen=True)
class Cell:
    """One protocol, one adversary and the conditions of both."""

    protocol: str
    adversary: str = "honest"
    kernel_us: float = 100
    megabytes: float = 1
    """MB of a set's inputs; its outputs have the same size."""
    pinned: bool = True
    """Each process has its own core and SCHED_FIFO; otherwise the scheduler decides."""
    gather: str = ""
    """Method of capturing outputs: a `kernel`, a copy to the `host`, or a copy within the device, `ordinary` or by
    `engine`. Empty for the protocol's own method."""
    placements: int = 0
    """Placements per side; 0 for the maximum at the sets' size."""
    stopped: bool = True
    """The candidate's processes are stopped and the device is probed before the baseline's turn."""
    reset_persisting: bool = True
    calls: int = 200
    seconds: float = 1.5
    """Time limit; the cell ends after `calls` calls or this time, at the earlier of the two."""

    @property
    def sets(self) -> int:
        """Placements per side."""
        if self.protocol == "v1":
            return 16
        return self.placements or next(count for limit, count in _PLACEMENTS if self.megabytes <= limit)

    @property
    def gathered_by(self) -> str:
        """Return the method that captures outputs: the override if there is one, else the protocol's own."""
        return self.gather or _GATHER.get(self.protocol, "host")

    @property
    def pair(self) -> bool:
        """Return true if an honest baseline is timed before the candidate's process exists and again beside it."""
        return self.adversary in BASELINE_TURN or self.adversary == "beside"

    @property
    def identity(self) -> str:
        """Name of the cell in results: every field that differs from its default."""
        defaults = asdict(Cell(self.protocol))
        parts = [self.protocol, self.adversary]
        parts += [
            f"{key}={value}"
            for key, value in asdict(self).items()
            if key not in {"protocol", "adversary"} and (value != defaults[key] or key in {"kernel_us", "megabytes"})
        ]
        return " ".join(parts)


def _honest() -> Iterator[Cell]:
    sizes: tuple[tuple[float, tuple[float, ...]], ...] = (
        (1, (5, 20, 100, 400)), (16, (20, 100, 400)), (128, (100, 400)), (512, (400,)),
    )  # fmt: skip
    for pinned in (True, False):
        for protocol in ("a", "b", "c", "cb", "events", "cf", "cd"):
            for megabytes, lengths in sizes:
                if protocol in {"cb", "cf", "cd"} and (megabytes > 16 or not pinned):
                    continue
                for length in lengths:
                    yield Cell(protocol, kernel_us=length, megabytes=megabytes, pinned=pinned, calls=240)
    yield Cell("v1", kernel_us=20, megabytes=0.0625, calls=60)


def _attacks() -> Iterator[Cell]:
    for length, pinned in ((100.0, True), (20.0, True), (5.0, True), (100.0, False)):
        for protocol in ("c", "a", "b"):
            if (protocol != "c" and not pinned) or (protocol == "b" and length < 20):
                continue
            for adversary in OWN_TURN:
                yield Cell(protocol, adversary, length, pinned=pinned, placements=8 if adversary == "waitvalue" else 0)
    for adversary in ("early_2", "early_5", "early_10", "early_20", "early_all"):
        for protocol in ("a", "c"):
            for gather in ("kernel", "ordinary"):
                yield Cell(protocol, adversary, gather=gather)
    for adversary in ("batch_once", "overlap"):
        yield Cell("v1", adversary, 20, 0.0625, calls=60)


def _cache() -> Iterator[Cell]:
    """L2 hints, with one placement and with many: a bandwidth-bound kernel of 16 MB, 8 MB in and 8 MB out."""
    for protocol in ("a", "c", "cf", "events"):
        for placements in (1, 24):
            for adversary in ("honest", "l2_last", "l2_persist"):
                if protocol == "events" and adversary == "l2_persist":
                    continue
                resets = (True, False) if adversary == "l2_persist" else (True,)
                for reset in resets:
                    yield Cell(protocol, adversary, 0, 8, placements=placements, reset_persisting=reset)


def _baseline() -> Iterator[Cell]:
    for protocol in ("c", "a", "b"):
        for stopped in (True, False) if protocol != "b" else (True,):
            for adversary in ("beside", *BASELINE_TURN):
                for pinned in (True, False) if adversary == "base_cpu" else (True,):
                    yield Cell(protocol, adversary, 100, 16, stopped=stopped, pinned=pinned, placements=8, calls=80)


def all_cells() -> list[Cell]:
    """Return all cells, the most important first."""
    return list(dict.fromkeys([*_honest(), *_attacks(), *_cache(), *_baseline()]))


def select(protocols: Sequence[str] = (), adversaries: Sequence[str] = (), calls: int = 0) -> list[Cell]:
    """Return the cells of some protocols and adversaries.

    Args:
        protocols: names of protocols; empty for all.
        adversaries: names of adversaries; empty for all.
        calls: calls of each cell, for a smoke test; 0 for the cell's own number.
    """
    chosen = [
        cell
        for cell in all_cells()
        if (not protocols or cell.protocol in protocols) and (not adversaries or cell.adversary in adversaries)
    ]
    if calls:
        chosen = [Cell(**{**asdict(cell), "calls": calls, "seconds": 0.6}) for cell in chosen]
    return list(dict.fromkeys(chosen))


def shard(cells: Sequence[Cell], index: int, count: int) -> list[Cell]:
    """Return every `count`-th cell, beginning with `index`.

    Args:
        cells: all cells.
        index: number of the shard, from 0.
        count: number of shards.
    """
    return list(cells[index::count])
