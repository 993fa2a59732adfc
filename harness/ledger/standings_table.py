"""Standings as text: the table of `harness status`, of a finished run, and of COORDINATION.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from harness.ledger.entry_rows import Row
from harness.ledger.standings import Standing
from harness.model.printable import count_of, first_names, markdown_text, printable
from harness.model.weaknesses import for_scripts as weaknesses_for_scripts
from harness.model.weaknesses import weakness_legend, weakness_mark

_NAMED = 3
_COUNTS = (
    "evaluations", "verdicts", "workers", "duplicates", "near_duplicates", "answered_from_ledger", "since_gain",
)  # fmt: skip
HEADINGS = ("problem", "baseline", "best", "speed-up [95 %]", "score", "verdicts", "entries")


def cells(standing: Standing) -> tuple[str, ...]:
    """Return one standing as the table's cells, in the order of `HEADINGS`."""
    shown = shown_row(standing)
    return (
        standing.problem,
        microseconds(standing.baseline_us),
        microseconds(shown.latency_us if shown else None),
        f"{speedup(shown)}{doubt(standing)}" if shown else "-",
        f"{shown.score:.2f}" if shown and shown.score is not None else "-",
        verdicts(standing),
        str(standing.entries),
    )


def shown_row(standing: Standing) -> Row | None:
    """Return the entry that represents a problem: its champion, else the best that counts, else one that did count."""
    return standing.champion or standing.best or next(iter(standing.outdated), None)


def doubt(standing: Standing) -> str:
    """Return the mark after a speed-up that is not confirmed, or not of this judge's protocol; otherwise ""."""
    shown = shown_row(standing)
    if shown is None or standing.champion is not None:
        return ""
    if shown.judge_protocol != standing.protocol:
        return f" (judge protocol {shown.judge_protocol})"
    return " unconfirmed"


def markdown(standings: Iterable[Standing]) -> str:
    """Return the table as Markdown, and below it a list of the weaknesses of its numbers."""
    shown = tuple(standings)
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *(cells(standing) for standing in shown)]
    # The other cells are the harness' own numbers and words, with brackets around intervals.
    table = "\n".join(f"| {' | '.join([markdown_text(row[0]), *map(printable, row[1:])])} |" for row in rows)
    notes = [f"- {markdown_text(line, keep_code=True)}" for line in weakness_notes(shown)]
    return "\n".join([table, *(["", *notes] if notes else [])])


def for_scripts(standing: Standing) -> dict[str, Any]:
    """Return a standing as an object of JSON."""
    return {
        "problem": standing.problem,
        "baseline_us": standing.baseline_us,
        "champion": _candidate(standing.champion),
        "best": _candidate(standing.best),
        "outdated": [_candidate(row) for row in standing.outdated],
        **{name: getattr(standing, name) for name in _COUNTS},
        "cost_s": round(standing.cost_s, 3),
        "entries": standing.entries,
        "last_at": standing.last_at,
    }


def speedup(row: Row) -> str:
    """Return `1.38x [1.36, 1.40]`, as far as the row has it, with the symbol of a weakened number."""
    if row.speedup is None:
        return "-"
    ci95_low, ci95_high = row.speedup_ci95_low, row.speedup_ci95_high
    interval = f" [{ci95_low:.3f}, {ci95_high:.3f}]" if ci95_low is not None and ci95_high is not None else ""
    return f"{row.speedup:.3f}x{interval}{weakness_mark(row.weaknesses)}"


def microseconds(value: float | None) -> str:
    """Return a time with three digits: `8.10 us`, `541 us`, `12.3 ms`."""
    if value is None:
        return "-"
    number, unit = (value / 1000, "ms") if value >= 10_000 else (value, "us")
    return f"{number:.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def verdicts(standing: Standing) -> str:
    """Return `18 PASSED, 2 COMPILE_ERROR`, the most frequent first."""
    ordered = sorted(standing.verdicts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {verdict}" for verdict, count in ordered) or "-"


def totals(standings: Sequence[Standing]) -> str:
    """Return one line about all problems together."""
    faster = sum(standing.champion is not None for standing in standings)
    evaluations = sum(standing.evaluations for standing in standings)
    near_duplicates = sum(standing.near_duplicates for standing in standings)
    answered_from_ledger = sum(standing.answered_from_ledger for standing in standings)
    repeated = f", {near_duplicates} of candidates nearly identical to an earlier one" if near_duplicates else ""
    saved = f" ({answered_from_ledger} answered from the ledger)" if answered_from_ledger else ""
    have = "has" if len(standings) == 1 else "have"
    confirmed = f"{faster} of {count_of(len(standings), 'problem')} {have} a confirmed speed-up"
    return f"{confirmed}; {count_of(evaluations, 'evaluation')}{repeated}{saved}"


def outdated_note(standings: Sequence[Standing]) -> list[str]:
    """Return a line about the entries of an older judge protocol that are to be measured again; [] without any."""
    waiting = [standing for standing in standings if standing.outdated]
    if not waiting:
        return []
    names = [f"{standing.problem} seq {', '.join(str(row.seq) for row in standing.outdated)}" for standing in waiting]
    named = first_names(names, _NAMED)
    older = max(row.judge_protocol or 0 for standing in waiting for row in standing.outdated)
    reason = f"of judge protocol {older}, so they do not count: numbers of different judge protocols are not compared"
    return [f"to be measured again: {named}: {reason}. `harness start` measures them before other candidates"]


def weakness_notes(standings: Sequence[Standing]) -> list[str]:
    """Return a line for each kind of weakness of the speed-ups in the table; [] without any."""
    shown = [(standing.problem, shown_row(standing)) for standing in standings]
    return weakness_legend((problem, None, row.weaknesses) for problem, row in shown if row and row.speedup is not None)


def _candidate(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {
        "seq": row.seq,
        "evaluation": row.cites if row.kind == "confirmation" else row.seq,
        **{name: getattr(row, name) for name in ("commit", "tree", "worker", "latency_us", "speedup")},
        "speedup_ci95": None if row.speedup_ci95_low is None else [row.speedup_ci95_low, row.speedup_ci95_high],
        **{name: getattr(row, name) for name in ("score", "trust", "judge_protocol")},
        "weaknesses": weaknesses_for_scripts(row.weaknesses),
        "at": row.at,
    }
