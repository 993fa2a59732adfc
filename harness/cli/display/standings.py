"""The table of standings on a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.cli.display.tables import Column, table_lines
from harness.ledger.entry_rows import Row
from harness.ledger.standings import Standing
from harness.ledger.standings_table import doubt, microseconds, shown_row, speedup, verdicts
from harness.model.weaknesses import weakness_mark

_TREND, _SHORT_TREND = 24, 10
_BARS = "▁▂▃▄▅▆▇█"


def standing_lines(
    table: Sequence[Standing],
    width: int | None,
    *,
    max_rows: int | None = None,
    trends: Mapping[str, Sequence[float]] | None = None,
) -> list[str]:
    """Return the standings as a table; of more rows than `max_rows`, those with the newest entries, in their order.

    Args:
        width: in characters; None for no limit.
        max_rows: None for no limit.
        trends: problem -> the speed-ups of its evaluations, oldest first; None omits the column.
    """
    shown = table
    if max_rows is not None and len(table) > max_rows:
        newest = sorted(table, key=lambda standing: standing.last_at or "", reverse=True)[:max_rows]
        shown = [standing for standing in table if standing in newest]
    columns = (
        Column("problem", lambda standing: standing.problem),
        Column("baseline", lambda standing: microseconds(standing.baseline_us), ((2, None),)),
        Column("best", _shown(lambda row: microseconds(row.latency_us))),
        Column("speed-up [95 %]", _shown(speedup, doubt), ((4, _shown(speedup_with_margin, doubt)),), "speed-up ±"),
        *(() if trends is None else (_trend_column(trends),)),
        Column("score", _shown(lambda row: "-" if row.score is None else f"{row.score:.2f}"), ((5, None),)),
        Column("verdicts", verdicts, ((1, None),), min_width=8),
        Column("entries", lambda standing: str(standing.entries), ((6, None),)),
    )
    omitted = len(table) - len(shown)
    return table_lines(shown, columns, width) + ([f"… and {omitted} more: `harness status --all`"] if omitted else [])


def speedup_with_margin(row: Row) -> str:
    """Return `1.386x ±0.4 %`: the speed-up, the half-width of its interval, and the symbol of its weaknesses."""
    speedup_ci95_low, speedup_ci95_high = row.speedup_ci95_low, row.speedup_ci95_high
    if row.speedup is None:
        return "-"
    margin = ""
    if speedup_ci95_low is not None and speedup_ci95_high is not None:
        margin = f" ±{(speedup_ci95_high - speedup_ci95_low) / 2 / row.speedup * 100:.1f} %"
    return f"{row.speedup:.3f}x{margin}{weakness_mark(row.weaknesses)}"


def _trend_column(trends: Mapping[str, Sequence[float]]) -> Column[Standing]:
    def bars(width: int) -> Callable[[Standing], str]:
        return lambda standing: sparkline(trends.get(standing.problem, ()), width) or "-"

    return Column("trend", bars(_TREND), ((3, bars(_SHORT_TREND)),))


def _shown(text: Callable[[Row], str], mark: Callable[[Standing], str] = lambda _: "") -> Callable[[Standing], str]:
    """Return the cell with a figure of the row that counts, and a mark after it; `-` without such a row."""

    def cell(standing: Standing) -> str:
        row = shown_row(standing)
        return f"{text(row)}{mark(standing)}" if row else "-"

    return cell


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
