"""Submission of an edited solution as a candidate, and the wait for its judgement."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from harness.errors import ConfigurationError, FormatError
from harness.failpoints import failpoint
from harness.formats.solutions import load_solution
from harness.git.repo import Repo
from harness.git.solution_commits import Submission, commit_solution
from harness.model.champions import counts
from harness.model.entry import Entry
from harness.model.languages import Language
from harness.model.paths import WORKTREE_FORM, parse_worktree_path, solution_path
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch

_LOOK_EVERY_S = 5.0
"""Interval at which the ledger is queried besides the outcome file, which may have been deleted."""


@dataclass(frozen=True)
class SubmissionPlace:
    """A worktree with its worker and problem."""

    workspace: Workspace
    worktree: Path
    worker: str
    problem: str


def locate(start: Path | None = None) -> SubmissionPlace:
    """Return the worktree that contains `start` (default: the current directory).

    Raises:
        ConfigurationError: it is not inside `workspaces/<worker>/<suite>/<name>/` of a workspace.
    """
    start_directory = (start or Path.cwd()).resolve()
    for directory in (start_directory, *start_directory.parents):
        marker = directory / ".git"
        if not marker.exists():
            continue
        # The workspace is the checkout of the repository that the worktree belongs to.
        root = Workspace(directory).git_common_dir.parent
        if marker.is_file() and directory.is_relative_to(root):
            place = parse_worktree_path(directory.relative_to(root).as_posix())
            if place is not None:
                return SubmissionPlace(Workspace(root), directory, *place)
        break
    raise ConfigurationError(
        f"{start_directory} is not inside a worker's worktree",
        remedy=f"change into {WORKTREE_FORM} of a workspace and submit from there",
    )


def trailers(
    *, run: str, worker: str, agent: str, session: str, model: str | None = None, cost_usd: float = 0.0
) -> dict[str, str]:
    """Return the trailers of a candidate's commit.

    Args:
        model: the model's name; None for an agent without one.
        cost_usd: the session's cost so far, in USD.
    """
    return {
        "Run": run,
        "Worker": worker,
        "Agent": agent,
        "Session": session,
        "Model": model or "none",
        "Cost-USD": f"{cost_usd:.4f}",
    }


def submit(
    repo: Repo,
    worktree: Path,
    *,
    problem: str,
    target: str,
    message: str,
    commit_trailers: Mapping[str, str],
    base: str,
    languages: Sequence[Language] = (),
) -> Submission:
    """Check the present solution and commit it on the worktree's branch.

    Args:
        message: the commit message without trailers.
        base: the coordination branch. A solution that it already holds gets a commit of its own and becomes a candidate
            too, because only commits that the base lacks are judged.
        languages: the languages that the run allows; empty for all.

    Raises:
        FormatError: the solution is invalid, or in a language that the run does not allow.
        RepositoryError: files outside the solution were changed.
    """
    directory = worktree / solution_path(problem, target)
    solution = load_solution(directory)
    if languages and solution.spec.language not in languages:
        raise FormatError(
            f"`language` is {solution.spec.language}; this run allows {', '.join(languages)}",
            where=str(directory / "solution.yaml"),
            remedy="write the solution in a language of the run (harness.yaml: languages)",
        )
    failpoint("submit.before_commit")
    submission = commit_solution(repo, worktree, problem, target, message, commit_trailers)
    if submission.unchanged and repo.is_ancestor(submission.commit, repo.tip(base)):
        submission = commit_solution(repo, worktree, problem, target, message, commit_trailers, even_if_unchanged=True)
    failpoint("submit.after_commit")
    return submission


def wait_for_outcome(
    workspace: Workspace,
    problem: str,
    target: str,
    tree: str,
    *,
    find_entry: Callable[[], Entry | None],
    stop: threading.Event,
    deadline_s: float,
) -> Entry | None:
    """Wait for a candidate's entry.

    Args:
        tree: git tree id of the candidate's solution directory.
        find_entry: looks the candidate up in the ledger, in case the outcome file was deleted.

    Returns:
        The entry; None if `stop` was set first.

    Raises:
        TimeoutError: no outcome within `deadline_s`.
    """
    file = workspace.outcome_file(problem, target, tree)
    until = time.monotonic() + deadline_s
    with FileWatch(file.parent) as changes:
        entry = read_outcome(file) or find_entry()
        while entry is None and not stop.is_set():
            if time.monotonic() > until:
                raise TimeoutError(f"no outcome for {problem} tree {tree} within {deadline_s:.0f} s")
            entry = read_outcome(file) if changes.wait(_LOOK_EVERY_S, stop=stop) else find_entry()
    failpoint("submit.after_outcome")
    return entry


def read_outcome(file: Path) -> Entry | None:
    """Return the entry in an outcome file; None if it is missing, unreadable or does not count."""
    with contextlib.suppress(FileNotFoundError, ValidationError):
        entry = Entry.model_validate_json(file.read_bytes())
        return entry if counts(entry) else None
    return None
