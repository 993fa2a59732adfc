"""The clock's figures, and the selection of blocks."""

from __future__ import annotations

import math
from unittest.mock import create_autospec

import pytest

from harness.judge.clock import (
    calls_for,
    counted_call_ns,
    dispatch_ns,
    disturbed,
    handshake_ns,
    per_call_ns,
    subtracted_ns,
)
from harness.judge.devices.interface import Batch, Calibration, Clock
from harness.judge.timing import Block, counted_blocks, stopping_half_width
from harness.model.verdict import Trust

_CALIBRATION = Calibration(handshake_ns=100_000, dispatch_ns=500)


def _block(latency: float, share: float) -> Block:
    return Block(200.0, latency, latency, share, spoiled=share > 0.01)


def test_a_handshake_is_subtracted_once_and_is_at_most_half() -> None:
    assert per_call_ns(Batch(1_100_000, 0, 0), 10, _CALIBRATION) == 100_000
    assert per_call_ns(Batch(120_000, 0, 0), 1, _CALIBRATION) == 60_000


def test_the_subtracted_handshake_has_a_limit() -> None:
    """The limit is 3 us or 3 % of a call for every calibration, because a calibration may be wrong."""
    outlier = Calibration(handshake_ns=1_142_000, dispatch_ns=500)
    long, short = Batch(6_000_000, 0, 0), Batch(640_000, 0, 0)
    assert subtracted_ns(long, 2, outlier) == pytest.approx(0.03 * 3_000_000)
    assert subtracted_ns(short, 32, outlier) == 3_000
    assert counted_call_ns(long, 2, outlier) == pytest.approx(2_910_000)
    assert counted_call_ns(short, 32, outlier) == 17_000
    assert counted_call_ns(long, 2, _CALIBRATION) == per_call_ns(long, 2, _CALIBRATION) == 2_950_000


def test_a_call_whose_handshake_may_be_subtracted_whole_is_a_batch_by_itself() -> None:
    quick = Calibration(handshake_ns=60_000, dispatch_ns=500)
    assert [calls_for(call_ns, 100, quick) for call_ns in (1_900_000, 2_100_000)] == [3, 1]
    assert calls_for(2_100_000, 100, Calibration(0.0, 0.0)) == 3, "without a handshake there is no such limit"


def test_batches_are_long_enough_for_the_clock_and_fit_into_memory() -> None:
    assert calls_for(3_000_000, 100, _CALIBRATION) == 2
    assert calls_for(100_000_000, 100, _CALIBRATION) == 1
    assert calls_for(0.0, 4096, _CALIBRATION) == _CALIBRATION.most_calls
    assert calls_for(1_000, 5, _CALIBRATION) == 5


def test_a_batch_is_disturbed_by_other_processes_not_by_its_duration() -> None:
    assert disturbed(Batch(1_000_000, 0, 20_000))
    assert not disturbed(Batch(900_000_000, 0, 20_000))


def test_disturbed_batches_do_not_change_the_calibration() -> None:
    overheads_ns = iter([*([150_000] * 60), *([9_000_000] * 20)])

    def batch() -> Batch:
        return Batch(1_000_000 + next(overheads_ns), 1_000_000, 0)

    assert handshake_ns(batch) == 150_000
    assert dispatch_ns(lambda: Batch(0, 500_000, 0), 1000) == 500


@pytest.mark.parametrize(("trust", "half_width"), [(Trust.LAUNCH_BOUND, 0.02), (Trust.BOUNDED, 0.005)])
def test_the_hosts_noise_is_not_timed_to_half_a_percent(trust: Trust, half_width: float) -> None:
    clock = create_autospec(Clock, instance=True)
    clock.trust.return_value = trust
    clock.process_error.return_value = 0.0
    assert stopping_half_width(0.005, [_block(100.0, 0.0), _block(300.0, 0.0)], clock) == half_width
    clock.trust.assert_called_once_with(200.0, 200.0)


def test_noise_far_below_the_error_of_the_processes_is_not_timed_away() -> None:
    clock = create_autospec(Clock, instance=True)
    clock.trust.return_value = Trust.SEALED
    clock.process_error.return_value = 0.02
    blocks_alone = stopping_half_width(0.005, [_block(100.0, 0.0), _block(300.0, 0.0)], clock)
    processes_alone = 1.96 * math.hypot(0.02, 0.02)
    assert blocks_alone == pytest.approx(processes_alone / 2)
    assert math.hypot(processes_alone, blocks_alone) < 1.12 * processes_alone


def test_blocks_are_chosen_by_disturbance_alone() -> None:
    clean = [_block(latency, 0.0) for latency in (100.0, 900.0, 110.0)]
    spoiled = [_block(1.0, 0.5), _block(1.0, 0.02)]
    assert counted_blocks([*clean, *spoiled], 3) == clean
    assert counted_blocks([*spoiled, *clean], 4) == [spoiled[1], *clean]
    assert clean[0].log_ratio == pytest.approx(math.log(2.0))
