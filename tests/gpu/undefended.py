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
from harness.judge import evaluation, rounds
from harness.judge.clock import now_ns
from harness.judge.correctness import Comparison
from harness.judge.devices import cuda, cuda_cycle, cuda_placements
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
    _replace(cuda.CudaDevice, "_must_be_idle", lambda *_: None)
    _replace(cuda, "held_calls", lambda count: frozenset(range(count)))


def time_without_ping() -> None:
    """Omit the ping, so that the runner's context may be inactive when a call is requested."""
    usual = cuda_cycle.Line.request

    def request(self: cuda_cycle.Line, request: Request, deadline: float, placement: int = 0) -> int:
        return now_ns() if request is Request.PING else usual(self, request, deadline, placement)

    _replace(cuda_cycle.Line, "request", request)


def believe_outputs() -> None:
    """Accept every output of a timed or correctness call; recorded calls are still checked."""
    usual = rounds.Rounds._count  # noqa: SLF001 - the defence that is switched off

    def count(self: rounds.Rounds, outcome: Comparison, kind: str = "") -> None:
        usual(self, replace(outcome, reason=None), kind)

    _replace(rounds.Rounds, "_count", count)


def use_one_placement() -> None:
    """Use one placement in memory for all calls of a side."""
    _replace(cuda_placements, "placement_count", lambda *_: 1)


def forget_the_floor() -> None:
    """Accept times below the hardware's floor. All judges of this module do, because the floor also detects gains."""
    _replace(evaluation.Evaluation, "_bounded", lambda _, __, result: result)


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
