"""The table of standings on a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.cli.display.output import echo
from harness.cli.display.sparkline import sparkline
from harness.cli.display.tables import Column, screen_width, table_lines
from harness.ledger.entry_rows import Row
from harness.ledger.standings import Standing
from harness.ledger.standings_table import doubt, microseconds, shown_row, speedup, verdicts
from harness.model.weaknesses import weakness_mark

_TREND, _SHORT_TREND = 24, 10


def print_standings(table: Sequence[Standing]) -> None:
    """Print the standings as a table that fits the screen."""
    for line in table_lines(table, standing_columns(), screen_width()):
        echo(line)


def standing_columns(trends: Mapping[str, Sequence[float]] | None = None) -> tuple[Column[Standing], ...]:
    """Return the columns of the standings.

    Args:
        trends: problem -> the speed-ups of its evaluations, oldest first; None omits the column.
    """
    return (
        Column("problem", lambda standing: standing.problem),
        Column("baseline", lambda standing: microseconds(standing.baseline_us), ((2, None),)),
        Column("best", lambda standing: microseconds(_shown_latency(standing))),
        Column("speed-up [95 %]", _speedup, ((4, _speedup_with_margin),), "speed-up ±"),
        *(() if trends is None else (_trend_column(trends),)),
        Column("score", _score, ((5, None),)),
        Column("verdicts", verdicts, ((1, None),), min_width=8),
        Column("entries", lambda standing: str(standing.entries), ((6, None),)),
    )


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


def _shown_latency(standing: Standing) -> float | None:
    shown = shown_row(standing)
    return shown.latency_us if shown else None


def _score(standing: Standing) -> str:
    shown = shown_row(standing)
    return f"{shown.score:.2f}" if shown and shown.score is not None else "-"


def _speedup(standing: Standing) -> str:
    return _marked(standing, speedup)


def _speedup_with_margin(standing: Standing) -> str:
    return _marked(standing, speedup_with_margin)


def _marked(standing: Standing, text: Callable[[Row], str]) -> str:
    shown = shown_row(standing)
    return f"{text(shown)}{doubt(standing)}" if shown else "-"
