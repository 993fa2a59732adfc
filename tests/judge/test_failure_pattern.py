"""The pattern of wrong elements names the mistake that caused them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.judge.correctness import compare
from harness.model.problem import Tolerance

TOLERANCE = Tolerance(max_atol=1e-3, max_rtol=1e-3, required_matched_ratio=1.0)
ROWS, COLUMNS = 34, 100


def _expected() -> torch.Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def _one_element(x: torch.Tensor) -> torch.Tensor:
    x[3, 7] += 1.0
    return x


def _last_rows(x: torch.Tensor) -> torch.Tensor:
    x[32:] = 0.0
    return x


def _last_columns(x: torch.Tensor) -> torch.Tensor:
    x[:, 96:] = torch.nan
    return x


def _tile(x: torch.Tensor) -> torch.Tensor:
    x[8:16, 32:48] += 5.0
    return x


def _odd_columns(x: torch.Tensor) -> torch.Tensor:
    x[:, 1::2] *= 3.0
    return x


def _rows_apart(x: torch.Tensor) -> torch.Tensor:
    x[[2, 3, 11, 20]] = 9.0
    return x


def _transposed(x: torch.Tensor) -> torch.Tensor:
    return x.mT.reshape(ROWS, COLUMNS)


def _unrelated(x: torch.Tensor) -> torch.Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(2))


def _imprecise(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).float() * 1.0


@pytest.mark.parametrize(
    ("change", "reason_part"),
    [
        (_one_element, "pattern: one element of 3,400 is wrong"),
        (
            _last_rows,
            "rows 32 to 33 of 34, exactly those beyond the last multiple of 4 or 8 or 16 or 32; all of them are zero",
        ),
        (
            _last_columns,
            "columns 96 to 99 of 100, exactly those beyond the last multiple of 8 or 16 or 32; all of them are NaN",
        ),
        (_tile, "128 of 3,400 elements are wrong: all of those in rows 8 to 15 of 34 and columns 32 to 47 of 100"),
        (_odd_columns, "whole columns are wrong: columns whose index modulo 2 is 1; actual = 3 * expected"),
        (_rows_apart, "whole rows are wrong: 4 of 34 rows (2 to 3, 11, 20)"),
        (_transposed, "in transposed order: the last two axes are exchanged"),
        (_unrelated, "unrelated to the expected ones"),
        (_imprecise, "right but imprecise"),
        (lambda x: x * 0.125, "actual = 0.125 * expected: a factor is missing"),
        (lambda x: x + 2.0, "actual = expected + 2: a constant"),
        (torch.zeros_like, "every element is wrong (3,394 of 3,400); all of them are zero"),
    ],
)
def test_a_pattern_names_the_mistake(change: Callable[[torch.Tensor], torch.Tensor], reason_part: str) -> None:
    expected = _expected()
    comparison = compare(expected, change(expected.clone()), TOLERANCE)
    assert reason_part in str(comparison.reason), comparison.reason
    assert "; at [" in str(comparison.reason), "the place"
    assert ", expected " in str(comparison.reason), "and both values"


def test_integers_and_vectors_have_patterns_too() -> None:
    expected = torch.arange(1000)
    actual = expected.clone()
    actual[992:] = 0
    reason = str(compare(expected, actual, TOLERANCE).reason)
    assert "first at [992]: 0, expected 992" in reason
    assert (
        "elements 992 to 999 of 1000, exactly those beyond the last multiple of 16 or 32; all of them are zero"
        in reason
    )
    reason = str(compare(torch.ones(1), torch.zeros(1), TOLERANCE).reason)
    assert "the only element is wrong" in reason
