"""Requirements of a run that concern its agents: kind, packages, key, endpoint, sandbox and program."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from harness.agents.command import check_template
from harness.agents.confinement import check
from harness.agents.kinds import check_packages
from harness.agents.model_access.endpoint import ask_endpoint
from harness.agents.model_access.gateway import Upstream
from harness.agents.visibility import check_program
from harness.cli.preflight.check import Check, RunPlan
from harness.errors import ConfigurationError

_ANSWERS_WITHIN_S = 1.5


def check_kind(plan: RunPlan) -> str:
    """The kind of agent has what it is configured with."""
    if plan.kind == "command":
        check_template(plan.config.agent.command)
    if plan.config.agent.kind is not None:
        return f"{plan.kind}: as configured"
    return f"{plan.kind}: {'a GPU and a key are here' if plan.kind == 'claude' else 'needs no key and no model'}"


def check_sdk(_: RunPlan) -> str:
    """The packages of claude's sessions are installed. The SDK takes seconds to import, so it is not imported."""
    check_packages()
    sdk = metadata.distribution("claude-agent-sdk")
    cli = None
    with suppress(OSError):
        source = Path(str(sdk.locate_file("claude_agent_sdk/_cli_version.py"))).read_text()
        cli = re.search(r'__cli_version__ = "([^"]+)"', source)
    return f"{sdk.version}, CLI {cli[1] if cli else 'unknown'}"


def check_key(_: RunPlan) -> str:
    """There is a credential for the model."""
    Upstream.of_environment(os.environ)
    return "set; it is given to the gateway and to no agent"


def check_sandbox(_: RunPlan) -> str:
    """The sandbox of agents can be started."""
    return f"{check()}, tried"


def check_visible(plan: RunPlan) -> str | None:
    """The agents' sandbox shows the program of a session."""
    kind = "claude" if plan.uses_claude and plan.kind == "tuner" else plan.kind
    program = check_program(plan.config, kind, plan.workspace.root if plan.workspace else None)
    return None if program is None else f"{program}, visible inside the sandbox"


def check_endpoint(plan: RunPlan) -> Check | str | None:
    """The model API can be reached and accepts the key: one request that costs nothing."""
    try:
        upstream = Upstream.of_environment(os.environ)
    except ConfigurationError:
        return None  # the requirement `model key` says so
    answer = ask_endpoint(upstream, within_s=_ANSWERS_WITHIN_S * (4 if plan.thorough else 1))
    if answer == "no such path":
        return Check("model endpoint", "note", f"{upstream.url} says that it has no Messages API at /v1/messages")
    if answer == "slow":
        return Check("model endpoint", "note", f"{upstream.url} accepts connections; no answer so far")
    return f"{upstream.url} answers and accepts the key"
