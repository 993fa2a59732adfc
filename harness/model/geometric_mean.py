"""The geometric mean, the average of latencies and of ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable


def geometric_mean(values: Iterable[float]) -> float:
    """Return exp of the mean of the values' logarithms: the average for ratios and for latencies of different sizes.

    Args:
        values: positive and finite; the result has their unit.

    Raises:
        ValueError: no value, or one that is not positive.
    """
    logarithms = [math.log(value) for value in values]
    if not logarithms:
        raise ValueError("the geometric mean of no values is not defined")
    return math.exp(math.fsum(logarithms) / len(logarithms))
