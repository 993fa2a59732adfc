"""Submissions that wait for a judge: tips of the run's branches whose solution has no evaluation yet."""

from __future__ import annotations

from harness.git.repo import Repo
from harness.ledger.candidates import CommittedCandidate, committed_candidates
from harness.ledger.index import Index
from harness.model.paths import parse_agent_branch, run_branches, solution_path

_MOST = 30


class WaitingSubmissions:
    """Reads each branch again only when it has moved.

    Args:
        repo: the workspace's repository.
        index: refreshed by the caller.
        branch: the coordination branch.
        run: whose branches.
        target: whose solutions.
    """

    def __init__(self, repo: Repo, index: Index, *, branch: str, run: str, target: str) -> None:
        self._repo, self._index = repo, index
        self._branch, self._run, self._target = branch, run, target
        self._tips: dict[str, str] = {}
        self._unjudged: dict[str, CommittedCandidate] = {}
        """Branch -> its newest candidate."""

    def submissions(self) -> list[CommittedCandidate]:
        """Return those that wait, oldest first, at most thirty."""
        tips = self._repo.branches(run_branches(self._run))
        for branch, tip in tips.items():
            if self._tips.get(branch) != tip:
                self._unjudged.pop(branch, None)
                candidate = self._candidate(branch, tip)
                if candidate is not None:
                    self._unjudged[branch] = candidate
        self._tips = tips
        self._unjudged = {
            branch: one for branch, one in self._unjudged.items() if branch in tips and not self._judged(one)
        }
        return sorted(self._unjudged.values(), key=lambda candidate: candidate.at)[:_MOST]

    def _candidate(self, branch: str, tip: str) -> CommittedCandidate | None:
        place = parse_agent_branch(branch)
        tree = self._repo.tree_of(tip, solution_path(place.problem, self._target)) if place else None
        if place is None or tree is None or self._is_judged(place.problem, tree):
            return None
        base = self._tips.get(branch) or self._repo.tip(self._branch)
        candidates = committed_candidates(self._repo, branch, tip, base, self._target)
        return next((one for one in reversed(candidates) if one.tree == tree), None)

    def _judged(self, candidate: CommittedCandidate) -> bool:
        return self._is_judged(candidate.problem, candidate.tree)

    def _is_judged(self, problem: str, tree: str) -> bool:
        where = "tree = ? AND problem = ? AND target = ? AND kind = 'evaluation'"
        return bool(self._index.query(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", (tree, problem, self._target)))  # noqa: S608
