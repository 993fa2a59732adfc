"""The CPU judge with named defences switched off, to show that each of them stops an attack.

python -m tests.judge.attacks.undefended NAME,NAME [options of harness.judge]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from harness.judge import __main__ as judge_process
from harness.judge.devices import cpu
from harness.judge.input_data import inputs, stress_inputs
from harness.judge.isolation import seccomp
from harness.judge.isolation.process_freezer import SandboxProcesses

_PAUSE_S = 0.02
"""Pause from the inputs to the start of the clock: longer than usual, so that the gain is independent of the load."""


def allow_timers() -> None:
    """Let the system-call filter pass `timer_create`, and freeze nothing."""
    cpu.freezer_works = lambda: False  # type: ignore[attr-defined]
    for denied in seccomp._DENIED.values():  # noqa: SLF001 - the defence that is switched off
        del denied["timer_create"]


def trust_the_stop() -> None:
    """Allow POSIX timers, and pause where the judge would verify again that the sandbox is stopped."""
    allow_timers()

    def pause(_: SandboxProcesses) -> None:
        time.sleep(_PAUSE_S)

    SandboxProcesses.check_still_stopped = pause  # type: ignore[assignment,method-assign]
    SandboxProcesses.proved_slices = None  # type: ignore[assignment]


def draw_single_slices() -> None:
    """Make every input of slices of its pool that are not sums of two slices."""
    inputs._MIXED = frozenset()  # noqa: SLF001 - the defence that is switched off


def draw_one_spike() -> None:
    """Make only the last value of an input very large, in the stress case `spike`."""
    stress_inputs._MOST_SPIKES = 0  # noqa: SLF001 - the defence that is switched off


DEFENCES: dict[str, Callable[[], None]] = {
    "timers": allow_timers,
    "stop": trust_the_stop,
    "mixture": draw_single_slices,
    "spikes": draw_one_spike,
}
"""Function that switches each named defence off."""


def main() -> None:
    """Switch off the defences that the first argument names, then run the judge."""
    for name in sys.argv.pop(1).split(","):
        DEFENCES[name]()
    judge_process.main()


if __name__ == "__main__":
    main()
