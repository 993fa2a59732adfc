"""Assign processors to the judge of a GPU and to its runners, so that they do not slow each other.

Both busy-wait while a call is timed. On two threads of one physical core, each would run at about half its speed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

_MIN_CORES_PER_GPU, _MANY_CORES_PER_GPU = 4, 12
"""With many cores, the neighbours of the selected ones remain idle, because a virtual machine may hide that two of its
processors share a physical core."""
_SYSTEM = Path("/sys/devices/system/cpu")
_LIFETIME_S = 60
"""A loop ends by itself after this time, so that no loop remains after the judge has ended."""
_LOOP = f"import time\nend = time.monotonic() + {_LIFETIME_S}\nwhile time.monotonic() < end: pass"


@dataclass(frozen=True)
class Processors:
    """Disjoint sets of processor numbers."""

    judge: frozenset[int]
    """A physical core, for the judge's thread."""
    timed: frozenset[int]
    """A physical core, for the main thread of the runner whose calls are timed."""
    remaining: frozenset[int]
    """All other processors, for the start-up of runners, compilers and other threads."""


class TimedRunner(Protocol):
    """The part of a runner that decides about pinning."""

    has_served: bool
    """True after its first batch on its workload."""


class TimingCores:
    """Pins the judge and the runner whose calls are timed to one core each.

    Args:
        allowed: processors that this process may use.
        near_gpus: see `assign`.
        index: see `assign`.
        system: see `assign`.
    """

    def __init__(
        self, allowed: frozenset[int], near_gpus: Sequence[frozenset[int]] = (), index: int = 0, system: Path = _SYSTEM
    ) -> None:
        self._allowed = allowed
        self._processors = assign(allowed, near_gpus, index, system)
        timing = self._processors.judge | self._processors.timed if self._processors is not None else frozenset[int]()
        self._busy = BusyCores(timing)

    @property
    def of_runners(self) -> frozenset[int]:
        """Processors on which runners start and compile."""
        return self._processors.remaining if self._processors is not None else self._allowed

    @property
    def are_apart(self) -> bool:
        """True if the judge and the timed runner have cores that no other runner uses."""
        return self._processors is not None

    def stay_awake(self) -> None:
        """Keep both cores busy between batches, until `allow_sleep` is called."""
        self._busy.begin()

    def allow_sleep(self) -> None:
        """Let both cores idle, because nothing is timed for a while."""
        self._busy.end()

    @contextlib.contextmanager
    def pinned(self, runner: TimedRunner, pin_main_thread: Callable[[frozenset[int]], None]) -> Iterator[None]:
        """Pin the judge and the runner during a batch, except the first of a workload, in which the runner may compile.

        The rule is the same for both sides: an unpinned baseline against a pinned candidate resulted in false ratios of
        0.7 to 1.8 (docs/clock.md).

        Args:
            runner: the runner whose calls are timed.
            pin_main_thread: pins the main thread of the runner to processors.
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
            self._busy.resume()
            os.sched_setaffinity(0, self._allowed)
            pin_main_thread(self.of_runners)


def assign(
    allowed: Iterable[int], near_gpus: Sequence[frozenset[int]] = (), index: int = 0, system: Path = _SYSTEM
) -> Processors | None:
    """Choose two physical cores for the judge of a GPU, which no judge of another GPU of this host uses.

    Args:
        allowed: processors that this process may use.
        near_gpus: for each GPU of the host, the processors on its NUMA node; an empty set if they are not known.
        index: number of the GPU among these.
        system: directory that describes the processors.

    Returns:
        The processors, or None if there are fewer than four cores for each GPU; nothing is pinned then.
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
    """Return neighbouring cores for one GPU, taken from the highest numbers; the first and the middle one are used."""
    sharing = [number for number, place in enumerate(places) if place == places[gpu]]
    cores = sorted(physical_cores(places[gpu], system), key=max)
    cores_per_gpu = len(cores) // len(sharing)
    if cores_per_gpu < _MIN_CORES_PER_GPU:
        return None
    size = 4 if cores_per_gpu >= _MANY_CORES_PER_GPU else 2
    end = len(cores) - size * sharing.index(gpu)
    return tuple(cores[end - size : end])


def physical_cores(allowed: Iterable[int], system: Path = _SYSTEM) -> set[frozenset[int]]:
    """Return the allowed processors, grouped by physical core.

    A processor without information about its core is a group of its own.

    Args:
        allowed: numbers of processors.
        system: directory that describes the processors.
    """
    usable = frozenset(allowed)
    return {_siblings(number, system) & usable for number in usable}


def _siblings(number: int, system: Path) -> frozenset[int]:
    try:
        text = (system / f"cpu{number}" / "topology" / "thread_siblings_list").read_text()
        parts = [part.partition("-")[::2] for part in text.strip().split(",")]
        siblings = {sibling for first, last in parts for sibling in range(int(first), int(last or first) + 1)}
    except (OSError, ValueError):
        return frozenset({number})
    return frozenset(siblings | {number})


class BusyCores:
    """One busy loop of the lowest priority for each processor, so that the processors do not enter a sleep state.

    A core that is idle for the milliseconds between two batches is slow for several calls afterwards: its clock
    frequency is low, and on a virtual machine the hypervisor has assigned it to another guest. A kernel of 18 us
    launched from C++ took 30 to 79 us by the runner's own clock, and 29 to 36 us with both cores kept busy
    (docs/clock.md).

    Args:
        processors: numbers of the processors.
    """

    def __init__(self, processors: Iterable[int]) -> None:
        self._processors = sorted(processors)
        self._loops: list[subprocess.Popen[bytes]] = []

    def begin(self) -> None:
        """Start the loops that do not run."""
        if self._loops and all(loop.poll() is None for loop in self._loops):
            return
        self.end()
        for processor in self._processors:
            loop = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _LOOP], stdin=subprocess.DEVNULL, start_new_session=True
            )
            os.sched_setscheduler(loop.pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(loop.pid, {processor})
            self._loops.append(loop)

    def pause(self) -> None:
        """Stop the loops for a timing."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the paused loops."""
        self._send(signal.SIGCONT)

    def end(self) -> None:
        """End all loops."""
        for loop in self._loops:
            loop.kill()
            loop.wait()
        self._loops.clear()

    def _send(self, number: signal.Signals) -> None:
        for loop in self._loops:
            with contextlib.suppress(ProcessLookupError):
                loop.send_signal(number)
