"""The digest of a problem in a commit, without a checkout."""

from __future__ import annotations

from harness.formats.problems import affects_judging, digest_of
from harness.git.repo import Repo
from harness.model.paths import problem_path


def digest_at(repo: Repo, commit: str, problem: str) -> str | None:
    """Return `harness.formats.problems.problem_digest` of a problem in a commit; None if the commit lacks it.

    Args:
        commit: a commit id or revision expression.
    """
    directory = f"{problem_path(problem)}/"
    paths = [path for path in repo.files(commit, directory.rstrip("/")) if affects_judging(path[len(directory) :])]
    files = {path[len(directory) :]: data for path, data in repo.read_many(commit, paths).items()}
    return digest_of(files) if files else None
