"""The steps of one problem for the report: numbers, workloads, and the diff of the sources.

A step is a gain, or an evaluation whose confirmation made it the champion. The confirmation decides, so the evaluation
of a champion need not be a gain.
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
"""Lines of a step's diff that are shown; the page counts the others and names the command that shows them."""
_DETAIL_CHARACTERS = 1_200_000
"""Characters of the workloads and diffs of all steps of a page, so that the page of a large run is below 3 MB."""
_DETAILED_STEPS = 600
"""Steps with workloads and diff on a page: reading the entry of a step takes at least 2 ms."""
_MIN_DETAILED_STEPS = 3
"""Least number of steps with workloads and diff for each problem."""

Json = dict[str, Any]


NO_DETAILS: Json = {"subject": None, "workloads": None, "diff": None, "more_lines": 0, "compared": None}
"""The fields of a step without details."""


@dataclass
class DetailBudget:
    """Limits of the details of one problem's steps."""

    left: int
    """Remaining characters."""
    steps: int
    """Number of the newest steps with details."""

    @classmethod
    def per_problem(cls, problems: int) -> DetailBudget:
        """Return one problem's share of the page."""
        return cls(
            _DETAIL_CHARACTERS // max(1, problems), max(_MIN_DETAILED_STEPS, _DETAILED_STEPS // max(1, problems))
        )

    def allows(self, characters: int) -> bool:
        """Return True if the remaining characters suffice, and subtract the given number."""
        if characters > self.left:
            return False
        self.left -= characters
        return True


def step_seqs(index: Index, standing: Standing, confirmations: Mapping[int, Row], run: str) -> list[int]:
    """Return the seq of each evaluation that is a gain or was a champion, oldest first.

    Args:
        index: index of the ledger, refreshed by the caller.
        standing: of the problem, for one target and run.
        confirmations: seq of an evaluation -> its latest confirmation.
        run: name of the run.
    """
    cited = {row.cites for row in index.rows(standing.problem, run=run, kind="champion")}
    champions = {seq for seq, row in confirmations.items() if row.seq in cited}
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

    The newest steps have workloads and diffs, within the budget.

    Args:
        repo: the workspace's repository.
        index: index of the ledger, refreshed by the caller.
        standing: of the problem.
        rows: the evaluations, oldest first.
        confirmations: seq of an evaluation -> its latest confirmation.
        branch: the coordination branch; the first step is compared with its solution at the merge base.
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
    return {"speedup": short(row.speedup), "low": short(row.speedup_ci95_low), "high": short(row.speedup_ci95_high)}


def _details(repo: Repo, index: Index, row: Row, before: Row | None, branch: str, budget: DetailBudget) -> Json:
    details = dict(NO_DETAILS)
    entry = index.entry(row.problem, row.seq) if budget.left > 0 else None
    if entry is not None:
        workloads = [_workload(workload) for workload in entry.workloads]
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
    """Return the solution's tree at the merge base of the worker's and the coordination branch; None without one."""
    if row.commit is None or not repo.has_object(row.commit):
        return None
    fork = repo.git.ask("merge-base", branch, row.commit)
    return None if fork.code else repo.tree_of(fork.text.split()[0], solution_path(row.problem, row.target))


def _workload(work: WorkloadResult) -> Sequence[Any]:
    numbers = (work.latency_us, work.baseline_us, work.speedup, *(work.speedup_ci95 or (None, None)))
    return [work.uuid[:8], *map(short, numbers)]


def short(value: float | None) -> float | None:
    """Return a number rounded to five significant digits, which keeps the page small."""
    return None if value is None else float(f"{value:.5g}")
