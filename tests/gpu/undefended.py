"""A judge of a GPU with named defences switched off, to show that each of them stops an attack.

python -m tests.gpu.undefended NAME,NAME [options of harness.judge]
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from harness.judge import __main__ as judge_process
from harness.judge import checked_calls, memory_plan, workload_race
from harness.judge.clock import now_ns
from harness.judge.correctness import Comparison
from harness.judge.devices import cuda_clock, cuda_cycle, cuda_hardware, cuda_timers
from harness.judge.devices.interface import Reading
from harness.runner.doorbell import Request

_HOLD_NS = 1_000_000


def count_held_calls() -> None:
    """Hold every call and count it; ignore early outputs, probes and work between batches."""
    usual = cuda_cycle.Cycle.bounded

    def bounded(self: cuda_cycle.Cycle, *arguments: Any, **named: Any) -> Reading:
        return replace(usual(self, *arguments, **named), was_held=False, written_early=False, probe_ns=None)

    def hold(_: cuda_cycle.Cycle) -> None:
        end = now_ns() + secrets.randbelow(_HOLD_NS)
        while now_ns() < end:
            pass

    _replace(cuda_cycle.Cycle, "bounded", bounded)
    _replace(cuda_cycle.Cycle, "_hold", hold)
    _replace(cuda_hardware.CudaHardware, "must_be_idle", lambda _: None)
    _replace(cuda_timers, "held_calls", lambda count: frozenset(range(count)))


def time_without_ping() -> None:
    """Omit the ping, so that the runner's context may be inactive when a call is requested."""
    usual = cuda_cycle.CudaConnection.request

    def request(self: cuda_cycle.CudaConnection, request: Request, deadline: float, placement: int = 0) -> int:
        return now_ns() if request is Request.PING else usual(self, request, deadline, placement)

    _replace(cuda_cycle.CudaConnection, "request", request)


def believe_outputs() -> None:
    """Accept every output of a timed or correctness call; recorded calls are still checked."""
    usual = checked_calls.CheckedCalls._count  # noqa: SLF001 - the defence that is switched off

    def count(self: checked_calls.CheckedCalls, outcome: Comparison, kind: str = "") -> None:
        usual(self, replace(outcome, reason=None), kind)

    _replace(checked_calls.CheckedCalls, "_count", count)


def use_one_placement() -> None:
    """Use one placement in memory for all calls of a side."""
    _replace(memory_plan, "placement_count", lambda *_: 1)
    _replace(cuda_clock, "placement_count", lambda *_: 1)


def forget_the_floor() -> None:
    """Accept times below the hardware's floor. All judges of this module do, because the floor also detects gains."""
    _replace(workload_race, "bounded", lambda _, result: result)


def _replace(owner: object, name: str, value: object) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the defence has another name"
    setattr(owner, name, value)


DEFENCES: dict[str, Callable[[], None]] = {
    "conduct": count_held_calls,
    "ping": time_without_ping,
    "outputs": believe_outputs,
    "placements": use_one_placement,
}
"""Function that switches each named defence off."""


def main() -> None:
    """Switch off the defences that the first argument names, then run the judge."""
    forget_the_floor()
    for name in sys.argv.pop(1).split(","):
        DEFENCES[name]()
    judge_process.main()


if __name__ == "__main__":
    main()
