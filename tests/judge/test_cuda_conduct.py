"""Observations that show work between calls, and observations that do not."""

from __future__ import annotations

import random

import pytest

from harness.judge.devices.cuda_conduct import Conduct
from harness.judge.devices.interface import Reading
from harness.judge.runners import RunnerFailed
from harness.model.verdict import Verdict

USUAL_PROBE_NS = 160_000.0


def test_three_early_writes_are_rejected_and_two_are_not() -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    early = Reading(100_000, 90_000, 0, written_early=True)
    conduct.add(early)
    conduct.add(Reading(100_000, 90_000, 1))
    conduct.add(early)
    with pytest.raises(RunnerFailed, match="before the call was made") as refused:
        conduct.add(early)
    assert refused.value.verdict is Verdict.REWARD_HACK


def test_only_consecutive_slow_probes_count() -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    slow, usual = (Reading(100_000, 90_000, 0, was_held=True, probe_ns=ns) for ns in (2_100_000, 175_000))
    for reading in (slow, slow, usual, slow, slow):
        conduct.add(reading)
    with pytest.raises(RunnerFailed, match="keeps the device busy"):
        conduct.add(slow)


def calls(conduct: Conduct, held_ns: float, free_ns: float, held_share: float = 0.25, count: int = 300) -> None:
    generator = random.Random(0)
    for _ in range(count):
        is_held = generator.random() < held_share
        ns = round(generator.gauss(held_ns if is_held else free_ns, 2_000))
        conduct.add(Reading(ns, ns, 0, was_held=is_held))


def test_held_calls_that_are_always_faster_are_rejected() -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    calls(conduct, held_ns=60_000, free_ns=100_000)
    with pytest.raises(RunnerFailed, match="work begins before the call is made"):
        conduct.conclude()


@pytest.mark.parametrize("held_ns", [100_000, 88_000, 114_000], ids=["alike", "as many launches by Python", "slower"])
def test_honest_calls_are_not_rejected(held_ns: float) -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    calls(conduct, held_ns=held_ns, free_ns=100_000)
    conduct.conclude()


def test_faster_held_calls_in_one_part_of_the_time_are_not_rejected() -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    calls(conduct, held_ns=60_000, free_ns=100_000, count=100)
    calls(conduct, held_ns=100_000, free_ns=100_000, count=200)
    conduct.conclude()


def test_few_held_calls_are_no_evidence() -> None:
    conduct = Conduct(USUAL_PROBE_NS)
    calls(conduct, held_ns=10_000, free_ns=100_000, count=12)
    conduct.conclude()
