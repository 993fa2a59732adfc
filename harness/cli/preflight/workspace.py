"""Requirements of a run that concern its workspace: git, the repository, problems, files, and that it runs alone."""

from __future__ import annotations

import tempfile

from harness.cli.preflight.check import Check, RunPlan
from harness.cli.preflight.machine import ask
from harness.errors import ConfigurationError, RepositoryError
from harness.formats.problems import problem_names
from harness.git.repo import Repo, requirements
from harness.model.config import Config
from harness.model.paths import PROBLEMS
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock, unwritable

_GIT = (2, 30)
_WRITTEN_BYTES = 1 << 16


def check_git(_: RunPlan) -> str:
    """Git is installed, and new enough."""
    said = ask("git", "--version")
    if said is None:
        raise RepositoryError("git is not installed", remedy="apt-get install git")
    version = said.split()[2]
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _GIT:
        raise RepositoryError(
            f"git {version} is too old: {_GIT[0]}.{_GIT[1]} or newer is needed", remedy="apt-get install git"
        )
    return version


def check_repository(plan: RunPlan) -> Check | None:
    """The repository has a form that the harness can read, and the coordination branch exists."""
    if plan.workspace is None:
        return None
    for sentence in requirements(plan.workspace):
        what, _, command = sentence.partition(": ")
        remedy = command.strip("`").replace("` (", "    # (") or "git fsck"
        raise RepositoryError(what, where=str(plan.workspace.root), remedy=remedy)
    branch = plan.config.coordination_branch
    with Repo(plan.workspace) as repo:
        if branch not in repo.branches(branch):
            there = ", ".join(sorted(repo.branches())[:5]) or "none"
            raise RepositoryError(
                f"there is no branch {branch}; branches: {there}",
                where="`coordination_branch` in harness.yaml",
                remedy=f"git branch {branch}    # or name another branch there",
            )
    return None


def check_problems(plan: RunPlan) -> str | None:
    """Each of the run's globs matches a committed problem."""
    if plan.workspace is None:
        return None
    return f"{len(run_problems(plan.workspace, plan.config))} on {plan.config.coordination_branch}"


def run_problems(workspace: Workspace, config: Config) -> list[str]:
    """The problems of the run, as the coordination branch has them.

    Raises:
        ConfigurationError: a glob matches none.
    """
    with Repo(workspace) as repo:
        files = repo.files(repo.tip(config.coordination_branch), PROBLEMS)
    for glob in config.problems:
        if not problem_names(files, (glob,)):
            there = problem_names(files)
            raise ConfigurationError(
                f"no problem on {config.coordination_branch} matches `{glob}`; there are: "
                + (", ".join(there) or "none at all"),
                where="--problem, or `problems` in harness.yaml",
                remedy="git add problems && git commit    # what is not committed is not seen"
                + ("" if there else "; `harness problems import --help` shows where to get some"),
            )
    return problem_names(files, config.problems)


def check_writable(plan: RunPlan) -> None:
    """The directories of the workspace that a run writes to can be written to."""
    if plan.workspace is None:
        return
    for directory in (plan.workspace.root, plan.workspace.state, plan.workspace.derived):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory) as file:
                file.write(bytes(_WRITTEN_BYTES))
                file.flush()
        except OSError as error:
            raise unwritable(directory, error) from error


def check_alone(plan: RunPlan) -> Check | None:
    """No other run is in progress in this workspace."""
    if plan.workspace is None or not plan.workspace.start_lock.exists():
        return None
    try:
        with file_lock(plan.workspace.start_lock, owner="a check of harness start"):
            return None
    except ConfigurationError as error:
        if plan.thorough:
            return Check("harness start", "note", error.message, "harness stop")
        raise ConfigurationError(
            f"another run is in progress in this workspace: {error.message}",
            where=str(plan.workspace.root),
            remedy="harness stop ends it; `harness status` shows it",
        ) from error
