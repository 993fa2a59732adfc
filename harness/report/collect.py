"""The data of the report as JSON, from the index, a few complete entries, decisions and accounts."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import harness
from harness.errors import LedgerError
from harness.formats.ledger_documents import parse
from harness.git.repo import Repo
from harness.ledger.index import Index
from harness.ledger.ledger import read_documents, read_records
from harness.ledger.standings import Standing, standings
from harness.ledger.standings_table import outdated_note, weakness_notes
from harness.model.interval import geometric_mean
from harness.model.paths import ACCOUNTS, DECISIONS
from harness.model.weaknesses import SYMBOL
from harness.report.page import Json
from harness.report.problem_summary import (
    DetailBudget,
    EvaluationDot,
    RunSpan,
    evaluation_dots,
    first_and_last_entry,
    hours_since,
    problem_summary,
    short,
)

_INPUTS = re.compile(rb"^inputs:.*\n(?:[ -].*\n)*", re.MULTILINE)
"""A decision's inputs, its longest part, which the report does not show."""
_MAX_MOVES = 3000
_BUCKETS = 60
_MIN_AXIS_HOURS = 1e-3
"""Least length of a time axis."""
_COUNTS = ("evaluations", "duplicates", "near_duplicates", "answered")
_UNBEATEN_SCORE = 0.5
"""The SOL score of the baseline, used for problems without a confirmed gain."""


def collect(
    repo: Repo,
    index: Index,
    *,
    branch: str,
    problems: Sequence[str],
    run: str,
    target: str,
    commit_url: str | None,
) -> Json:
    """Return the report's data for one run and target.

    Args:
        index: index of the ledger, refreshed by the caller.
        branch: the coordination branch.
        problems: keys to show, in order; problems that the run has neither started with nor evaluated are omitted.
        commit_url: `https://…/commit/{}`; None without a web host for commits.
    """
    table = standings(index, problems, target, run)
    run_problems = decided_problems(repo, branch, run, target)
    run_problems |= {standing.problem for standing in table if standing.evaluations}
    table = tuple(standing for standing in table if standing.problem in run_problems or not run_problems)
    begin, end = first_and_last_entry(index, run, target)
    span = RunSpan(branch, run, target, begin)
    dots = evaluation_dots(index, span, table)
    budget = partial(DetailBudget.per_problem, sum(bool(standing.gains) for standing in table))
    shown = [
        problem_summary(repo, index, standing, dots.get(standing.problem, []), span, budget())
        | {"against": _against(index, standing, target)}
        for standing in table
    ]
    accounts = [
        record for record in read_records(repo.workspace, repo, ACCOUNTS, branch=branch) if record.get("run") == run
    ]
    return {
        "meta": {
            "run": run,
            "target": target,
            "branch": branch,
            "commit": repo.tip(branch),
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "begin": begin.strftime("%Y-%m-%dT%H:%M:%SZ") if begin else None,
            "hours": hours_since(begin, end) if begin and end else 0,
            "version": harness.__version__,
            "commit_url": commit_url,
            "entries": index.count(),
            "other_problems": len(problems) - len(table),
        },
        "history": outdated_note(table),
        "weakened": {"symbol": SYMBOL, "notes": weakness_notes(table)},
        "headline": headline(shown, sum(float(record.get("usd") or 0) for record in accounts) if accounts else None),
        "problems": shown,
        "moves": _moves(repo, branch, run, target, begin),
        "spend": _spend(dots, accounts, begin),
        "verdicts": _verdicts(dots),
    }


def decided_problems(repo: Repo, branch: str, run: str, target: str) -> set[str]:
    """Return the problems of the last start of a run, which are the problems of its planner's last decision.

    Args:
        branch: the coordination branch.
    """
    for document in reversed(read_documents(repo.workspace, repo, DECISIONS, branch=branch)):
        record = _decision(document.raw, run, target)
        if record is not None:
            facts = (record.get("inputs") or {}).get("problems") or ()
            return {str(fact["problem"]) for fact in facts if fact.get("problem")}
    return set()


def _decision(raw: bytes, run: str, target: str) -> Json | None:
    """Return a recorded decision of the planner; None if it is of another run or target, or cannot be read."""
    try:
        record = parse(raw, DECISIONS)
    except LedgerError:
        return None
    return record if record.get("run") == run and record.get("target", target) == target else None


def _against(index: Index, standing: Standing, target: str) -> Json:
    """Return the champion's speed-up over single variants of the baseline, from its speed-up over the compared variant.

    For each workload, with the times of the champion's clock:
    speed-up = (time of the variant / time of the compared variant) x (speed-up over the compared variant).
    """
    champion = index.entry(standing.problem, standing.champion.seq) if standing.champion else None
    if champion is None:
        return {}
    where = "WHERE problem = ? AND target = ? AND kind = 'baseline' AND problem_digest = ? ORDER BY seq DESC LIMIT 1"
    rows = index.select(where, (standing.problem, target, standing.problem_digest))
    entry = index.entry(standing.problem, rows[0].seq) if rows else None
    if entry is None:
        return {}
    table = entry.sealed_baselines if champion.trust and champion.trust.by_events else entry.baselines
    speedups: Json = {}
    for name in ("eager", "baseline"):
        ratios = []
        for workload in champion.workloads:
            times = {key: value for key, value in table.get(workload.uuid, {}).items() if value}
            if workload.speedup and name in times and workload.variant in times:
                ratios.append(times[name] / times[workload.variant] * workload.speedup)
        if ratios and len(ratios) == len(champion.workloads):
            speedups[name] = short(geometric_mean(ratios))
    return speedups


def _mean(values: Sequence[float]) -> float | None:
    return short(geometric_mean(values)) if values else None


def headline(shown: Sequence[Json], usd: float | None) -> Json:
    """Return the figures of all problems together.

    Args:
        shown: each problem's summary; `against` may be missing.
        usd: cost of the models; None if no agent used a model.
    """
    confirmed = [summary for summary in shown if summary["state"] == "confirmed"]
    speedups = [max(1.0, summary["speedup"]) if summary["state"] == "confirmed" else 1.0 for summary in shown]
    scores = [
        summary["score"] if summary["state"] == "confirmed" and summary["score"] is not None else _UNBEATEN_SCORE
        for summary in shown
    ]
    agents, eager = (
        [summary["against"][name] for summary in confirmed if name in summary.get("against", {})]
        for name in ("baseline", "eager")
    )
    return {
        "problems": len(shown),
        "confirmed": len(confirmed),
        "weakened": sum(bool(summary["weaknesses"]) for summary in confirmed),
        "geomean": _mean(speedups),
        "geomean_confirmed": _mean([summary["speedup"] for summary in confirmed]),
        "above_2": sum(summary["speedup"] > 2 for summary in confirmed),
        "median_score": short(statistics.median(scores)) if scores else None,
        "against_agent": [_mean(agents), len(agents)] if agents else None,
        "against_eager": [_mean(eager), len(eager)] if eager else None,
        **{name: sum(summary[name] for summary in shown) for name in _COUNTS},
        "device_hours": round(sum(summary["cost_s"] for summary in shown) / 3600, 3),
        "usd": None if usd is None else round(usd, 2),
    }


def _moves(repo: Repo, branch: str, run: str, target: str, begin: datetime | None) -> list[list[Any]]:
    """Return the planner's moves as [hours, worker, problem, reason]; an unchanged row is not a move."""
    moves: list[list[Any]] = []
    present: dict[str, str] = {}
    for document in read_documents(repo.workspace, repo, DECISIONS, branch=branch):
        record = _decision(_INPUTS.sub(b"", document.raw), run, target)
        if record is None:
            continue
        decision = record.get("decision") or {}
        reasons = decision.get("reasons") or {}
        for row in decision.get("assignments") or ():
            worker, problem = row.get("worker"), row.get("problem")
            if row.get("state") != "paused" and present.get(worker) != problem:
                present[worker] = problem
                moves.append([hours_since(begin, record["at"]), worker, problem, reasons.get(worker, "")])
    return moves[-_MAX_MOVES:]


def _spend(dots: dict[str, list[EvaluationDot]], accounts: list[Json], begin: datetime | None) -> list[list[float]]:
    """Return about 300 points [hours, device hours, USD] of the cumulative spend."""
    events = [(dot.at, dot.cost_s / 3600, 0.0) for group in dots.values() for dot in group]
    events += [
        (hours_since(begin, str(record.get("ended") or record.get("at"))), 0.0, float(record.get("usd") or 0))
        for record in accounts
    ]
    events.sort()
    points, device, usd = [], 0.0, 0.0
    stride = max(1, len(events) // 300)
    for number, (at, hours, dollars) in enumerate(events):
        device, usd = device + hours, usd + dollars
        if number % stride == 0 or number == len(events) - 1:
            points.append([at, short(device) or 0.0, short(usd) or 0.0])
    return points


def _verdicts(dots: dict[str, list[EvaluationDot]]) -> Json:
    """Return the counts of verdicts in time intervals of equal length, and in total."""
    rows = [dot for group in dots.values() for dot in group]
    if not rows:
        return {"bucket_hours": 0, "buckets": [], "totals": {}}
    width = max([_MIN_AXIS_HOURS, *(row.at for row in rows)]) / _BUCKETS
    buckets: list[Counter[str]] = [Counter() for _ in range(_BUCKETS)]
    for row in rows:
        buckets[min(int(row.at / width), _BUCKETS - 1)][row.verdict] += 1
    totals = Counter(row.verdict for row in rows)
    return {
        "bucket_hours": width,
        "buckets": [dict(bucket) for bucket in buckets],
        "totals": dict(totals.most_common()),
    }
