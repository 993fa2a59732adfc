"""The requirements of a run, which `harness start` and `harness doctor` check.

`harness start` ends at the first requirement that is not met, before it writes to git. `harness doctor` shows all
results. `harness.cli.preflight.machine` has the checks of the machine.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from harness.agents.command import check_template
from harness.agents.confinement import check
from harness.agents.kinds import check_packages, default_kind
from harness.agents.model_access.endpoint import Upstream, ask_endpoint
from harness.agents.visibility import check_program
from harness.cli.devices import DeviceChoice
from harness.cli.preflight import machine
from harness.cli.preflight.check import Check, Requirement, RunPlan
from harness.errors import ConfigurationError, HarnessError, RepositoryError
from harness.formats.problems import problem_names
from harness.git.repo import Repo, requirements
from harness.model.config import Config
from harness.model.paths import PROBLEMS
from harness.workspace.directories import Workspace, user_cache
from harness.workspace.files import unwritable
from harness.workspace.processes import output_of
from harness.workspace.status import no_run

_ENDPOINT_TIMEOUT_S = 1.5
_GIT = (2, 30)
_WRITTEN_BYTES = 1 << 16


def _check_git(_: RunPlan) -> str:
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


def _check_repository(plan: RunPlan) -> Check | None:
    """Check that the harness can read the repository and that the coordination branch exists."""
    if plan.workspace is None:
        return None
    for sentence in requirements(plan.workspace):
        problem, _, command = sentence.partition(": ")
        remedy = command.strip("`").replace("` (", "    # (") or "git fsck"
        raise RepositoryError(problem, where=str(plan.workspace.root), remedy=remedy)
    with Repo(plan.workspace) as repo:
        repo.check_coordination_branch(plan.config.coordination_branch)
    return None


def _check_problems(plan: RunPlan) -> str | None:
    """Check that each glob of the run matches a committed problem."""
    if plan.workspace is None:
        return None
    return f"{len(run_problems(plan.workspace, plan.config))} on {plan.config.coordination_branch}"


def run_problems(workspace: Workspace, config: Config) -> list[str]:
    """Return the keys of the run's problems on the coordination branch.

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


def _check_writable(plan: RunPlan) -> None:
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


def _check_alone(plan: RunPlan) -> Check | None:
    """Check that no other run is in progress in this workspace."""
    if plan.workspace is None or not plan.workspace.start_lock.exists():
        return None
    try:
        with no_run(plan.workspace, "a check of harness start"):
            return None
    except ConfigurationError as error:
        if plan.thorough:
            return Check("harness start", "note", error.message, "harness stop")
        raise


def _check_kind(plan: RunPlan) -> str:
    """Check that the configuration of the kind of agent is valid."""
    if plan.kind == "command":
        check_template(plan.config.agent.command)
    if plan.config.agent.kind is not None:
        return f"{plan.kind}: as configured"
    return f"{plan.kind}: {'a GPU and a key are available' if plan.kind == 'claude' else 'needs no key and no model'}"


def _check_sdk(_: RunPlan) -> str:
    """Check that the packages of kind `claude` are installed. The SDK is not imported, because that takes seconds."""
    check_packages()
    sdk = metadata.distribution("claude-agent-sdk")
    cli = None
    with suppress(OSError):
        source = Path(str(sdk.locate_file("claude_agent_sdk/_cli_version.py"))).read_text()
        cli = re.search(r'__cli_version__ = "([^"]+)"', source)
    return f"{sdk.version}, CLI {cli[1] if cli else 'unknown'}"


def _check_key(_: RunPlan) -> str:
    """Check that a credential for the model is set."""
    Upstream.of_environment(os.environ)
    return "set; only the gateway receives it, not the agents"


def _check_sandbox(_: RunPlan) -> str:
    """Check that the agents' sandbox can be started."""
    return f"{check()}, tried"


def _check_visible(plan: RunPlan) -> str | None:
    """Check that the agents' sandbox shows the program of a session."""
    kind = "claude" if plan.uses_claude and plan.kind == "tuner" else plan.kind
    program = check_program(plan.config, kind, plan.workspace.root if plan.workspace else None)
    return None if program is None else f"{program}, visible inside the sandbox"


def _check_endpoint(plan: RunPlan) -> Check | str | None:
    """Check with one request, which costs nothing, that the model API can be reached and accepts the key."""
    try:
        upstream = Upstream.of_environment(os.environ)
    except ConfigurationError:
        return None  # the requirement `model key` reports it
    answer = ask_endpoint(upstream, within_s=_ENDPOINT_TIMEOUT_S * (4 if plan.thorough else 1))
    if answer == "no such path":
        return Check("model endpoint", "note", f"{upstream.url} has no Messages API at /v1/messages")
    if answer == "slow":
        return Check("model endpoint", "note", f"{upstream.url} accepts connections, but has not answered in time")
    return f"{upstream.url} answers and accepts the key"


def _own_judge(plan: RunPlan) -> bool:
    """Return True if the harness's own judge is used on this host. The requirements of another judge are not known."""
    return not os.environ.get("HARNESS_JUDGE_COMMAND") and plan.chosen.cluster is None


def _own_judge_on_cpu(plan: RunPlan) -> bool:
    return _own_judge(plan) and any(not name.startswith("cuda") for name in plan.chosen.devices)


def _own_judge_in_sandbox(plan: RunPlan) -> bool:
    return _own_judge(plan) and plan.config.judge.sandbox == "bubblewrap"


def _starts_agents(plan: RunPlan) -> bool:
    return plan.kind != "tuner" or plan.uses_claude


def _uses_key(plan: RunPlan) -> bool:
    return (plan.kind == "claude" and plan.config.agent.network == "gateway") or plan.config.planner.kind == "claude"


REQUIREMENTS = (
    Requirement("default device", machine.check_devices, applies=lambda plan: plan.chosen.cluster is None),
    Requirement("target", machine.check_target),
    Requirement("default agent", _check_kind),
    Requirement("git", _check_git),
    Requirement("repository", _check_repository),
    Requirement("problems", _check_problems),
    Requirement("files", _check_writable),
    Requirement("disk", machine.check_disk),
    Requirement("device locks", machine.check_locks, applies=_own_judge),
    Requirement("harness start", _check_alone),
    Requirement("claude SDK", _check_sdk, applies=lambda plan: plan.uses_claude),
    Requirement("model key", _check_key, applies=_uses_key),
    Requirement("C++ compiler", machine.check_compiler, applies=_own_judge_on_cpu),
    Requirement("bubblewrap", machine.check_bubblewrap, applies=_own_judge_in_sandbox),
    Requirement("agents' sandbox", _check_sandbox, applies=_starts_agents),
    Requirement("agent program", _check_visible, applies=_starts_agents),
    Requirement("model endpoint", _check_endpoint, applies=_uses_key),
    Requirement("torch", machine.check_torch, applies=_own_judge),
)
"""In the order in which `harness start` checks them: checks that take seconds come last."""


def check_run(workspace: Workspace, config: Config, chosen: DeviceChoice, show: Callable[[str], None]) -> None:
    """Check all requirements of a run.

    Args:
        show: called with a line before a check that takes seconds.

    Raises:
        HarnessError: a requirement is not met; the error has the fix.
    """
    kind = config.agent.kind or default_kind(config, chosen.devices)
    plan = RunPlan(workspace, config, chosen, kind, user_cache(), show=show)
    for requirement in REQUIREMENTS:
        if requirement.applies(plan):
            requirement.check(plan)


def examine(workspace: Workspace | None, config: Config, chosen: DeviceChoice) -> Iterator[Check]:
    """Check all requirements and yield the results, also of requirements that do not apply to the run.

    Args:
        workspace: the workspace; None outside of one.
    """
    kind = config.agent.kind or default_kind(config, chosen.devices)
    plan = RunPlan(workspace, config, chosen, kind, user_cache(), thorough=True)
    for requirement in REQUIREMENTS:
        try:
            result = requirement.check(plan)
        except HarnessError as error:
            failure = Check.of_error(requirement.name, error)
            yield failure if requirement.applies(plan) else replace(failure, state="note")
        else:
            if result is not None:
                yield result if isinstance(result, Check) else Check(requirement.name, "ok", result)
