"""What was tried on one problem: by anyone, judged or still under way."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import ConfigurationError
from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.standings import champion_of
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.paths import parse_agent_branch, run_branches, solution_path
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace


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
class _Made:
    """A tree as it was committed first."""

    worker: str
    commit: str
    message: str


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
    _committed: dict[str, tuple[str, dict[str, _Made]]] = field(default_factory=dict)
    """Branch -> (its tip, tree -> its making): branches only grow, so what was read once need not be read again."""

    def __post_init__(self) -> None:
        self._index = Index(self.workspace, branch=self.config.coordination_branch)

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
            verdict, message = Verdict(row.verdict or Verdict.RUNTIME_ERROR), made[tree].message if tree in made else ""
            worker, commit = row.worker or "", row.commit or ""
            found.append(TriedCandidate(tree, worker, verdict, row.speedup, row.reason, commit, message))
        waiting = {tree: each for tree, each in made.items() if tree not in judged}
        under_way = (
            TriedCandidate(tree, each.worker, None, commit=each.commit, message=each.message)
            for tree, each in waiting.items()
        )
        return (*found, *under_way)

    def entry(self, tree: str) -> Entry | None:
        """The ledger's entry of a candidate."""
        row = next((row for row in reversed(self._evaluations()) if row.tree == tree), None)
        return self._index.entry(row.problem, row.seq) if row else None

    def champion_tree(self) -> str | None:
        """The champion's tree, where there is one."""
        champion = self._champion()
        return champion.tree if champion else None

    def _champion(self) -> Row | None:
        self._index.refresh(self.repo)
        rows = self._index.rows(self._problem, run=self.config.run, target=self.target, kind="confirmation")
        return champion_of(row for row in rows if row.problem_digest == self._digest)

    def place_champion(self, directory: Path) -> bool:
        """Replace a solution directory's files by the champion's, where there is one; whether there is."""
        champion = self._champion()
        if champion is None or champion.commit is None:
            return False
        path = solution_path(self._problem, self.target)
        if not self.repo.has_object(champion.commit):
            raise ConfigurationError(
                f"the champion's commit {champion.commit} is gone",
                where=self._problem,
                remedy="harness audit says what else is",
            )
        blobs = self.repo.read_many(champion.commit, self.repo.files(champion.commit, path))
        directory.mkdir(parents=True, exist_ok=True)
        wanted = {directory / name.removeprefix(f"{path}/"): data for name, data in blobs.items()}
        for there in [each for each in directory.rglob("*") if each.is_file() and each not in wanted]:
            there.unlink()
        for file, data in wanted.items():
            if not file.is_file() or file.read_bytes() != data:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(data)
        return True

    def _evaluations(self) -> list[Row]:
        self._index.refresh(self.repo)
        rows = self._index.rows(self._problem, target=self.target, kind="evaluation")
        return [row for row in rows if row.problem_digest == self._digest]

    def _trees(self) -> dict[str, _Made]:
        """Tree -> its making, of every candidate on the run's branches."""
        path = solution_path(self._problem, self.target)
        for branch, tip in self.repo.branches(run_branches(self.config.run)).items():
            place = parse_agent_branch(branch)
            if place is None or place.problem != self._problem:
                continue
            known_tip, trees = self._committed.get(branch, (self._base, {}))
            if known_tip == tip:
                continue
            for commit in self.repo.new_commits(tip, known_tip):
                tree = self.repo.tree_of(commit.id, path)
                if tree:
                    trees.setdefault(tree, _Made(place.worker, commit.id, commit.subject))
            self._committed[branch] = (tip, trees)
        return {tree: made for _, trees in self._committed.values() for tree, made in trees.items()}
