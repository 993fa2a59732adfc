"""The summary of one problem for the report and the live page: numbers, steps and evaluations."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.standings import Standing
from harness.ledger.standings_table import shown_row
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import Verdict
from harness.report.steps import DetailBudget, Json, short, step_rows, step_seqs

_MAX_DOTS = 400
"""Largest number of dots of a problem's trajectory. More evaluations are thinned out evenly; steps are not."""


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
        run: name of the run.
        target: such as `cpu` or `h200`.
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
    index: Index, span: RunSpan, digests: Mapping[str, str | None], problem: str | None = None
) -> dict[str, list[EvaluationDot]]:
    """Return problem -> its evaluations, oldest first.

    Args:
        index: index of the ledger, refreshed by the caller.
        span: run and target.
        digests: problem -> the digest of its present form.
        problem: key of a problem; None for all problems.
    """
    of_problem = "" if problem is None else " AND problem = :problem"
    sql = (
        "SELECT problem, seq, at, verdict, speedup, cost_s, problem_digest, judge_protocol FROM entries "  # noqa: S608
        f"WHERE kind = 'evaluation' AND run = :run AND target = :target{of_problem} ORDER BY problem, seq"
    )
    values = {"run": span.run, "target": span.target} | ({} if problem is None else {"problem": problem})
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
    budget: DetailBudget,
) -> Json:
    """Return a problem's numbers, steps and evaluations as JSON.

    Args:
        repo: the workspace's repository; read only for details that `budget` allows.
        index: index of the ledger, refreshed by the caller.
        standing: of the problem, for the run and target of `span`.
        evaluations: of the problem, oldest first.
        span: run and target.
        budget: limits the details of steps.
    """
    shown = shown_row(standing)
    measured_again = index.rows(standing.problem, run=span.run, target=span.target, kind="confirmation")
    present = [row for row in measured_again if row.problem_digest == standing.problem_digest]
    confirmations = {row.cites: row for row in present if row.cites}
    seqs = step_seqs(index, standing, confirmations, span.run)
    rows = [row for row in (index.row(standing.problem, seq) for seq in seqs) if row is not None]
    steps = step_rows(repo, index, standing, rows, confirmations, span.branch, budget)
    for step, row in zip(steps, rows, strict=True):
        step["at"] = hours_since(span.begin, row.at)
    passed = [dot for dot in evaluations if dot.current and dot.verdict == Verdict.PASSED]
    dots = [(dot.at, dot.speedup) for dot in passed if dot.speedup]
    suite, _, name = standing.problem.partition("/")
    return {
        "key": standing.problem,
        "suite": suite,
        "name": name,
        "state": _state(standing, evaluations),
        "judge_protocol": shown.judge_protocol if shown else None,
        "baseline_us": short(standing.baseline_us),
        "bound_us": short(shown.bound_us) if shown else None,
        "latency_us": short(shown.latency_us) if shown else None,
        "speedup": short(shown.speedup) if shown else None,
        "low": short(shown.speedup_ci95_low) if shown else None,
        "high": short(shown.speedup_ci95_high) if shown else None,
        "score": short(shown.score) if shown else None,
        "trust": shown.trust if shown else None,
        "weaknesses": [weakness.sentence for weakness in shown.weaknesses] if shown else [],
        "seq": shown.seq if shown else None,
        "commit": shown.commit if shown else None,
        "worker": shown.worker if shown else None,
        "at": hours_since(span.begin, shown.at) if shown else None,
        "evaluations": standing.evaluations,
        "verdicts": dict(standing.verdicts),
        "workers": len(standing.workers),
        "duplicates": standing.duplicates,
        "near_duplicates": standing.near_duplicates,
        "answered": standing.answered_from_ledger,
        "since_gain": standing.since_gain,
        "cost_s": round(standing.cost_s, 1),
        "steps": steps,
        "dots": [[at, short(speedup)] for at, speedup in _thinned(dots)],
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


def _thinned(dots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = math.ceil(len(dots) / _MAX_DOTS) if dots else 1
    return dots[::stride]
