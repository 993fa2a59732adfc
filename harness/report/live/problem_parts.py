"""The problems of a run as parts of the live page; only problems with new entries are summarised again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.standings import Standing, standings
from harness.ledger.standings_table import outdated_note, weakness_notes
from harness.report.page import Json, printable_data
from harness.report.problem_summary import RunSpan, evaluation_dots, first_and_last_entry, problem_summary

_MAX_SINGLE_READS = 12
"""Up to this number, problems are read one by one; for more problems, one query over all entries is faster."""
_LAST_HASH = "SELECT hash FROM entries WHERE problem = ? ORDER BY seq DESC LIMIT 1"
"""Entries are chained, so the hash of the last entry identifies all entries of a problem."""


class ProblemParts:
    """Summaries of the problems of one run and target.

    Args:
        index: refreshed by the caller.
        span: run and target; its begin is set once there is an entry.
    """

    def __init__(self, repo: Repo, index: Index, span: RunSpan) -> None:
        self._repo, self._index = repo, index
        self.span = span
        self.texts: dict[str, str] = {}
        """Problem -> its summary as JSON."""
        self.summaries: dict[str, Json] = {}
        self._standings: dict[str, Standing] = {}
        self._last_hashes: dict[str, list[tuple[Any, ...]]] = {}

    def update(self, problems: Sequence[str]) -> None:
        """Update the summaries from the index.

        Args:
            problems: keys of the problems to show; the summaries of others are removed.
        """
        if self.span.begin is None:
            self.span = replace(self.span, begin=first_and_last_entry(self._index, self.span.run, self.span.target)[0])
        hashes = {problem: self._index.query(_LAST_HASH, (problem,)) for problem in problems}
        changed = [problem for problem in problems if self._last_hashes.get(problem) != hashes[problem]]
        for group in [[problem] for problem in changed] if len(changed) <= _MAX_SINGLE_READS else [changed]:
            self._summarise(group)
        self._last_hashes = hashes
        for by_problem in (self.texts, self.summaries, self._standings):
            for problem in by_problem.keys() - hashes.keys():
                del by_problem[problem]

    def notes(self) -> Json:
        """Return the sentences about weakened numbers and about entries of an older judge protocol."""
        table = [self._standings[problem] for problem in sorted(self._standings)]
        return {"weakened": weakness_notes(table), "history": outdated_note(table)}

    def _summarise(self, problems: Sequence[str]) -> None:
        span = self.span
        table = standings(self._index, problems, span.target, span.run)
        dots = evaluation_dots(self._index, span, table, problems[0] if len(problems) == 1 else None)
        for standing in table:
            summary = problem_summary(self._repo, self._index, standing, dots.get(standing.problem, []), span, None)
            self._standings[standing.problem] = standing
            self.summaries[standing.problem] = summary
            self.texts[standing.problem] = as_json(summary)


def as_json(data: Json) -> str:
    """Return data as JSON on one line, with control characters in the text of agents escaped."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # JSON escapes a control character with a backslash. Most data has none and is returned without a copy.
    if text.isprintable() and "\\" not in text:
        return text
    return json.dumps(printable_data(data), separators=(",", ":"), allow_nan=False)
