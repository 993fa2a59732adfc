"""Turning an edited solution into a candidate, and waiting for what the judge says of it."""

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
from harness.git.repo import Repo, Submission
from harness.model.champions import counts
from harness.model.entry import Entry
from harness.model.paths import WORKTREE_FORM, parse_worktree_path, solution_path
from harness.model.solution import Language
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch

_LOOK_EVERY_S = 5.0
"""How often the ledger itself is asked, besides the outcome file: the file may have been thrown away."""


@dataclass(frozen=True)
class SubmissionPlace:
    """Which worker's work on which problem a worktree holds."""

    workspace: Workspace
    worktree: Path
    worker: str
    problem: str


def locate(start: Path | None = None) -> SubmissionPlace:
    """The worktree that contains `start` (default: the current directory).

    Raises:
        ConfigurationError: it is not inside `workspaces/<worker>/<suite>/<name>/` of a workspace.
    """
    here = (start or Path.cwd()).resolve()
    for directory in (here, *here.parents):
        marker = directory / ".git"
        if not marker.exists():
            continue
        # The repository that a worktree belongs to has its workspace where its own checkout is.
        root = Workspace(directory).git_common_dir.parent
        if marker.is_file() and directory.is_relative_to(root):
            place = parse_worktree_path(directory.relative_to(root).as_posix())
            if place is not None:
                return SubmissionPlace(Workspace(root), directory, *place)
        break
    raise ConfigurationError(
        f"{here} is not inside a worker's worktree",
        remedy=f"change into {WORKTREE_FORM} of a workspace and submit from there",
    )


def solution_dir(worktree: Path, problem: str, target: str) -> Path:
    """Where the solution stands in a worktree."""
    return worktree / solution_path(problem, target)


def trailers(
    *, run: str, worker: str, agent: str, session: str, model: str | None = None, cost_usd: float = 0.0
) -> dict[str, str]:
    """What each candidate's commit says of its making."""
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
    said: Mapping[str, str],
    base: str,
    languages: Sequence[Language] = (),
) -> Submission:
    """Check the solution as it stands and commit it on the worktree's branch.

    `base` is the coordination branch: a solution that stands there as it is becomes a candidate too, by a commit of
    its own, since only commits that the base does not hold are judged.
    `said` is the commit's trailers; `languages` those the run allows, empty for all.

    Raises:
        FormatError: it is no valid solution, or in a language that the run does not allow.
        RepositoryError: something besides the solution was changed.
    """
    directory = solution_dir(worktree, problem, target)
    solution = load_solution(directory)
    if languages and solution.spec.language not in languages:
        raise FormatError(
            f"`language` is {solution.spec.language}; this run allows {', '.join(languages)}",
            where=str(directory / "solution.yaml"),
            remedy="write the solution in a language of the run (harness.yaml: languages)",
        )
    failpoint("submit.before_commit")
    submission = repo.commit_solution(worktree, problem, target, message, said)
    if submission.unchanged and repo.is_ancestor(submission.commit, repo.tip(base)):
        submission = repo.commit_solution(worktree, problem, target, message, said, even_if_unchanged=True)
    failpoint("submit.after_commit")
    return submission


def wait_for_outcome(
    workspace: Workspace,
    problem: str,
    target: str,
    tree: str,
    *,
    known: Callable[[], Entry | None],
    stop: threading.Event,
    deadline_s: float,
) -> Entry | None:
    """The candidate's entry as soon as there is one; None when told to stop before.

    `known` looks the candidate up in the ledger, for when the outcome file has been thrown away.

    Raises:
        TimeoutError: no outcome within `deadline_s`.
    """
    file = workspace.outcome_file(problem, target, tree)
    until = time.monotonic() + deadline_s
    with FileWatch(file.parent) as changes:
        entry = read_outcome(file) or known()
        while entry is None and not stop.is_set():
            if time.monotonic() > until:
                raise TimeoutError(f"no outcome for {problem} tree {tree} within {deadline_s:.0f} s")
            entry = read_outcome(file) if changes.wait(_LOOK_EVERY_S, stop=stop) else known()
    failpoint("submit.after_outcome")
    return entry


def read_outcome(file: Path) -> Entry | None:
    """The entry in an outcome file; None where there is none, none that can be read, or one that does not count."""
    with contextlib.suppress(FileNotFoundError, ValidationError):
        entry = Entry.model_validate_json(file.read_bytes())
        return entry if counts(entry) else None
    return None
