"""A series of numbers as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as bars, oldest first.

    The lowest value has the lowest bar and the highest value the highest one; equal values have the lowest bar.

    Args:
        values: oldest first.
        width: the largest number of bars. Each bar of a longer series is the maximum of its values.
    """
    count = min(width, len(values))
    shares = [values[number * len(values) // count : (number + 1) * len(values) // count] for number in range(count)]
    heights = [max(share) for share in shares]
    if not heights:
        return ""
    lowest, highest = min(heights), max(heights)
    scale = (len(_BARS) - 1) / (highest - lowest) if highest > lowest else 0.0
    return "".join(_BARS[round((height - lowest) * scale)] for height in heights)
