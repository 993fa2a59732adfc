"""Everything the report shows, as plain data: from the index, a few whole entries, decisions and accounts."""

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
from harness.model.geometric_mean import geometric_mean
from harness.model.paths import ACCOUNTS, DECISIONS
from harness.model.weaknesses import SYMBOL
from harness.report.problem_summary import (
    EvaluationDot,
    RunSpan,
    evaluation_dots,
    first_and_last_entry,
    hours_since,
    problem_summary,
)
from harness.report.steps import DetailBudget, Json, short

_INPUTS = re.compile(rb"^inputs:.*\n(?:[ -].*\n)*", re.MULTILINE)
"""A decision's inputs: by far its longest part, and not shown."""
_MOST_MOVES = 3000
_BUCKETS = 60
_SHORTEST_HOURS = 1e-3
"""No time axis is shorter."""
UNBEATEN_SCORE = 0.5
"""The SOL score of a solution exactly as fast as the baseline: what stands where nothing better was confirmed."""


def collect(
    repo: Repo,
    index: Index,
    *,
    branch: str,
    problems: Sequence[str],
    run: str,
    target: str,
    commit_url: str | None,
    now: datetime | None = None,
) -> Json:
    """The report's data for one run and target.

    Args:
        repo: the workspace's repository.
        index: refreshed.
        branch: the coordination branch.
        problems: keys to show, in order; those that the run was neither started with nor evaluated are left out.
        run: the experiment.
        target: what was tuned for.
        commit_url: `https://…/commit/{}`, or None where commits are on no web host.
        now: the time on the page.
    """
    table = standings(index, problems, target, run)
    asked = decided_problems(repo, branch, run, target) | {one.problem for one in table if one.evaluations}
    others = len(problems)
    table = tuple(one for one in table if one.problem in asked or not asked)
    others -= len(table)
    begin, end = first_and_last_entry(index, run, target)
    span = RunSpan(branch, run, target, begin)
    made = evaluation_dots(index, span, {one.problem: one.problem_digest for one in table})
    budget = partial(DetailBudget.per_problem, sum(bool(one.gains) for one in table))
    shown = [
        problem_summary(repo, index, one, made.get(one.problem, []), span, budget())
        | {"against": _against(index, one, target)}
        for one in table
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
            "made": (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC"),
            "begin": begin.strftime("%Y-%m-%dT%H:%M:%SZ") if begin else None,
            "hours": hours_since(begin, end) if begin and end else 0,
            "version": harness.__version__,
            "commit_url": commit_url,
            "entries": index.count(),
            "other_problems": others,
        },
        "history": outdated_note(table),
        "weakened": {"symbol": SYMBOL, "notes": weakness_notes(table)},
        "headline": headline(shown, sum(float(one.get("usd") or 0) for one in accounts) if accounts else None),
        "problems": shown,
        "moves": _moves(repo, branch, run, target, begin),
        "spend": _spend(made, accounts, begin),
        "verdicts": _verdicts(made),
    }


def decided_problems(repo: Repo, branch: str, run: str, target: str) -> set[str]:
    """Return the problems that the run was started with last: those that its planner decided about."""
    for document in reversed(read_documents(repo.workspace, repo, DECISIONS, branch=branch)):
        try:
            record = parse(document.raw, DECISIONS)
        except LedgerError:
            continue
        if record.get("run") == run and record.get("target", target) == target:
            facts = (record.get("inputs") or {}).get("problems") or ()
            return {str(one["problem"]) for one in facts if one.get("problem")}
    return set()


def _against(index: Index, standing: Standing, target: str) -> Json:
    """The champion's speed-up over single variants of the baseline, through the one it was measured against.

    ratio = (variant / the raced one, by the champion's clock) x (speed-up over the raced one), workload by workload.
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
    found: Json = {}
    for name in ("eager", "baseline"):
        ratios = []
        for workload in champion.workloads:
            times = {key: value for key, value in table.get(workload.uuid, {}).items() if value}
            if workload.speedup and name in times and workload.variant in times:
                ratios.append(times[name] / times[workload.variant] * workload.speedup)
        if ratios and len(ratios) == len(champion.workloads):
            found[name] = short(geometric_mean(ratios))
    return found


def headline(shown: Sequence[Json], usd: float | None) -> Json:
    """Return the figures of all problems together.

    Args:
        shown: each problem's summary; `against` may be missing.
        usd: spent on models; None where no agent used one.
    """
    confirmed = [one for one in shown if one["state"] == "confirmed"]
    speedups = [max(1.0, one["speedup"]) if one["state"] == "confirmed" else 1.0 for one in shown]
    scores = [
        one["score"] if one["state"] == "confirmed" and one["score"] is not None else UNBEATEN_SCORE for one in shown
    ]
    against = [one.get("against", {}) for one in confirmed]
    agents = [ratios["baseline"] for ratios in against if "baseline" in ratios]
    eager = [ratios["eager"] for ratios in against if "eager" in ratios]
    return {
        "problems": len(shown),
        "confirmed": len(confirmed),
        "weakened": sum(bool(one["weaknesses"]) for one in confirmed),
        "geomean": short(geometric_mean(speedups)) if speedups else None,
        "geomean_confirmed": short(geometric_mean([one["speedup"] for one in confirmed])) if confirmed else None,
        "above_2": sum(one["speedup"] > 2 for one in confirmed),
        "median_score": short(statistics.median(scores)) if scores else None,
        "against_agent": [short(geometric_mean(agents)), len(agents)] if agents else None,
        "against_eager": [short(geometric_mean(eager)), len(eager)] if eager else None,
        "evaluations": sum(one["evaluations"] for one in shown),
        "duplicates": sum(one["duplicates"] for one in shown),
        "near_duplicates": sum(one["near_duplicates"] for one in shown),
        "answered": sum(one["answered"] for one in shown),
        "device_hours": round(sum(one["cost_s"] for one in shown) / 3600, 3),
        "usd": None if usd is None else round(usd, 2),
    }


def _moves(repo: Repo, branch: str, run: str, target: str, begin: datetime | None) -> list[list[Any]]:
    """The planner's moves: when, who, to which problem, why. A row that stays where it is is no move."""
    moves: list[list[Any]] = []
    present: dict[str, str] = {}
    for document in read_documents(repo.workspace, repo, DECISIONS, branch=branch):
        try:
            record = parse(_INPUTS.sub(b"", document.raw), DECISIONS)
        except LedgerError:
            continue
        if record.get("run") != run or record.get("target", target) != target:
            continue
        decision = record.get("decision") or {}
        reasons = decision.get("reasons") or {}
        for row in decision.get("assignments") or ():
            worker, problem = row.get("worker"), row.get("problem")
            if row.get("state") != "paused" and present.get(worker) != problem:
                present[worker] = problem
                moves.append([hours_since(begin, record["at"]), worker, problem, reasons.get(worker, "")])
    return moves[-_MOST_MOVES:]


def _spend(made: dict[str, list[EvaluationDot]], accounts: list[Json], begin: datetime | None) -> list[list[float]]:
    """Hours -> device hours and dollars spent by then, at most so many points."""
    events = [(row.at, row.cost_s / 3600, 0.0) for rows in made.values() for row in rows]
    events += [
        (hours_since(begin, str(one.get("ended") or one.get("at"))), 0.0, float(one.get("usd") or 0))
        for one in accounts
    ]
    events.sort()
    points, device, usd = [], 0.0, 0.0
    stride = max(1, len(events) // 300)
    for number, (at, hours, dollars) in enumerate(events):
        device, usd = device + hours, usd + dollars
        if number % stride == 0 or number == len(events) - 1:
            points.append([at, short(device) or 0.0, short(usd) or 0.0])
    return points


def _verdicts(made: dict[str, list[EvaluationDot]]) -> Json:
    """How evaluations ended, over equal stretches of time."""
    rows = [row for each in made.values() for row in each]
    if not rows:
        return {"bucket_hours": 0, "buckets": [], "totals": {}}
    width = max([_SHORTEST_HOURS, *(row.at for row in rows)]) / _BUCKETS
    buckets: list[Counter[str]] = [Counter() for _ in range(_BUCKETS)]
    for row in rows:
        buckets[min(int(row.at / width), _BUCKETS - 1)][row.verdict] += 1
    totals = Counter(row.verdict for row in rows)
    return {"bucket_hours": width, "buckets": [dict(one) for one in buckets], "totals": dict(totals.most_common())}
