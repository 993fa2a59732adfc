"""Processors for the judge of a GPU and for its runners, so that they do not slow each other.

Both wait actively while a call is timed. On two threads of one physical core each would run at about half its speed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.judge.devices.busy_cores import BusyCores

_FEWEST_CORES, _MANY_CORES = 4, 12
"""With many cores the neighbours of the chosen ones stay idle: a virtual machine may hide that they share a core."""
_SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Processors:
    """Disjoint sets of processor numbers."""

    judge: frozenset[int]
    """A physical core: the judge's thread."""
    timed: frozenset[int]
    """A physical core: the main thread of the runner whose calls are timed."""
    others: frozenset[int]
    """Everything else: start-up of runners, compilers, other threads."""


class TimedRunner(Protocol):
    """A runner, as far as it has made calls on its workload."""

    has_served: bool


class TimingCores:
    """Keeps the judge and the runner whose calls are timed on a core each.

    Args:
        allowed: processors that this process may use.
        near_gpus, index, system: as of `assign`.
    """

    def __init__(
        self,
        allowed: frozenset[int],
        near_gpus: Sequence[frozenset[int]] = (),
        index: int = 0,
        system: Path = _SYSTEM,
    ) -> None:
        self._allowed = allowed
        self._processors = assign(allowed, near_gpus, index, system)
        timing = self._processors.judge | self._processors.timed if self._processors is not None else frozenset[int]()
        self._busy = BusyCores(timing)

    @property
    def of_runners(self) -> frozenset[int]:
        """Where runners start up and compile."""
        return self._processors.others if self._processors is not None else self._allowed

    @property
    def are_apart(self) -> bool:
        """True where judge and timed runner have cores that no other runner uses."""
        return self._processors is not None

    def stay_awake(self) -> None:
        """Keep both cores busy between batches, until `rest`."""
        self._busy.begin()

    def rest(self) -> None:
        """Let both cores idle: nothing is timed for a while."""
        self._busy.end()

    @contextlib.contextmanager
    def kept_for(self, runner: TimedRunner, pin_main_thread: Callable[[frozenset[int]], None]) -> Iterator[None]:
        """Pin both for a batch, except the first of a workload: the runner may compile then, on all processors.

        Nothing else may matter: a baseline that was not pinned beside a candidate that was had false ratios of 0.7 to
        1.8 (docs/clock.md).
        """
        if self._processors is None or not runner.has_served:
            yield
            runner.has_served = True
            return
        self._busy.pause()
        os.sched_setaffinity(0, self._processors.judge)
        pin_main_thread(self._processors.timed)
        try:
            yield
        finally:
            self._busy.go_on()
            os.sched_setaffinity(0, self._allowed)
            pin_main_thread(self.of_runners)


def assign(
    allowed: Iterable[int], near_gpus: Sequence[frozenset[int]] = (), index: int = 0, system: Path = _SYSTEM
) -> Processors | None:
    """Choose two physical cores for the judge of a GPU, which no judge of another GPU of this host gets.

    Args:
        allowed: processors that this process may use.
        near_gpus: for each GPU of the host, the processors on its NUMA node; an empty set where that is not known.
        index: of the GPU among these.
        system: directory that describes the processors.

    Returns:
        None where there are fewer than four cores for each GPU. Nothing is pinned then.
    """
    usable = frozenset(allowed)
    places = [near & usable or usable for near in near_gpus] or [usable]
    groups = [_group(places, gpu, system) for gpu in range(len(places))]
    own = groups[index] if index < len(groups) else None
    if own is None:
        return None
    reserved = frozenset[int]().union(*(core for group in groups if group is not None for core in group))
    timed, judge = own[0], own[len(own) // 2]
    return Processors(judge, timed, usable - reserved)


def _group(places: Sequence[frozenset[int]], gpu: int, system: Path) -> tuple[frozenset[int], ...] | None:
    """Neighbouring cores for one GPU, of which the first and the middle one are used; the last cores come first."""
    sharing = [other for other, place in enumerate(places) if place == places[gpu]]
    cores = sorted(physical_cores(places[gpu], system), key=max)
    cores_per_gpu = len(cores) // len(sharing)
    if cores_per_gpu < _FEWEST_CORES:
        return None
    size = 4 if cores_per_gpu >= _MANY_CORES else 2
    end = len(cores) - size * sharing.index(gpu)
    return tuple(cores[end - size : end])


def physical_cores(allowed: Iterable[int], system: Path = _SYSTEM) -> set[frozenset[int]]:
    """The allowed processors by physical core; one that says nothing of its core has it for itself."""
    usable = frozenset(allowed)
    return {_siblings(number, system) & usable for number in usable}


def _siblings(number: int, system: Path) -> frozenset[int]:
    try:
        text = (system / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
        parts = [part.partition("-")[::2] for part in text.strip().split(",")]
        found = {each for first, last in parts for each in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return frozenset({number})
    return frozenset(found | {number})
