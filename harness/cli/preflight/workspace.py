"""Requirements of a run that concern its workspace: git, repository, problems, writable files, no other run."""

from __future__ import annotations

import tempfile

from harness.cli.preflight.check import Check, RunPlan
from harness.cli.preflight.machine import output_of
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
    """Check that git is installed in version 2.30 or newer."""
    output = output_of("git", "--version")
    if output is None:
        raise RepositoryError("git is not installed", remedy="apt-get install git")
    version = output.split()[2]
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < _GIT:
        raise RepositoryError(
            f"git {version} is too old: {_GIT[0]}.{_GIT[1]} or newer is needed", remedy="apt-get install git"
        )
    return version


def check_repository(plan: RunPlan) -> Check | None:
    """Check that the harness can read the repository and that the coordination branch exists."""
    if plan.workspace is None:
        return None
    for sentence in requirements(plan.workspace):
        problem, _, command = sentence.partition(": ")
        remedy = command.strip("`").replace("` (", "    # (") or "git fsck"
        raise RepositoryError(problem, where=str(plan.workspace.root), remedy=remedy)
    branch = plan.config.coordination_branch
    with Repo(plan.workspace) as repo:
        if branch not in repo.branches(branch):
            branches = ", ".join(sorted(repo.branches())[:5]) or "none"
            raise RepositoryError(
                f"there is no branch {branch}; branches: {branches}",
                where="`coordination_branch` in harness.yaml",
                remedy=f"git branch {branch}    # or name another branch in harness.yaml",
            )
    return None


def check_problems(plan: RunPlan) -> str | None:
    """Check that each glob of the run matches a committed problem."""
    if plan.workspace is None:
        return None
    return f"{len(run_problems(plan.workspace, plan.config))} on {plan.config.coordination_branch}"


def run_problems(workspace: Workspace, config: Config) -> list[str]:
    """Return the keys of the run's problems on the coordination branch.

    Args:
        workspace: the workspace.
        config: names the branch; lists the globs of the run.

    Raises:
        ConfigurationError: a glob matches no problem.
    """
    with Repo(workspace) as repo:
        files = repo.files(repo.tip(config.coordination_branch), PROBLEMS)
    for glob in config.problems:
        if not problem_names(files, (glob,)):
            committed = problem_names(files)
            raise ConfigurationError(
                f"no problem on {config.coordination_branch} matches `{glob}`; problems there: "
                + (", ".join(committed) or "none"),
                where="--problem, or `problems` in harness.yaml",
                remedy="git add problems && git commit    # a run uses committed problems only"
                + ("" if committed else "; `harness problems import --help` describes the sources of problems"),
            )
    return problem_names(files, config.problems)


def check_writable(plan: RunPlan) -> None:
    """Check that the directories that a run writes to are writable."""
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
    """Check that no other run is in progress in this workspace."""
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
