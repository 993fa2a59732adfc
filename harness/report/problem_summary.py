"""The summary of one problem for the report and the live page: numbers, steps and evaluations.

A step is a gain, or an evaluation whose confirmation made it the champion. The confirmation decides, so the evaluation
of a champion need not be a gain. A step has numbers and, within a budget, workloads and the diff of the sources.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.standings import Standing
from harness.ledger.standings_table import shown_row
from harness.model.judging import JUDGE_PROTOCOL, WorkloadResult
from harness.model.paths import solution_path
from harness.model.verdict import Verdict
from harness.report.merge_branches import diff
from harness.report.page import Json

_DIFF_LINES = 160
"""Lines of a step's diff that are shown; the page counts the others and names the command that shows them."""
_DETAIL_CHARACTERS = 1_200_000
"""Characters of the workloads and diffs of all steps of a page, so that the page of a large run is below 3 MB."""
_DETAILED_STEPS = 600
"""Steps with workloads and diff on a page: reading the entry of a step takes at least 2 ms."""
_MIN_DETAILED_STEPS = 3
"""Least number of steps with workloads and diff for each problem."""


_NO_DETAILS: Json = {"subject": None, "workloads": None, "diff": None, "more_lines": 0, "compared": None}
"""The fields of a step without details."""
_FACTS = ("judge_protocol", "trust", "seq", "commit", "worker")
"""Columns of the row that counts, which a summary has unchanged."""
_INTERVAL = {"speedup": "speedup", "low": "speedup_ci95_low", "high": "speedup_ci95_high"}
_FIGURES = {**_INTERVAL, "bound_us": "bound_us", "latency_us": "latency_us", "score": "score"}
"""Key of a summary -> column of the row that counts, which is rounded."""
_MAX_DOTS = 400
"""Largest number of dots of a problem's trajectory. More evaluations are thinned out evenly; steps are not."""


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


@dataclass(frozen=True)
class RunSpan:
    """The run and target of a page."""

    branch: str
    """The coordination branch."""
    run: str
    target: str
    begin: datetime | None
    """Time of the first entry; None without entries."""


@dataclass(frozen=True)
class EvaluationDot:
    """One evaluation on a time axis."""

    seq: int
    at: float
    """Hours since the run's first entry."""
    verdict: str
    speedup: float | None
    cost_s: float
    current: bool
    """True for the problem's present form and the present judge protocol."""


def first_and_last_entry(index: Index, run: str, target: str) -> tuple[datetime | None, datetime | None]:
    """Return the times of a run's first and last entry for a target; (None, None) without entries.

    Args:
        index: index of the ledger, refreshed by the caller.
    """
    times = index.query("SELECT min(at), max(at) FROM entries WHERE run = ? AND target = ?", (run, target))[0]
    first, last = (datetime.fromisoformat(at) if at else None for at in times)
    return first, last


def hours_since(begin: datetime | None, at: datetime | str) -> float:
    """Return the hours from the first entry to a later time.

    Args:
        begin: time of the first entry; the result is 0 without one.
        at: the later time; a string in ISO format.
    """
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return round((moment - begin).total_seconds() / 3600, 4) if begin else 0.0


def evaluation_dots(
    index: Index, span: RunSpan, table: Sequence[Standing], problem: str | None = None
) -> dict[str, list[EvaluationDot]]:
    """Return problem -> its evaluations, oldest first.

    Args:
        index: index of the ledger, refreshed by the caller.
        span: run and target.
        problem: key of a problem; None for all problems.
    """
    digests = {standing.problem: standing.problem_digest for standing in table}
    of_problem = "" if problem is None else " AND problem = :problem"
    sql = (
        "SELECT problem, seq, at, verdict, speedup, cost_s, problem_digest, judge_protocol FROM entries "  # noqa: S608
        f"WHERE kind = 'evaluation' AND run = :run AND target = :target{of_problem} ORDER BY problem, seq"
    )
    values = {"run": span.run, "target": span.target, "problem": problem}
    dots: dict[str, list[EvaluationDot]] = defaultdict(list)
    for name, seq, at, verdict, speedup, cost, digest, protocol in index.query(sql, values):
        current = digest == digests.get(name) and protocol == JUDGE_PROTOCOL
        dots[name].append(EvaluationDot(seq, hours_since(span.begin, at), verdict, speedup, cost or 0.0, current))
    return dots


def problem_summary(
    repo: Repo,
    index: Index,
    standing: Standing,
    evaluations: Sequence[EvaluationDot],
    span: RunSpan,
    budget: DetailBudget | None,
) -> Json:
    """Return a problem's numbers, steps and evaluations as JSON.

    Args:
        repo: the workspace's repository; read only for details that `budget` allows.
        index: index of the ledger, refreshed by the caller.
        standing: of the problem, for the run and target of `span`.
        evaluations: of the problem, oldest first.
        span: run and target.
        budget: limits the details of steps; None for steps without fields of details.
    """
    shown = shown_row(standing)
    passed = [dot for dot in evaluations if dot.current and dot.verdict == Verdict.PASSED]
    dots = [[dot.at, short(dot.speedup)] for dot in passed if dot.speedup]
    suite, _, name = standing.problem.partition("/")
    return {
        "key": standing.problem,
        "suite": suite,
        "name": name,
        "state": _state(standing, evaluations),
        "baseline_us": short(standing.baseline_us),
        **{key: short(getattr(shown, name)) if shown else None for key, name in _FIGURES.items()},
        **{name: getattr(shown, name) if shown else None for name in _FACTS},
        "weaknesses": [weakness.sentence for weakness in shown.weaknesses] if shown else [],
        "at": hours_since(span.begin, shown.at) if shown else None,
        "evaluations": standing.evaluations,
        "verdicts": dict(standing.verdicts),
        "workers": len(standing.workers),
        "duplicates": standing.duplicates,
        "near_duplicates": standing.near_duplicates,
        "answered": standing.answered_from_ledger,
        "since_gain": standing.since_gain,
        "cost_s": round(standing.cost_s, 1),
        "steps": _steps(repo, index, standing, span, budget),
        "dots": dots[:: math.ceil(len(dots) / _MAX_DOTS) or 1],
    }


def _state(standing: Standing, evaluations: Sequence[EvaluationDot]) -> str:
    """Return the state of a problem; `outdated`: only an older judge protocol, which does not count, measured it."""
    if standing.champion:
        return "confirmed"
    if standing.best:
        return "unconfirmed"
    if standing.outdated:
        return "outdated"
    return "none" if evaluations else "untried"


def _steps(repo: Repo, index: Index, standing: Standing, span: RunSpan, budget: DetailBudget | None) -> list[Json]:
    """Return the steps of a problem, oldest first; the newest ones have workloads and diffs, within the budget."""
    measured_again = index.rows(standing.problem, run=span.run, target=span.target, kind="confirmation")
    present = [row for row in measured_again if row.problem_digest == standing.problem_digest]
    confirmations = {row.cites: row for row in present if row.cites}
    cited = {row.cites for row in index.rows(standing.problem, run=span.run, kind="champion")}
    champions = {seq for seq, row in confirmations.items() if row.seq in cited}
    seqs = sorted({gain.seq for gain in standing.gains} | champions)
    rows = [row for row in (index.row(standing.problem, seq) for seq in seqs) if row is not None]
    steps = [_step(standing, row, confirmations.get(row.seq), span.begin) for row in rows]
    if budget is None:
        return steps
    steps = [step | _NO_DETAILS for step in steps]
    for number in range(len(rows) - 1, max(-1, len(rows) - 1 - budget.steps), -1):
        before = rows[number - 1] if number else None
        steps[number] |= _details(repo, index, rows[number], before, span.branch, budget)
    return steps


def _step(standing: Standing, row: Row, confirmation: Row | None, begin: datetime | None) -> Json:
    champion = standing.champion
    return {
        "seq": row.seq,
        "commit": row.commit,
        "worker": row.worker,
        "at": hours_since(begin, row.at),
        **interval(row),
        "latency_us": short(row.latency_us),
        "baseline_us": short(row.baseline_us),
        "confirmation": None if confirmation is None else {"seq": confirmation.seq, **interval(confirmation)},
        "gain": any(gain.seq == row.seq for gain in standing.gains),
        "champion": champion is not None and champion.cites == row.seq,
    }


def interval(row: Row) -> Json:
    """Return the rounded speed-up of a row and the ends of its interval."""
    return {key: short(getattr(row, name)) for key, name in _INTERVAL.items()}


def _details(repo: Repo, index: Index, row: Row, before: Row | None, branch: str, budget: DetailBudget) -> Json:
    details = dict(_NO_DETAILS)
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
