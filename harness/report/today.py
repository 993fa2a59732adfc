"""The daily summary of a run: gains, stuck problems, cost, and candidates that need a person's attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.ledger import read_records
from harness.ledger.standings import Standing, known_targets
from harness.model.champions import champion_of
from harness.model.config import Config
from harness.model.entry import stamp
from harness.model.paths import ACCOUNTS, run_merge_branches, solution_path
from harness.model.printable import count_of
from harness.model.verdict import Verdict
from harness.model.weaknesses import weakness_mark


@dataclass(frozen=True)
class Improved:
    """A problem with a better champion than a day ago."""

    problem: str
    speedup: float
    before: float | None
    """The champion's speed-up a day ago; None without a champion then."""
    worker: str | None
    weakened: bool = False
    """True if the speed-up has weaknesses (`harness.model.weaknesses`)."""


@dataclass(frozen=True)
class Waiting:
    """A candidate that needs a person's attention, and the command that shows it."""

    description: str
    problem: str
    seq: int
    command: str

    def row(self) -> dict[str, object]:
        """Return the candidate as `harness status --json` prints it."""
        return {"what": self.description, "problem": self.problem, "seq": self.seq, "command": self.command}


@dataclass
class Today:
    """The summary of one run and target since a time."""

    since: str
    improved: list[Improved] = field(default_factory=list)
    stuck: list[tuple[str, str]] = field(default_factory=list)
    """Problem, and the reason why it counts as stuck."""
    suspects: list[Waiting] = field(default_factory=list)
    unmerged: list[Waiting] = field(default_factory=list)
    """Champions without a pull request or merge."""
    device_s: float = 0.0
    device_s_since: float = 0.0
    usd: float | None = None
    usd_since: float | None = None

    def for_scripts(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        suspects, unmerged = ([item.row() for item in group] for group in (self.suspects, self.unmerged))
        return {**asdict(self), "suspects": suspects, "unmerged": unmerged}


def today(
    repo: Repo, index: Index, config: Config, table: Sequence[Standing], *, run: str, target: str, base: str
) -> Today:
    """Return the summary of the last 24 hours.

    Args:
        index: index of the ledger, refreshed by the caller.
        table: the standings of this run and target.
        base: the branch that solutions are merged into.
    """
    summary = Today(stamp(datetime.now(UTC) - timedelta(days=1)))
    summary.improved = _improved(index, table, run, target, summary.since)
    summary.stuck = _stuck(table, config)
    summary.suspects = _suspects(index, table, run, target)
    has_several_targets = config.target is None and len(known_targets(index, run)) > 1
    target_option = f" --target {target}" if has_several_targets else ""
    run_option = f" --run {run}" if run != config.run else ""
    summary.unmerged = [
        replace(champion, command=f"{champion.command}{target_option}{run_option}")
        for champion in champions_waiting(repo, table, run, target, base)
    ]
    summary.device_s = sum(standing.cost_s for standing in table)
    sql = "SELECT total(cost_s) FROM entries WHERE run = ? AND target = ? AND at >= ?"
    summary.device_s_since = float(index.query(sql, (run, target, summary.since))[0][0])
    accounts = read_records(repo.workspace, repo, ACCOUNTS, branch=config.coordination_branch)
    spent = [
        (str(record.get("ended") or record["at"]), float(record.get("usd") or 0))
        for record in accounts
        if record.get("run") == run
    ]
    if spent:
        summary.usd = sum(usd for _, usd in spent)
        summary.usd_since = sum(usd for at, usd in spent if at >= summary.since)
    return summary


def champions_waiting(repo: Repo, table: Sequence[Standing], run: str, target: str, base: str) -> list[Waiting]:
    """Return the confirmed champions that neither the main branch nor a win branch has, the fastest first.

    Args:
        table: the standings of this run and target.
        base: the branch that solutions are merged into.
    """
    tip = repo.tip(base)
    wins = list(repo.branches(run_merge_branches(run)).values())
    champions = [(standing.problem, standing.champion) for standing in table if standing.champion]
    waiting = []
    for problem, champion in sorted(champions, key=lambda pair: -(pair[1].speedup or 0)):
        path = solution_path(problem, target)
        if any(repo.tree_of(commit, path) == champion.tree for commit in (tip, *wins)):
            continue
        mark = weakness_mark(champion.weaknesses)
        description = f"{problem} {champion.speedup:.3f}x{mark}" if champion.speedup else problem
        waiting.append(Waiting(description, problem, champion.seq, f"harness pr {problem}"))
    return waiting


def _improved(index: Index, table: Sequence[Standing], run: str, target: str, since: str) -> list[Improved]:
    improved = []
    for standing in table:
        champion = standing.champion
        if champion is None or champion.at < since:
            continue
        rows = index.rows(standing.problem, run=run, target=target, kind="confirmation")
        earlier = [row for row in rows if row.at < since and row.problem_digest == champion.problem_digest]
        former = champion_of(earlier)
        if former is None and champion.tree in _older_champions(earlier):
            continue  # the champion was measured again, but is not another one
        before, weakened = former.speedup if former else None, bool(champion.weaknesses)
        improved.append(Improved(standing.problem, champion.speedup or 0.0, before, champion.worker, weakened))
    return sorted(improved, key=lambda gain: -(gain.speedup / (gain.before or 1.0)))


def _older_champions(confirmations: Sequence[Row]) -> set[str | None]:
    """Return the trees of the champions by older judge protocols."""
    protocols = {row.judge_protocol or 0 for row in confirmations}
    return {former.tree for protocol in protocols if (former := champion_of(confirmations, protocol))}


def _stuck(table: Sequence[Standing], config: Config) -> list[tuple[str, str]]:
    stuck = []
    for standing in table:
        if standing.evaluations >= config.policy.slice_evaluations and not standing.verdicts.get(Verdict.PASSED):
            stuck.append((standing.problem, f"no candidate passed in {count_of(standing.evaluations, 'evaluation')}"))
        elif standing.since_gain >= config.policy.stale_after:
            stuck.append((standing.problem, f"{count_of(standing.since_gain, 'evaluation')} without a gain"))
    return stuck


def _suspects(index: Index, table: Sequence[Standing], run: str, target: str) -> list[Waiting]:
    digests = {standing.problem: standing.problem_digest for standing in table}
    where = "WHERE verdict = ? AND kind = 'evaluation' AND run = ? AND target = ? ORDER BY at DESC"
    return [
        Waiting(f"{row.problem} seq {row.seq}: {row.reason}", row.problem, row.seq, f"harness review {row.branch}")
        for row in index.select(where, (str(Verdict.SUSPECT), run, target))
        if row.problem_digest == digests.get(row.problem)
    ]
