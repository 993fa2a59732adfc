from __future__ import annotations

import pytest

from harness.judge.devices.cuda_statistics import bounded_process_error, held_calls, middle_mean, process_offset_ns


def test_the_process_error_is_a_share_of_the_time_above_the_bound() -> None:
    alone = bounded_process_error(8_000_000, 0.0)
    assert alone == pytest.approx(0.015, rel=0.01)
    assert bounded_process_error(8_000_000, 4_000_000) == pytest.approx(alone / 2, rel=0.01)


@pytest.mark.parametrize("bound_ns", [100_000.0, 150_000.0], ids=["at-the-bound", "below-it"])
def test_a_call_at_its_bound_has_the_constant_error_of_its_process(bound_ns: float) -> None:
    assert bounded_process_error(100_000, bound_ns) == pytest.approx(0.005)


@pytest.mark.parametrize(("runner_ns", "offset_ns"), [(3_500, 200), (3_000, -300), (9_000, 0)])
def test_a_process_offset_is_the_difference_of_short_kernels_unless_it_was_disturbed(
    runner_ns: float, offset_ns: float
) -> None:
    assert process_offset_ns(runner_ns, 3_300) == offset_ns


def test_some_calls_are_held_but_never_the_first_nor_all() -> None:
    batches = [held_calls(10) for _ in range(300)]
    assert all(0 not in held_indices and len(held_indices) < 9 for held_indices in batches)
    assert 1.8 < sum(map(len, batches)) / len(batches) < 2.7
    assert {len(held_calls(2)) for _ in range(50)} == {0}
    assert held_calls(1) == frozenset()


def test_the_middle_half_counts() -> None:
    assert middle_mean([1, 2, 3, 4, 5, 6, 7, 1000]) == 4.5
    assert middle_mean([3, 1000, 1]) == 3
    assert middle_mean([7]) == 7
