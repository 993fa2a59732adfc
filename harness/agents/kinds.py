"""The kinds of agents and their requirements."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.agents.command import CommandSession, check_command
from harness.agents.model_access.endpoint import Upstream
from harness.agents.session import AgentSession, Brief
from harness.agents.tuner import TunerSession
from harness.errors import ConfigurationError
from harness.model.config import AgentKind, Config


def _claude(brief: Brief) -> AgentSession:
    from harness.agents.claude import ClaudeSession  # noqa: PLC0415 - the import takes a second

    return ClaudeSession(brief)


KINDS: dict[AgentKind, Callable[[Brief], AgentSession]] = {
    "claude": _claude,
    "command": CommandSession,
    "tuner": TunerSession,
}
"""Kind of agent -> the function that opens its session."""


def kind_of(config: Config, devices: Sequence[str] = (), *, root: Path | None = None) -> AgentKind:
    """Return the configured kind of agent; the default kind if none is configured.

    Args:
        devices: the judges' devices, such as `cpu` or `cuda:0`.
        root: the workspace, which the sandbox must not show.

    Raises:
        ConfigurationError: a requirement of that kind is missing.
    """
    kind = config.agent.kind or default_kind(config, devices)
    if kind == "command":
        check_command(config.agent, root)
    if kind == "claude":
        check_claude(config)
    return kind


def default_kind(config: Config, devices: Sequence[str]) -> AgentKind:
    """Return `claude` if there is a GPU and its requirements are met, else `tuner`.

    Args:
        devices: the judges' devices, such as `cpu` or `cuda:0`.
    """
    if any(device.startswith("cuda") for device in devices):
        with suppress(ConfigurationError):
            check_claude(config)
            return "claude"
    return "tuner"


def check_claude(config: Config) -> None:
    """Check that sessions of kind `claude` can be opened.

    Raises:
        ConfigurationError: the SDK or the credential is missing.
    """
    check_packages()
    if config.agent.network == "gateway":
        Upstream.of_environment(os.environ)


def check_packages() -> None:
    """Check that the packages for sessions of kind `claude` are installed.

    Raises:
        ConfigurationError: a package is missing.
    """
    from importlib.util import find_spec  # noqa: PLC0415

    missing = [name for name in ("claude_agent_sdk", "aiohttp") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"agent `claude` needs {' and '.join(missing)}",
            where="agent.kind",
            remedy="pip install 'kernel-harness[claude]', or use `harness start --agent tuner`",
        )
