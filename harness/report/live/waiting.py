"""Submissions that wait for a judge: tips of the run's branches whose solution has no evaluation."""

from __future__ import annotations

from harness.git.repo import Repo
from harness.ledger.candidates import CommittedCandidate, committed_candidates
from harness.ledger.index import Index
from harness.model.paths import parse_agent_branch, run_branches, solution_path

_MAX_SUBMISSIONS = 30


class WaitingSubmissions:
    """Finds the submissions without an evaluation; a branch is read again only if its tip has changed.

    Args:
        repo: the workspace's repository.
        index: index of the ledger, refreshed by the caller.
        branch: the coordination branch.
        run: name of the run.
        target: such as `cpu` or `h200`.
    """

    def __init__(self, repo: Repo, index: Index, *, branch: str, run: str, target: str) -> None:
        self._repo, self._index = repo, index
        self._branch, self._run, self._target = branch, run, target
        self._tips: dict[str, str] = {}
        self._unjudged: dict[str, CommittedCandidate | None] = {}
        """Branch -> its newest candidate."""

    def submissions(self) -> list[CommittedCandidate]:
        """Return at most 30 waiting submissions, oldest first."""
        tips = self._repo.branches(run_branches(self._run))
        for branch, tip in tips.items():
            if self._tips.get(branch) != tip:
                self._unjudged[branch] = self._candidate(branch, tip)
        self._tips = tips
        self._unjudged = {
            branch: candidate
            for branch, candidate in self._unjudged.items()
            if branch in tips and candidate and not self._is_judged(candidate.problem, candidate.tree)
        }
        submissions = filter(None, self._unjudged.values())
        return sorted(submissions, key=lambda candidate: candidate.at)[:_MAX_SUBMISSIONS]

    def _candidate(self, branch: str, tip: str) -> CommittedCandidate | None:
        agent_branch = parse_agent_branch(branch)
        tree = self._repo.tree_of(tip, solution_path(agent_branch.problem, self._target)) if agent_branch else None
        if agent_branch is None or tree is None or self._is_judged(agent_branch.problem, tree):
            return None
        base = self._tips.get(branch) or self._repo.tip(self._branch)
        candidates = committed_candidates(self._repo, branch, tip, base, self._target)
        return next((candidate for candidate in reversed(candidates) if candidate.tree == tree), None)

    def _is_judged(self, problem: str, tree: str) -> bool:
        where = "tree = ? AND problem = ? AND target = ? AND kind = 'evaluation'"
        return bool(self._index.query(f"SELECT 1 FROM entries WHERE {where} LIMIT 1", (tree, problem, self._target)))  # noqa: S608
