"""Candidates: the rule which commits make one, and the candidates of one problem, judged or still under way."""

from __future__ import annotations

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

_LARGEST_SOURCE = 1 << 20
"""Bytes of a file beyond which it is not shown to agents."""


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(frozen=True)
class TriedCandidate:
    """One candidate's tree, who made it, and what became of it. `verdict` is null while it is under way."""

    tree: str
    worker: str
    verdict: Verdict | None
    speedup: float | None = None
    reason: str | None = None
    commit: str = ""
    message: str = ""
    """The first line of its commit; empty where its branch is gone."""


@dataclass(frozen=True)
class CommittedCandidate:
    """A solution tree in the first commit of a worker's branch that makes it a candidate."""

    commit: str
    tree: str
    branch: str
    worker: str
    problem: str
    at: int
    """The commit's time, seconds since 1970."""
    subject: str
    """The first line of the commit's message."""


def committed_candidates(
    repo: Repo, branch: str, tip: str, base: str, target: str, *, since: str | None = None
) -> list[CommittedCandidate]:
    """Return every candidate for `target` in the commits of a branch that `base` does not have.

    A commit makes its solution tree a candidate when it changes the solution, or when it has the trailer `Worker`: a
    submission may repeat a solution that was there before. Commits that the base lost in a reset do neither.

    Args:
        repo: the workspace's repository.
        branch: `agents/<run>/<worker>/<suite>/<name>`; a branch of another form has no candidates.
        tip: the branch's commit.
        base: the coordination branch's commit, or an earlier tip of the branch.
        target: whose solution directory.
        since: an earlier tip of the branch. Its candidates are omitted if the branch has only new commits since then.

    Returns:
        The candidates, oldest first; each tree once, with its first commit.
    """
    place = parse_agent_branch(branch)
    if place is None:
        return []
    path = solution_path(place.problem, target)
    found: dict[str, CommittedCandidate] = {}
    grown = repo.line_of_commits(tip, since) if since is not None else None
    for commit in grown if grown is not None else repo.new_commits(tip, base):
        tree = repo.tree_of(commit.id, path)
        if tree is None or tree in found:
            continue
        if "Worker" in commit.trailers or all(repo.tree_of(parent, path) != tree for parent in commit.parents):
            found[tree] = CommittedCandidate(
                commit.id, tree, branch, place.worker, place.problem, commit.at, commit.subject
            )
    return list(found.values())


@dataclass
class Tried:
    """The candidates of one problem at a time, for one target of one run. Not for use from several threads."""

    workspace: Workspace
    repo: Repo
    config: Config
    target: str
    _problem: str = ""
    _digest: str = ""
    _base: str = ""
    _committed: dict[str, tuple[str, dict[str, CommittedCandidate]]] = field(default_factory=dict)
    """Branch -> (its tip, tree -> candidate). Branches only grow, so each commit is read once."""

    def __post_init__(self) -> None:
        self.index = Index(self.workspace, branch=self.config.coordination_branch)

    def begin(self, problem: str, directory: Path) -> None:
        """Turn to a problem, whose files lie in `directory`."""
        self._problem, self._digest = problem, problem_digest(directory)
        self._base = self.repo.tip(self.config.coordination_branch)
        self._committed = {}

    def candidates(self) -> tuple[TriedCandidate, ...]:
        """Every candidate of the problem as it is now: first the judged ones, then those under way."""
        judged = {row.tree: row for row in self._evaluations() if row.tree}
        made = self._trees()
        found = []
        for tree, row in judged.items():
            verdict, message = Verdict(row.verdict or Verdict.RUNTIME_ERROR), made[tree].subject if tree in made else ""
            worker, commit = row.worker or "", row.commit or ""
            found.append(TriedCandidate(tree, worker, verdict, row.speedup, row.reason, commit, message))
        waiting = {tree: each for tree, each in made.items() if tree not in judged}
        under_way = (
            TriedCandidate(tree, each.worker, None, commit=each.commit, message=each.subject)
            for tree, each in waiting.items()
        )
        return (*found, *under_way)

    def entry(self, tree: str) -> Entry | None:
        """The ledger's entry of a candidate."""
        row = next((row for row in reversed(self._evaluations()) if row.tree == tree), None)
        return self.index.entry(row.problem, row.seq) if row else None

    def champion_tree(self) -> str | None:
        """The champion's tree, where there is one."""
        champion = self.champion()
        return champion.tree if champion else None

    def champion(self) -> Row | None:
        """Return the confirmation of the champion; None when there is no champion."""
        self.index.refresh(self.repo)
        rows = self.index.rows(self._problem, run=self.config.run, target=self.target, kind="confirmation")
        present = [row for row in rows if row.problem_digest == self._digest]
        # Until a champion of an older judge protocol is measured again, it is still the best solution to start from.
        failed = {row.tree for row in self._evaluations() if row.verdict != Verdict.PASSED}
        older = [row for row in present if row.tree not in failed]
        protocols = sorted({row.judge_protocol or 0 for row in older}, reverse=True)
        return next(filter(None, (champion_of(older, protocol) for protocol in protocols)), None)

    def sources(self, commit: str) -> dict[str, str]:
        """Return the text files of a commit's solution by name in its directory; empty if the commit is gone."""
        if not self.repo.has_object(commit):
            return {}
        files = self._solution_files(commit)
        return {name: data.decode() for name, data in files.items() if len(data) <= _LARGEST_SOURCE and _is_text(data)}

    def place_champion(self, directory: Path) -> bool:
        """Replace a solution directory's files by the champion's, where there is one; whether there is."""
        champion = self.champion()
        if champion is None or champion.commit is None:
            return False
        if not self.repo.has_object(champion.commit):
            raise ConfigurationError(
                f"the champion's commit {champion.commit} is gone",
                where=self._problem,
                remedy="harness audit says what else is",
            )
        directory.mkdir(parents=True, exist_ok=True)
        files = {directory / name: data for name, data in self._solution_files(champion.commit).items()}
        for obsolete in [path for path in directory.rglob("*") if path.is_file() and path not in files]:
            obsolete.unlink()
        for file, data in files.items():
            if not file.is_file() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        return True

    def _solution_files(self, commit: str) -> dict[str, bytes]:
        """Return the files of a commit's solution, by name in its directory."""
        path = solution_path(self._problem, self.target)
        blobs = self.repo.read_many(commit, self.repo.files(commit, path))
        return {name.removeprefix(f"{path}/"): data for name, data in blobs.items()}

    def _evaluations(self) -> list[Row]:
        """Evaluations that count. The daemon judges again what has only older ones: it is under way."""
        self.index.refresh(self.repo)
        rows = self.index.rows(self._problem, target=self.target, kind="evaluation")
        return [row for row in rows if row.problem_digest == self._digest and counts(row)]

    def _trees(self) -> dict[str, CommittedCandidate]:
        """Tree -> candidate, of every candidate on the run's branches."""
        for branch, tip in self.repo.branches(run_branches(self.config.run)).items():
            place = parse_agent_branch(branch)
            if place is None or place.problem != self._problem:
                continue
            known_tip, trees = self._committed.get(branch, (self._base, {}))
            if known_tip == tip:
                continue
            for each in committed_candidates(self.repo, branch, tip, known_tip, self.target):
                trees.setdefault(each.tree, each)
            self._committed[branch] = (tip, trees)
        return {tree: made for _, trees in self._committed.values() for tree, made in trees.items()}
