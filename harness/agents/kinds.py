"""The kinds of agents there are, and what each needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.agents.command import CommandSession, check_command
from harness.agents.session import AgentSession, Brief
from harness.agents.tuner import TunerSession
from harness.errors import ConfigurationError
from harness.model.config import AgentKind, Config


def _claude(brief: Brief) -> AgentSession:
    from harness.agents.claude import ClaudeSession  # noqa: PLC0415 - a second, and only claude needs it

    return ClaudeSession(brief)


KINDS: dict[AgentKind, Callable[[Brief], AgentSession]] = {
    "claude": _claude,
    "command": CommandSession,
    "tuner": TunerSession,
}
"""How a session of each kind of agent is opened."""


def kind_of(config: Config, devices: Sequence[str] = (), *, root: Path | None = None) -> AgentKind:
    """The kind of agent the configuration asks for; when it asks for none, claude with a GPU and a key, else a tuner.

    Args:
        config: names it.
        devices: the judges' devices.
        root: the workspace, which no agent may be shown.

    Raises:
        ConfigurationError: what that kind needs is missing.
    """
    kind = config.agent.kind or default_kind(config, devices)
    if kind == "command":
        check_command(config.agent, root)
    if kind == "claude":
        check_claude(config)
    return kind


def default_kind(config: Config, devices: Sequence[str]) -> AgentKind:
    """The kind that serves a newcomer: claude where there is a GPU to make kernels for and all that it needs."""
    if any(device.startswith("cuda") for device in devices):
        with suppress(ConfigurationError):
            check_claude(config)
            return "claude"
    return "tuner"


def check_claude(config: Config) -> None:
    """Whether sessions of claude can be opened here.

    Raises:
        ConfigurationError: the SDK or the credential is missing.
    """
    from harness.agents.model_access.gateway import Upstream  # noqa: PLC0415

    check_packages()
    if config.agent.network == "gateway":
        Upstream.of_environment(os.environ)


def check_packages() -> None:
    """Check that the packages are installed which sessions of claude need.

    Raises:
        ConfigurationError: some are not.
    """
    from importlib.util import find_spec  # noqa: PLC0415

    missing = [name for name in ("claude_agent_sdk", "aiohttp") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"agent `claude` needs {' and '.join(missing)}",
            where="agent.kind",
            remedy="pip install 'kernel-harness[claude]', or say `harness start --agent tuner`",
        )
