"""What `harness doctor` says of agents: the SDK and its CLI, the key, the model's side, the agents' sandbox."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from harness.cli.check import Check
from harness.errors import ConfigurationError

if TYPE_CHECKING:
    from harness.model.config import Config

_REACH_S = 5.0
_INSTALL = "pip install 'kernel-harness[claude]'"


def agent_checks(config: Config) -> Iterator[Check]:
    """The checks; something missing is an error only when the configuration asks for claude."""
    from harness.agents.command import check_template
    from harness.agents.confinement import check
    from harness.agents.gateway import Upstream

    wanted = config.agent.kind == "claude" or config.planner.kind == "claude"
    lacking: Literal["missing", "note"] = "missing" if wanted else "note"
    found = _version()
    yield Check("claude SDK", "ok" if found else lacking, found or "not installed", "" if found else _INSTALL)
    try:
        upstream = Upstream.of_environment(os.environ)
    except ConfigurationError as error:
        yield Check("model key", lacking, error.what, "export ANTHROPIC_API_KEY=...")
    else:
        yield Check("model key", "ok", "set; it is given to the gateway and to no agent")
        yield _reach(upstream.url, lacking)
    try:
        yield Check("agents' sandbox", "ok", f"{check()}, tried")
    except ConfigurationError as error:
        needed = config.agent.kind in {"claude", "command"} or wanted
        yield Check("agents' sandbox", "missing" if needed else "note", error.what, error.remedy or "")
    if config.agent.kind == "command":
        try:
            yield Check("agent command", "ok", check_template(config.agent.command))
        except ConfigurationError as error:
            yield Check("agent command", "missing", error.what, error.remedy or "")
    if config.agent.network == "host":
        yield Check("agents' network", "note", "host: agents reach the network and use this user's login")


def _version() -> str | None:
    """The versions of the SDK and of the CLI in it; the SDK itself, which takes seconds to import, is not imported."""
    try:
        metadata.version("aiohttp")
        sdk = metadata.distribution("claude-agent-sdk")
    except metadata.PackageNotFoundError:
        return None
    cli = None
    with suppress(OSError):
        source = Path(str(sdk.locate_file("claude_agent_sdk/_cli_version.py"))).read_text()
        cli = re.search(r'__cli_version__ = "([^"]+)"', source)
    return f"{sdk.version}, CLI {cli[1] if cli else 'unknown'}"


def _reach(url: str, lacking: Literal["missing", "note"]) -> Check:

    parts = urlsplit(url)
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return Check("model endpoint", "note", f"{url}, by a proxy: not tried")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), _REACH_S):
            return Check("model endpoint", "ok", f"{url} answers")
    except OSError as error:
        return Check("model endpoint", lacking, f"{url}: {error}", "check the network, or ANTHROPIC_BASE_URL")
