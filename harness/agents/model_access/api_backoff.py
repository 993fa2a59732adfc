"""The backoff state that all workers of a workspace share: rate limits, outages, a refused credential.

The gateway of each worker reads one small file before each request. The gateway that receives a rate limit, an outage
or a refusal writes the file, so that no process has to notify another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from harness.model.base_models import StrictModel
from harness.model.config import GatewayConfig
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock, read_record

_LOCK_S = 10.0


class ApiBackoff(StrictModel):
    """The state of the model API for all workers of a workspace."""

    hold_until: float = 0.0
    """Seconds since the epoch; no request is sent before."""
    reason: str = ""
    failures: int = 0
    """Consecutive failed requests, over all workers."""
    stopped: str | None = None
    """The refusal of the credential, after which no request is sent. Cleared when a worker starts again."""

    def wait_s(self) -> float:
        """Return the seconds from now during which no request may be sent."""
        return max(0.0, self.hold_until - time.time())


def read_backoff(workspace: Workspace) -> ApiBackoff:
    """Return the stored state; the default state, which allows requests, if the file is missing or malformed."""
    return read_record(workspace.state / "fleet.json", ApiBackoff) or ApiBackoff()


def back_off(workspace: Workspace, config: GatewayConfig, *, after_s: float | None, reason: str) -> ApiBackoff:
    """Make all workers wait before the next request, and return the new state.

    Args:
        workspace: the workspace whose workers wait.
        after_s: seconds that the API asked for; None if it gave none. A value below the first wait (some APIs send 0)
            is ignored: immediate retries fail again.
        reason: shown to people and to agents.
    """

    def extended(state: ApiBackoff) -> dict[str, Any]:
        doubled_s = min(config.longest_s, config.first_s * 2.0 ** min(state.failures, 30))
        until = time.time() + (doubled_s if after_s is None or after_s < config.first_s else after_s)
        return {"hold_until": max(state.hold_until, until), "reason": reason, "failures": state.failures + 1}

    return _change(workspace, extended)


def stop_requests(workspace: Workspace, reason: str) -> None:
    """Record that the credential was refused: no worker sends a request until one starts again.

    Args:
        workspace: the workspace whose workers stop.
    """
    _change(workspace, lambda _: {"stopped": reason})


def reset_failures(workspace: Workspace, state: ApiBackoff) -> None:
    """Restart the exponential backoff from its first wait, after a request that was answered.

    Args:
        state: as read before the request. Without failures in it, the file is not written.
    """
    if state.failures:
        _change(workspace, lambda _: {"failures": 0, "reason": ""})


def allow_requests(workspace: Workspace) -> None:
    """Clear the refusal of a credential, since the environment may hold another one; a wait stays in force."""
    if read_backoff(workspace).stopped:
        _change(workspace, lambda _: {"stopped": None})


def _change(workspace: Workspace, changes: Callable[[ApiBackoff], dict[str, Any]]) -> ApiBackoff:
    """Change the fields of the stored state that `changes` returns for it, and return the new state."""
    with file_lock(workspace.state / "locks" / "fleet", wait_s=_LOCK_S, owner="a gateway"):
        present = read_backoff(workspace)
        state = present.model_copy(update=changes(present))
        atomic_write(workspace.state / "fleet.json", state.model_dump_json())
    return state
