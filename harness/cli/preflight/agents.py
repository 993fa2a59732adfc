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
from harness.agents.model_access.endpoint import Upstream, ask_endpoint
from harness.agents.visibility import check_program
from harness.cli.preflight.check import Check, RunPlan
from harness.errors import ConfigurationError

_ENDPOINT_TIMEOUT_S = 1.5


def check_kind(plan: RunPlan) -> str:
    """Check that the configuration of the kind of agent is valid."""
    if plan.kind == "command":
        check_template(plan.config.agent.command)
    if plan.config.agent.kind is not None:
        return f"{plan.kind}: as configured"
    return f"{plan.kind}: {'a GPU and a key are available' if plan.kind == 'claude' else 'needs no key and no model'}"


def check_sdk(_: RunPlan) -> str:
    """Check that the packages of kind `claude` are installed. The SDK is not imported, because that takes seconds."""
    check_packages()
    sdk = metadata.distribution("claude-agent-sdk")
    cli = None
    with suppress(OSError):
        source = Path(str(sdk.locate_file("claude_agent_sdk/_cli_version.py"))).read_text()
        cli = re.search(r'__cli_version__ = "([^"]+)"', source)
    return f"{sdk.version}, CLI {cli[1] if cli else 'unknown'}"


def check_key(_: RunPlan) -> str:
    """Check that a credential for the model is set."""
    Upstream.of_environment(os.environ)
    return "set; only the gateway receives it, not the agents"


def check_sandbox(_: RunPlan) -> str:
    """Check that the agents' sandbox can be started."""
    return f"{check()}, tried"


def check_visible(plan: RunPlan) -> str | None:
    """Check that the agents' sandbox shows the program of a session."""
    kind = "claude" if plan.uses_claude and plan.kind == "tuner" else plan.kind
    program = check_program(plan.config, kind, plan.workspace.root if plan.workspace else None)
    return None if program is None else f"{program}, visible inside the sandbox"


def check_endpoint(plan: RunPlan) -> Check | str | None:
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
