"""The steps of one problem as the report shows them: numbers, workloads, and what changed in the sources.

A step is a gain, or an evaluation whose confirmation made it the champion: the confirmation counts, so that a champion
need not be a gain by its evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.standings import Standing
from harness.model.judging import WorkloadResult
from harness.model.paths import solution_path
from harness.report.merge_branches import diff

_DIFF_LINES = 160
"""Of one gain; the rest is counted, and the page names the command that shows it."""
_DETAIL_CHARACTERS = 1_200_000
"""Workloads and differences of all steps of a page together, so that a page of a large run stays below 3 MB."""
_DETAILED_STEPS = 600
"""With workloads and difference, of all problems of a page together: reading a step's entry takes 2 ms and more."""
_LEAST_STEPS = 3
"""With workloads and difference, of each problem."""

Json = dict[str, Any]


NO_DETAILS: Json = {"subject": None, "workloads": None, "diff": None, "more_lines": 0, "compared": None}
"""Of a step without details."""


@dataclass
class DetailBudget:
    """Largest number of details for the steps of one problem."""

    left: int
    """In characters."""
    steps: int
    """So many of the newest steps."""

    @classmethod
    def per_problem(cls, problems: int) -> DetailBudget:
        """Return one problem's share of the page."""
        return cls(_DETAIL_CHARACTERS // max(1, problems), max(_LEAST_STEPS, _DETAILED_STEPS // max(1, problems)))

    def allows(self, characters: int) -> bool:
        """Return whether so many more characters fit, and count them if they do."""
        if characters > self.left:
            return False
        self.left -= characters
        return True


def step_seqs(index: Index, standing: Standing, confirmations: Mapping[int, Row], run: str) -> list[int]:
    """Return the seq of each evaluation that is a gain or was a champion, oldest first.

    Args:
        index: refreshed.
        standing: the problem's, for one target and run.
        confirmations: seq of an evaluation -> its latest confirmation.
        run: the run.
    """
    crowned = {row.cites for row in index.rows(standing.problem, run=run, kind="champion")}
    champions = {seq for seq, row in confirmations.items() if row.seq in crowned}
    return sorted({gain.seq for gain in standing.gains} | champions)


def step_rows(
    repo: Repo,
    index: Index,
    standing: Standing,
    rows: Sequence[Row],
    confirmations: Mapping[int, Row],
    branch: str,
    budget: DetailBudget,
) -> list[Json]:
    """Return the steps of a problem, oldest first.

    The newest have workloads and differences, as far as the budget goes.

    Args:
        repo: the workspace's repository.
        index: refreshed.
        standing: the problem's.
        rows: the evaluations, oldest first.
        confirmations: seq of an evaluation -> its latest confirmation.
        branch: the coordination branch; the first step is compared with what it held when the work began.
        budget: of this problem.
    """
    steps = [_step(standing, row, confirmations.get(row.seq)) for row in rows]
    for number in range(len(rows) - 1, max(-1, len(rows) - 1 - budget.steps), -1):
        before = rows[number - 1] if number else None
        steps[number] |= _details(repo, index, rows[number], before, branch, budget)
    return steps


def _step(standing: Standing, row: Row, confirmation: Row | None) -> Json:
    champion = standing.champion
    return {
        "seq": row.seq,
        "commit": row.commit,
        "worker": row.worker,
        **_numbers(row),
        "latency_us": short(row.latency_us),
        "baseline_us": short(row.baseline_us),
        "confirmation": None if confirmation is None else {"seq": confirmation.seq, **_numbers(confirmation)},
        "gain": any(gain.seq == row.seq for gain in standing.gains),
        "champion": champion is not None and champion.cites == row.seq,
        **NO_DETAILS,
    }


def _numbers(row: Row) -> Json:
    low, high = short(row.speedup_ci95_low), short(row.speedup_ci95_high)
    return {"speedup": short(row.speedup), "low": low, "high": high}


def _details(repo: Repo, index: Index, row: Row, before: Row | None, branch: str, budget: DetailBudget) -> Json:
    details = dict(NO_DETAILS)
    entry = index.entry(row.problem, row.seq) if budget.left > 0 else None
    if entry is not None:
        workloads = [_workload(one) for one in entry.workloads]
        if budget.allows(60 * len(workloads)):
            details["workloads"] = workloads
    if budget.left <= 0 or row.commit is None or row.tree is None:
        return details
    if repo.has_object(row.commit):
        details["subject"] = repo.commit(row.commit).subject
    old = before.tree if before is not None else _tree_at_fork(repo, row, branch)
    if repo.has_object(row.tree) and (old is None or repo.has_object(old)):
        lines = diff(repo, old, row.tree).splitlines()
        text = "\n".join(lines[:_DIFF_LINES])
        details["compared"] = f"git diff {old[:12]} {row.tree[:12]}" if old else None
        if budget.allows(len(text)):
            details |= {"diff": text, "more_lines": max(0, len(lines) - _DIFF_LINES)}
    return details


def _tree_at_fork(repo: Repo, row: Row, branch: str) -> str | None:
    """Return the solution's tree where the worker's branch left the coordination branch; None where there was none."""
    if row.commit is None or not repo.has_object(row.commit):
        return None
    fork = repo.git.ask("merge-base", branch, row.commit)
    return None if fork.code else repo.tree_of(fork.text.split()[0], solution_path(row.problem, row.target))


def _workload(one: WorkloadResult) -> Sequence[Any]:
    low, high = one.speedup_ci95 or (None, None)
    return [one.uuid[:8], short(one.latency_us), short(one.baseline_us), short(one.speedup), short(low), short(high)]


def short(value: float | None) -> float | None:
    """Return five significant digits: more would only make the page larger."""
    return None if value is None else float(f"{value:.5g}")
