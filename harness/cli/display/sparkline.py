"""A series of numbers as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as bars, oldest first; each bar is the highest of its share when there are more than `width`.

    The lowest value has the lowest bar and the highest the highest; values that are all equal have the lowest.
    """
    count = min(width, len(values))
    shares = [values[number * len(values) // count : (number + 1) * len(values) // count] for number in range(count)]
    heights = [max(share) for share in shares]
    if not heights:
        return ""
    low, high = min(heights), max(heights)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((height - low) * scale)] for height in heights)
