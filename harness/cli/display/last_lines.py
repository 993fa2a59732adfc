"""The last lines of `harness start`: submissions that are not judged yet, and the next step for a person."""

from __future__ import annotations

from collections.abc import Sequence

from harness.git.repo import Repo
from harness.ledger.candidates import CommittedCandidate, committed_candidates
from harness.ledger.index import Index
from harness.ledger.standings import Standing
from harness.model.config import Config
from harness.model.paths import run_branches

_NAMED = 5
_ID = 12


def pending_candidates(repo: Repo, index: Index, config: Config, target: str) -> list[CommittedCandidate]:
    """Return the run's submissions without an evaluation in the ledger, oldest first.

    The daemon finds them on their branches and judges them when `harness start` runs again.

    Args:
        repo: the workspace's repository.
        index: index of the ledger.
        config: names the run and the coordination branch.
        target: such as `cpu` or `h200`.
    """
    base = repo.tip(config.coordination_branch)
    judged = {(row.problem, row.tree) for row in index.rows(target=target, kind="evaluation")}
    candidates = [
        candidate
        for branch, tip in repo.branches(run_branches(config.run)).items()
        for candidate in committed_candidates(repo, branch, tip, base, target)
        if (candidate.problem, candidate.tree) not in judged
    ]
    return sorted(candidates, key=lambda candidate: candidate.at)


def pending_line(pending: Sequence[CommittedCandidate]) -> str:
    """Return the line that names submissions without a verdict."""
    shown = ", ".join(
        f"{candidate.problem} by {candidate.worker} ({candidate.commit[:_ID]})" for candidate in pending[:_NAMED]
    )
    omitted = f" and {len(pending) - _NAMED} more" if len(pending) > _NAMED else ""
    plural = "submission is" if len(pending) == 1 else "submissions are"
    return f"pending: {len(pending)} {plural} not judged yet: {shown}{omitted}; `harness start` judges them"


def next_line(table: Sequence[Standing]) -> str:
    """Return the line that names the next commands for a person after a run with these standings."""
    champions = sum(standing.champion is not None for standing in table)
    if champions:
        noun = "the champion" if champions == 1 else f"the {champions} champions"
        return f"next: `harness review` shows {noun}; `harness report` writes a page about the run"
    if any(standing.evaluations for standing in table):
        return "next: `harness log` shows every verdict; `harness report` writes a page; `harness start` continues"
    return "next: `harness start` continues; `harness doctor` checks its requirements"
