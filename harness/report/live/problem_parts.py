"""The problems of a run as parts of the live page, made again only where the ledger has grown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.standings import Standing, standings
from harness.ledger.standings_table import outdated_note, weakness_notes
from harness.report.page import printable_data
from harness.report.problem_summary import RunSpan, evaluation_dots, first_and_last_entry, problem_summary
from harness.report.steps import NO_DETAILS, DetailBudget, Json

_FEW = 12
"""Up to so many problems are read one by one; for more, one query over all entries is faster."""
_LAST_HASH = "SELECT hash FROM entries WHERE problem = ? ORDER BY seq DESC LIMIT 1"
"""Entries are chained, so the hash of a problem's last one stands for all of them."""


class ProblemParts:
    """Summaries of the problems of one run and target.

    Args:
        repo: the workspace's repository.
        index: refreshed by the caller.
        span: run and target; its begin is filled in with the first entry.
    """

    def __init__(self, repo: Repo, index: Index, span: RunSpan) -> None:
        self._repo, self._index = repo, index
        self.span = span
        self.texts: dict[str, str] = {}
        """Problem -> its summary as JSON."""
        self._summaries: dict[str, Json] = {}
        self._standings: dict[str, Standing] = {}
        self._last_hashes: dict[str, str | None] = {}

    def update(self, problems: Sequence[str]) -> None:
        """Bring the summaries up to the index.

        Args:
            problems: those to show.
        """
        if self.span.begin is None:
            self.span = replace(self.span, begin=first_and_last_entry(self._index, self.span.run, self.span.target)[0])
        hashes = {problem: self._last_hash(problem) for problem in problems}
        known = self._last_hashes
        changed = [problem for problem in problems if problem not in known or known[problem] != hashes[problem]]
        for group in [[problem] for problem in changed] if len(changed) <= _FEW else [changed]:
            self._summarise(group)
        self._last_hashes = hashes
        for kept in (self.texts, self._summaries, self._standings):
            for problem in kept.keys() - hashes.keys():
                del kept[problem]

    @property
    def summaries(self) -> list[Json]:
        """Every problem's summary."""
        return list(self._summaries.values())

    def notes(self) -> Json:
        """Return the sentences about weakened numbers and about entries of an older judge protocol."""
        table = [self._standings[problem] for problem in sorted(self._standings)]
        return {"weakened": weakness_notes(table), "history": outdated_note(table)}

    def _last_hash(self, problem: str) -> str | None:
        rows = self._index.query(_LAST_HASH, (problem,))
        return str(rows[0][0]) if rows else None

    def _summarise(self, problems: Sequence[str]) -> None:
        span = self.span
        table = standings(self._index, problems, span.target, span.run)
        digests = {one.problem: one.problem_digest for one in table}
        dots = evaluation_dots(self._index, span, digests, problems[0] if len(problems) == 1 else None)
        for standing in table:
            evaluations = dots.get(standing.problem, [])
            no_details = DetailBudget(0, 0)
            summary = problem_summary(self._repo, self._index, standing, evaluations, span, no_details)
            summary["steps"] = [
                {name: value for name, value in step.items() if name not in NO_DETAILS} for step in summary["steps"]
            ]
            self._standings[standing.problem] = standing
            self._summaries[standing.problem] = summary
            self.texts[standing.problem] = as_json(summary)


def as_json(data: Json) -> str:
    """Return data on one line, with the text of agents made safe to show."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # A control character is escaped with a backslash here; most data has none, and is not copied.
    if text.isprintable() and "\\" not in text:
        return text
    return json.dumps(printable_data(data), separators=(",", ":"), allow_nan=False)
