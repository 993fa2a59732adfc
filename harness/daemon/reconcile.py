"""Compares refs with the ledger: which candidates there are on a run's branches. Git is the source of truth."""

from __future__ import annotations

from dataclasses import dataclass

from harness.git.repo import Repo
from harness.model.paths import parse_agent_branch, solution_path


@dataclass(frozen=True)
class Candidate:
    """A solution tree in a commit of a worker's branch."""

    commit: str
    tree: str
    branch: str
    worker: str
    problem: str
    at: int
    """The commit's time, seconds since 1970."""


def candidates(repo: Repo, branch: str, tip: str, base: str, target: str) -> list[Candidate]:
    """Every solution tree for `target` in the commits of a branch that `base` has not, oldest first, each once.

    A commit counts when it changes the solution, or says that it is a submission (a solution that stood there before
    may be submitted as it is). Commits of the base that were there before somebody reset it do neither.
    """
    place = parse_agent_branch(branch)
    if place is None:
        return []
    path = solution_path(place.problem, target)
    found: dict[str, Candidate] = {}
    for commit in repo.new_commits(tip, base):
        tree = repo.tree_of(commit.id, path)
        if tree is None or tree in found:
            continue
        if "Worker" in commit.trailers or all(repo.tree_of(parent, path) != tree for parent in commit.parents):
            found[tree] = Candidate(commit.id, tree, branch, place.worker, place.problem, commit.at)
    return list(found.values())
