"""Candidates: the rule by which a commit makes one, and the candidates of one problem, judged or waiting."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ConfigurationError
from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.champions import champion_of, counts
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.paths import parse_agent_branch, run_branches, solution_path
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from harness.workspace.files import replace_files

_LARGEST_SOURCE = 1 << 20
"""Size in bytes above which a file is not shown to agents."""


@dataclass(frozen=True)
class TriedCandidate:
    """One candidate's tree, worker and result. `verdict` is null while it waits for its judgement."""

    tree: str
    worker: str
    verdict: Verdict | None
    speedup: float | None = None
    reason: str | None = None
    commit: str = ""
    message: str = ""
    """The first line of its commit's message; empty if its branch does not exist."""


@dataclass(frozen=True)
class CommittedCandidate:
    """A solution tree in the first commit of a worker's branch that makes it a candidate."""

    commit: str
    tree: str
    branch: str
    worker: str
    problem: str
    at: int
    """The commit's time in seconds since 1970."""
    subject: str
    """The first line of the commit's message."""


def committed_candidates(
    repo: Repo, branch: str, tip: str, base: str, target: str, *, since: str | None = None
) -> list[CommittedCandidate]:
    """Return every candidate for `target` in the commits of a branch that `base` does not have.

    A commit makes its solution tree a candidate when it changes the solution, or when it has the trailer `Worker`: a
    submission may repeat an earlier solution. Commits that the base lost in a reset make no candidates.

    Args:
        branch: `agents/<run>/<worker>/<suite>/<name>`; a branch of another form has no candidates.
        base: the coordination branch's commit, or an earlier tip of the branch.
        since: an earlier tip of the branch. Its candidates are omitted if the branch has only new commits since then.

    Returns:
        The candidates, oldest first; each tree once, with its first commit.
    """
    place = parse_agent_branch(branch)
    if place is None:
        return []
    path = solution_path(place.problem, target)
    candidates: dict[str, CommittedCandidate] = {}
    new_line = repo.line_of_commits(tip, since) if since is not None else None
    for commit in new_line if new_line is not None else repo.new_commits(tip, base):
        tree = repo.tree_of(commit.id, path)
        if tree is None or tree in candidates:
            continue
        if "Worker" in commit.trailers or all(repo.tree_of(parent, path) != tree for parent in commit.parents):
            candidates[tree] = CommittedCandidate(
                commit.id, tree, branch, place.worker, place.problem, commit.at, commit.subject
            )
    return list(candidates.values())


@dataclass
class ProblemCandidates:
    """The candidates of one problem at a time, for one target of one run. Not thread-safe."""

    workspace: Workspace
    repo: Repo
    config: Config
    target: str
    _problem: str = ""
    _digest: str = ""
    _base: str = ""
    _committed: dict[str, tuple[str, dict[str, CommittedCandidate]]] = field(default_factory=dict)
    """Branch -> (its tip, tree -> candidate). Branches only grow, so that each commit is read once."""

    def __post_init__(self) -> None:
        self.index = Index(self.workspace, branch=self.config.coordination_branch)

    def begin(self, problem: str, directory: Path) -> None:
        """Select a problem."""
        self._problem, self._digest = problem, problem_digest(directory)
        self._base = self.repo.tip(self.config.coordination_branch)
        self._committed = {}

    def candidates(self) -> tuple[TriedCandidate, ...]:
        """Return every candidate of the problem's present form: first the judged ones, then those that wait."""
        judged = {row.tree: row for row in self._evaluations() if row.tree}
        committed = self._trees()
        tried = []
        for tree, row in judged.items():
            verdict = Verdict(row.verdict or Verdict.RUNTIME_ERROR)
            message = committed[tree].subject if tree in committed else ""
            worker, commit = row.worker or "", row.commit or ""
            tried.append(TriedCandidate(tree, worker, verdict, row.speedup, row.reason, commit, message))
        for tree, waiting in committed.items():
            if tree not in judged:
                tried.append(TriedCandidate(tree, waiting.worker, None, None, None, waiting.commit, waiting.subject))
        return tuple(tried)

    def entry(self, tree: str) -> Entry | None:
        """Return the ledger's latest entry of a candidate, or None."""
        row = next((row for row in reversed(self._evaluations()) if row.tree == tree), None)
        return self.index.entry(row.problem, row.seq) if row else None

    def champion_tree(self) -> str | None:
        """Return the champion's tree, or None."""
        champion = self.champion()
        return champion.tree if champion else None

    def champion(self) -> Row | None:
        """Return the confirmation of the champion, or None."""
        self.index.refresh(self.repo)
        rows = self.index.rows(self._problem, run=self.config.run, target=self.target, kind="confirmation")
        present = [row for row in rows if row.problem_digest == self._digest]
        # Until a champion of an older judge protocol is measured again, it is still the best solution to start from.
        failed = {row.tree for row in self._evaluations() if row.verdict != Verdict.PASSED}
        older = [row for row in present if row.tree not in failed]
        protocols = sorted({row.judge_protocol or 0 for row in older}, reverse=True)
        return next(filter(None, (champion_of(older, protocol) for protocol in protocols)), None)

    def sources(self, commit: str) -> dict[str, str]:
        """Return the text files of a commit's solution by name in its directory; empty if the commit does not exist."""
        if not self.repo.has_object(commit):
            return {}
        sources = {}
        for name, data in self._solution_files(commit).items():
            with suppress(UnicodeDecodeError):
                if len(data) <= _LARGEST_SOURCE:
                    sources[name] = data.decode()
        return sources

    def place_champion(self, directory: Path) -> bool:
        """Replace a solution directory's files by the champion's; return False without a champion."""
        champion = self.champion()
        if champion is None or champion.commit is None:
            return False
        if not self.repo.has_object(champion.commit):
            raise ConfigurationError(
                f"the champion's commit {champion.commit} is missing",
                where=self._problem,
                remedy="run `harness audit` for other missing objects",
            )
        replace_files(directory, self._solution_files(champion.commit))
        return True

    def _solution_files(self, commit: str) -> dict[str, bytes]:
        """Return the files of a commit's solution, by name in its directory."""
        path = solution_path(self._problem, self.target)
        blobs = self.repo.read_many(commit, self.repo.files(commit, path))
        return {name.removeprefix(f"{path}/"): data for name, data in blobs.items()}

    def _evaluations(self) -> list[Row]:
        """Return the evaluations that count. The daemon judges a candidate with only older ones again: it waits."""
        self.index.refresh(self.repo)
        rows = self.index.rows(self._problem, target=self.target, kind="evaluation")
        return [row for row in rows if row.problem_digest == self._digest and counts(row)]

    def _trees(self) -> dict[str, CommittedCandidate]:
        """Return tree -> candidate, of every candidate on the run's branches."""
        for branch, tip in self.repo.branches(run_branches(self.config.run)).items():
            place = parse_agent_branch(branch)
            if place is None or place.problem != self._problem:
                continue
            last_tip, trees = self._committed.get(branch, (self._base, {}))
            if last_tip == tip:
                continue
            for candidate in committed_candidates(self.repo, branch, tip, last_tip, self.target):
                trees.setdefault(candidate.tree, candidate)
            self._committed[branch] = (tip, trees)
        return dict(item for _, trees in self._committed.values() for item in trees.items())
