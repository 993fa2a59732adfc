"""The digest of a problem as a commit has it, without a checkout."""

from __future__ import annotations

from harness.formats.problems import affects_judging, digest_of
from harness.git.repo import Repo
from harness.model.paths import problem_path


def digest_at(repo: Repo, commit: str, problem: str) -> str | None:
    """Return `harness.formats.problems.problem_digest` of the problem in a commit; None where there is none."""
    directory = f"{problem_path(problem)}/"
    names = [name for name in repo.files(commit, directory.rstrip("/")) if affects_judging(name[len(directory) :])]
    files = {name[len(directory) :]: data for name, data in repo.read_many(commit, names).items()}
    return digest_of(files) if files else None
