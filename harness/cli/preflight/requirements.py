"""The list of a run's requirements, which `harness start` and `harness doctor` check.

`harness start` ends at the first requirement that is not met, before it writes to git. `harness doctor` shows all
results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Literal

from harness.agents.kinds import default_kind
from harness.cli.devices import DeviceChoice
from harness.cli.preflight import agents, machine, workspace
from harness.cli.preflight.check import Check, Requirement, RunPlan
from harness.errors import HarnessError
from harness.model.config import Config
from harness.workspace.directories import Workspace, user_cache


def _own_judge(plan: RunPlan) -> bool:
    """Return True if the harness's own judge is used on this host. The requirements of another judge are not known."""
    return not os.environ.get("HARNESS_JUDGE_COMMAND") and plan.chosen.cluster is None


def _judges_here(plan: RunPlan) -> bool:
    return plan.chosen.cluster is None


def _own_judge_on_cpu(plan: RunPlan) -> bool:
    return _own_judge(plan) and any(not name.startswith("cuda") for name in plan.chosen.devices)


def _own_judge_in_sandbox(plan: RunPlan) -> bool:
    return _own_judge(plan) and plan.config.judge.sandbox == "bubblewrap"


def _starts_agents(plan: RunPlan) -> bool:
    return plan.kind != "tuner" or plan.uses_claude


def _uses_claude(plan: RunPlan) -> bool:
    return plan.uses_claude


def _uses_key(plan: RunPlan) -> bool:
    return (plan.kind == "claude" and plan.config.agent.network == "gateway") or plan.config.planner.kind == "claude"


REQUIREMENTS = (
    Requirement("default device", machine.check_devices, applies=_judges_here),
    Requirement("target", machine.check_target),
    Requirement("default agent", agents.check_kind),
    Requirement("git", workspace.check_git),
    Requirement("repository", workspace.check_repository),
    Requirement("problems", workspace.check_problems),
    Requirement("files", workspace.check_writable),
    Requirement("disk", machine.check_disk),
    Requirement("harness start", workspace.check_alone),
    Requirement("claude SDK", agents.check_sdk, applies=_uses_claude),
    Requirement("model key", agents.check_key, applies=_uses_key),
    Requirement("C++ compiler", machine.check_compiler, applies=_own_judge_on_cpu),
    Requirement("bubblewrap", machine.check_bubblewrap, applies=_own_judge_in_sandbox),
    Requirement("agents' sandbox", agents.check_sandbox, applies=_starts_agents),
    Requirement("agent program", agents.check_visible, applies=_starts_agents),
    Requirement("model endpoint", agents.check_endpoint, applies=_uses_key),
    Requirement("torch", machine.check_torch, applies=_own_judge),
)
"""In the order in which `harness start` checks them: checks that take seconds come last."""


def check_run(workspace: Workspace, config: Config, chosen: DeviceChoice, show: Callable[[str], None]) -> None:
    """Check all requirements of a run.

    Args:
        workspace: the workspace of the run.
        config: its configuration.
        chosen: its devices and target.
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
        config: the configuration of a run.
        chosen: its devices and target.
    """
    kind = config.agent.kind or default_kind(config, chosen.devices)
    plan = RunPlan(workspace, config, chosen, kind, user_cache(), thorough=True)
    for requirement in REQUIREMENTS:
        try:
            result = requirement.check(plan)
        except HarnessError as error:
            where = f"{error.where}: " if error.where else ""
            state: Literal["missing", "note"] = "missing" if requirement.applies(plan) else "note"
            yield Check(requirement.name, state, f"{where}{error.message}", error.remedy or "")
        else:
            if result is not None:
                yield result if isinstance(result, Check) else Check(requirement.name, "ok", result)
