"""Everything the report shows, as plain data: from the index, a few whole entries, decisions and accounts."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
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
from harness.model.entry import Entry
from harness.model.geometric_mean import geometric_mean
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.paths import ACCOUNTS, DECISIONS
from harness.model.verdict import Verdict
from harness.model.weaknesses import SYMBOL
from harness.report.steps import DetailBudget, Json, short, step_rows, step_seqs

_INPUTS = re.compile(rb"^inputs:.*\n(?:[ -].*\n)*", re.MULTILINE)
"""A decision's inputs: by far its longest part, and not shown."""
_MOST_DOTS = 400
"""Of a problem's trajectory; more evaluations are thinned out evenly, steps never."""
_MOST_MOVES = 3000
_BUCKETS = 60
_SHORTEST_HOURS = 1e-3
"""No time axis is shorter."""
UNBEATEN_SCORE = 0.5
"""The SOL score of a solution exactly as fast as the baseline: what stands where nothing better was confirmed."""


@dataclass(frozen=True)
class _Span:
    """Subject of the page."""

    branch: str
    run: str
    target: str
    begin: datetime | None
    """Of the first entry."""


@dataclass(frozen=True)
class _EvaluationDot:
    seq: int
    at: float
    """Hours since the report's beginning."""
    verdict: str
    speedup: float | None
    cost_s: float
    current: bool
    """Of the problem's present form, by the judge protocol that counts."""


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
    asked = _asked(repo, branch, run, target) | {one.problem for one in table if one.evaluations}
    others = len(problems)
    table = tuple(one for one in table if one.problem in asked or not asked)
    others -= len(table)
    begin, end = _time_span(index, run, target)
    span = _Span(branch, run, target, begin)
    made = _evaluations(index, run, target, begin, {one.problem: one.problem_digest for one in table})
    budget = partial(DetailBudget.per_problem, sum(bool(one.gains) for one in table))
    shown = [_problem(repo, index, one, made.get(one.problem, []), span, budget()) for one in table]
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
            "hours": _hours(begin, end) if begin and end else 0,
            "version": harness.__version__,
            "commit_url": commit_url,
            "entries": index.count(),
            "other_problems": others,
        },
        "history": outdated_note(table),
        "weakened": {"symbol": SYMBOL, "notes": weakness_notes(table)},
        "headline": _headline(shown, table, accounts),
        "problems": shown,
        "moves": _moves(repo, branch, run, target, begin),
        "spend": _spend(made, accounts, begin),
        "verdicts": _verdicts(made),
    }


def _asked(repo: Repo, branch: str, run: str, target: str) -> set[str]:
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


def _time_span(index: Index, run: str, target: str) -> tuple[datetime | None, datetime | None]:
    found = index.query("SELECT min(at), max(at) FROM entries WHERE run = ? AND target = ?", (run, target))[0]
    first, last = (datetime.fromisoformat(at) if at else None for at in found)
    return first, last


def _hours(begin: datetime | None, at: datetime | str) -> float:
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return round((moment - begin).total_seconds() / 3600, 3) if begin else 0.0


def _evaluations(
    index: Index, run: str, target: str, begin: datetime | None, digests: dict[str, str | None]
) -> dict[str, list[_EvaluationDot]]:
    """Problem -> its evaluations, oldest first."""
    sql = (
        "SELECT problem, seq, at, verdict, speedup, cost_s, problem_digest, judge_protocol FROM entries "
        "WHERE kind = 'evaluation' AND run = ? AND target = ? ORDER BY problem, seq"
    )
    found: dict[str, list[_EvaluationDot]] = defaultdict(list)
    for problem, seq, at, verdict, speedup, cost, digest, protocol in index.query(sql, (run, target)):
        current = digest == digests.get(problem) and protocol == JUDGE_PROTOCOL
        found[problem].append(_EvaluationDot(seq, _hours(begin, at), verdict, speedup, cost or 0.0, current))
    return found


def _problem(
    repo: Repo,
    index: Index,
    standing: Standing,
    made: list[_EvaluationDot],
    span: _Span,
    budget: DetailBudget,
) -> Json:
    champion, best, former = standing.champion, standing.best, next(iter(standing.outdated), None)
    shown = champion or best or former
    entry = index.entry(standing.problem, shown.seq) if shown else None
    begin, target = span.begin, span.target
    measured_again = index.rows(standing.problem, run=span.run, target=target, kind="confirmation")
    present = [row for row in measured_again if row.problem_digest == standing.problem_digest]
    confirmations = {row.cites: row for row in present if row.cites}
    seqs = step_seqs(index, standing, confirmations, span.run)
    rows = [row for row in (index.row(standing.problem, seq) for seq in seqs) if row is not None]
    steps = step_rows(repo, index, standing, rows, confirmations, span.branch, budget)
    for step, row in zip(steps, rows, strict=True):
        step["at"] = _hours(begin, row.at)
    passed = [row for row in made if row.current and row.verdict == Verdict.PASSED]
    dots = [(row.at, row.speedup) for row in passed if row.speedup]
    suite, _, name = standing.problem.partition("/")
    return {
        "key": standing.problem,
        "suite": suite,
        "name": name,
        "state": _state(standing, made),
        "judge_protocol": shown.judge_protocol if shown else None,
        "baseline_us": short(standing.baseline_us),
        "bound_us": short(_bound(entry)),
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
        "at": _hours(begin, shown.at) if shown and begin else None,
        "against": _against(index, standing, target, entry if champion else None),
        "evaluations": standing.evaluations,
        "verdicts": dict(standing.verdicts),
        "workers": len(standing.workers),
        "duplicates": standing.duplicates,
        "since_gain": standing.since_gain,
        "cost_s": round(standing.cost_s, 1),
        "steps": steps,
        "dots": [[at, short(speedup)] for at, speedup in _thinned(dots)],
    }


def _state(standing: Standing, made: list[_EvaluationDot]) -> str:
    """State of a problem; `outdated`: measured only by an older judge protocol, whose numbers do not count."""
    if standing.champion:
        return "confirmed"
    if standing.best:
        return "unconfirmed"
    if standing.outdated:
        return "outdated"
    return "none" if made else "untried"


def _bound(entry: Entry | None) -> float | None:
    """Geometric mean of the workloads' speed-of-light bounds, where each has one."""
    bounds = [one.sol_us for one in entry.workloads if one.sol_us] if entry else []
    return geometric_mean(bounds) if entry and bounds and len(bounds) == len(entry.workloads) else None


def _against(index: Index, standing: Standing, target: str, champion: Entry | None) -> Json:
    """The champion's speed-up over single variants of the baseline, through the one it was measured against.

    ratio = (variant / the raced one, by the champion's clock) x (speed-up over the raced one), workload by workload.
    """
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


def _headline(shown: list[Json], table: Sequence[Standing], accounts: list[Json]) -> Json:
    confirmed = [one for one in shown if one["state"] == "confirmed"]
    speedups = [max(1.0, one["speedup"]) if one["state"] == "confirmed" else 1.0 for one in shown]
    scores = [
        one["score"] if one["state"] == "confirmed" and one["score"] is not None else UNBEATEN_SCORE for one in shown
    ]
    agents = [one["against"].get("baseline") for one in confirmed if "baseline" in one["against"]]
    eager = [one["against"].get("eager") for one in confirmed if "eager" in one["against"]]
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
        "evaluations": sum(one.evaluations for one in table),
        "duplicates": sum(one.duplicates for one in table),
        "device_hours": round(sum(one.cost_s for one in table) / 3600, 3),
        "usd": round(sum(float(one.get("usd") or 0) for one in accounts), 2) if accounts else None,
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
                moves.append([_hours(begin, record["at"]), worker, problem, reasons.get(worker, "")])
    return moves[-_MOST_MOVES:]


def _spend(made: dict[str, list[_EvaluationDot]], accounts: list[Json], begin: datetime | None) -> list[list[float]]:
    """Hours -> device hours and dollars spent by then, at most so many points."""
    events = [(row.at, row.cost_s / 3600, 0.0) for rows in made.values() for row in rows]
    events += [
        (_hours(begin, str(one.get("ended") or one.get("at"))), 0.0, float(one.get("usd") or 0)) for one in accounts
    ]
    events.sort()
    points, device, usd = [], 0.0, 0.0
    stride = max(1, len(events) // 300)
    for number, (at, hours, dollars) in enumerate(events):
        device, usd = device + hours, usd + dollars
        if number % stride == 0 or number == len(events) - 1:
            points.append([at, short(device) or 0.0, short(usd) or 0.0])
    return points


def _verdicts(made: dict[str, list[_EvaluationDot]]) -> Json:
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


def _thinned(dots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    stride = math.ceil(len(dots) / _MOST_DOTS) if dots else 1
    return dots[::stride]
