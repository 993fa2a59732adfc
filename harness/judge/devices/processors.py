"""Processors for the judge of a GPU and for its runners, so that they do not slow each other.

Both wait actively while a call is timed. On two threads of one physical core each would run at about half its speed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

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


def assign(allowed: Iterable[int], system: Path = _SYSTEM) -> Processors | None:
    """Choose two physical cores; None where there are fewer than four, and nothing is pinned.

    Args:
        allowed: processors that this process may use.
        system: directory that describes the processors.
    """
    cores = sorted(physical_cores(allowed, system), key=max)
    if len(cores) >= _MANY_CORES:
        *rest, timed, _, judge, _ = cores
    elif len(cores) >= _FEWEST_CORES:
        *rest, timed, judge = cores
    else:
        return None
    return Processors(judge, timed, frozenset[int]().union(*rest))


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
