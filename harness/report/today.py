"""The start of the day: what improved, what is stuck, what it cost, what waits for a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.ledger import read_records
from harness.ledger.standings import Standing
from harness.model.champions import champion_of
from harness.model.config import Config
from harness.model.entry import stamp
from harness.model.paths import ACCOUNTS, run_merge_branches, solution_path
from harness.model.verdict import Verdict
from harness.model.weaknesses import weakness_mark


@dataclass(frozen=True)
class Improved:
    """A problem with a better champion than a day ago."""

    problem: str
    speedup: float
    before: float | None
    """null: it had none."""
    worker: str | None
    weakened: bool = False
    """The speed-up means less; see `harness.model.weaknesses`."""


@dataclass(frozen=True)
class Waiting:
    """Something that only a person can settle, and the command that shows it."""

    what: str
    problem: str
    seq: int
    command: str


@dataclass
class Today:
    """One run and target since a moment."""

    since: str
    improved: list[Improved] = field(default_factory=list)
    stuck: list[tuple[str, str]] = field(default_factory=list)
    """Problem, and why it counts as stuck."""
    suspects: list[Waiting] = field(default_factory=list)
    unmerged: list[Waiting] = field(default_factory=list)
    """Champions without a pull request or merge."""
    device_s: float = 0.0
    device_s_since: float = 0.0
    usd: float | None = None
    usd_since: float | None = None

    def for_scripts(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def today(
    repo: Repo,
    index: Index,
    config: Config,
    table: Sequence[Standing],
    *,
    run: str,
    target: str,
    base: str,
    now: datetime | None = None,
) -> Today:
    """What a person wants to know in the morning.

    Args:
        repo: the workspace's repository.
        index: refreshed.
        config: when a problem counts as stuck; the coordination branch.
        table: the standings of this run and target.
        run: the run.
        target: the target.
        base: the branch that solutions are merged into.
        now: the present; a day before it is what "since yesterday" means.
    """
    found = Today(stamp((now or datetime.now(UTC)) - timedelta(days=1)))
    found.improved = _improved(index, table, run, target, found.since)
    found.stuck = _stuck(table, config)
    found.suspects = _suspects(index, table, run, target)
    found.unmerged = champions_waiting(repo, table, run, target, base)
    found.device_s = sum(one.cost_s for one in table)
    sql = "SELECT total(cost_s) FROM entries WHERE run = ? AND target = ? AND at >= ?"
    found.device_s_since = float(index.query(sql, (run, target, found.since))[0][0])
    accounts = read_records(repo.workspace, repo, ACCOUNTS, branch=config.coordination_branch)
    spent = [
        (str(one.get("ended") or one["at"]), float(one.get("usd") or 0)) for one in accounts if one.get("run") == run
    ]
    if spent:
        found.usd = sum(usd for _, usd in spent)
        found.usd_since = sum(usd for at, usd in spent if at >= found.since)
    return found


def champions_waiting(repo: Repo, table: Sequence[Standing], run: str, target: str, base: str) -> list[Waiting]:
    """Confirmed champions that neither the main branch nor a win branch has, the fastest first."""
    tip = repo.tip(base)
    wins = list(repo.branches(run_merge_branches(run)).values())
    found = []
    for one in sorted(table, key=lambda each: -(each.champion.speedup or 0) if each.champion else 0):
        if one.champion is None:
            continue
        place = solution_path(one.problem, target)
        if any(repo.tree_of(commit, place) == one.champion.tree for commit in (tip, *wins)):
            continue
        mark = weakness_mark(one.champion.weaknesses)
        what = f"{one.problem} {one.champion.speedup:.3f}x{mark}" if one.champion.speedup else one.problem
        found.append(Waiting(what, one.problem, one.champion.seq, f"harness pr {one.problem}"))
    return found


def _improved(index: Index, table: Sequence[Standing], run: str, target: str, since: str) -> list[Improved]:
    where = "WHERE kind = 'confirmation' AND run = ? AND target = ? AND at < ? ORDER BY problem, seq"
    earlier: dict[str, list[Row]] = {}
    fresh = {one.problem: one.champion for one in table if one.champion and one.champion.at >= since}
    if fresh:
        for row in index.select(where, (run, target, since)):
            earlier.setdefault(row.problem, []).append(row)
    found = []
    for problem, champion in fresh.items():
        former = champion_of(row for row in earlier.get(problem, []) if row.problem_digest == champion.problem_digest)
        if former is None and champion.tree in _older_champions(earlier.get(problem, []), champion):
            continue  # measured again, and not improved
        before = former.speedup if former else None
        weakened = bool(champion.weaknesses)
        found.append(Improved(problem, champion.speedup or 0.0, before, champion.worker, weakened))
    return sorted(found, key=lambda one: -(one.speedup / (one.before or 1.0)))


def _older_champions(confirmations: Sequence[Row], champion: Row) -> set[str | None]:
    """Trees of the champions by older judge protocols, of the same form of the problem."""
    same = [row for row in confirmations if row.problem_digest == champion.problem_digest]
    protocols = {row.judge_protocol or 0 for row in same}
    return {former.tree for protocol in protocols if (former := champion_of(same, protocol))}


def _stuck(table: Sequence[Standing], config: Config) -> list[tuple[str, str]]:
    found = []
    for one in table:
        if one.evaluations >= config.policy.slice_evaluations and not one.verdicts.get(Verdict.PASSED):
            found.append((one.problem, f"nothing passed in {one.evaluations} evaluations"))
        elif one.since_gain >= config.policy.stale_after:
            found.append((one.problem, f"{one.since_gain} evaluations without a gain"))
    return found


def _suspects(index: Index, table: Sequence[Standing], run: str, target: str) -> list[Waiting]:
    digests = {one.problem: one.problem_digest for one in table}
    where = "WHERE verdict = 'SUSPECT' AND kind = 'evaluation' AND run = ? AND target = ? ORDER BY at DESC"
    return [
        Waiting(f"{row.problem} seq {row.seq}: {row.reason}", row.problem, row.seq, f"harness review {row.branch}")
        for row in index.select(where, (run, target))
        if row.problem_digest == digests.get(row.problem)
    ]
