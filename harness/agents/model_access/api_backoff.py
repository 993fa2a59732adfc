"""The backoff state that all workers of a workspace share: rate limits, outages, a refused credential.

The gateway of each worker reads one small file before each request. The gateway that receives a rate limit, an outage
or a refusal writes the file, so that no process has to notify another one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock

_LOCK_S = 10.0


@dataclass(frozen=True)
class ApiBackoff:
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
    with suppress(OSError, FormatError, TypeError, AttributeError):
        record = load_json_file(workspace.state / "fleet.json")
        return ApiBackoff(reason=record.pop("why", ""), **record)
    return ApiBackoff()


def back_off(
    workspace: Workspace, *, after_s: float | None, reason: str, first_s: float, longest_s: float
) -> ApiBackoff:
    """Make all workers wait before the next request, and return the new state.

    Args:
        workspace: the workspace whose workers wait.
        after_s: seconds that the API asked for; None if it gave none. A value below `first_s` (some APIs send 0) is
            ignored: immediate retries fail again.
        reason: shown to people and to agents.
        first_s: the first wait without `after_s`; doubled after each consecutive failure.
        longest_s: upper bound on the doubled wait.
    """
    with _changing(workspace):
        state = read_backoff(workspace)
        doubled_s = min(longest_s, first_s * 2.0 ** min(state.failures, 30))
        until = time.time() + (doubled_s if after_s is None or after_s < first_s else after_s)
        state = replace(state, hold_until=max(state.hold_until, until), reason=reason, failures=state.failures + 1)
        _write(workspace, state)
    return state


def stop_requests(workspace: Workspace, reason: str) -> None:
    """Record that the credential was refused: no worker sends a request until one starts again.

    Args:
        workspace: the workspace whose workers stop.
        reason: the refusal, as shown to people.
    """
    with _changing(workspace):
        _write(workspace, replace(read_backoff(workspace), stopped=reason))


def reset_failures(workspace: Workspace, state: ApiBackoff) -> None:
    """Restart the exponential backoff from its first wait, after a request that was answered.

    Args:
        workspace: the workspace of the state.
        state: as read before the request. Without failures in it, the file is not written.
    """
    if state.failures:
        with _changing(workspace):
            _write(workspace, replace(read_backoff(workspace), failures=0, reason=""))


def allow_requests(workspace: Workspace) -> None:
    """Clear the refusal of a credential, since the environment may hold another one; a wait stays in force."""
    if read_backoff(workspace).stopped:
        with _changing(workspace):
            _write(workspace, replace(read_backoff(workspace), stopped=None))


@contextmanager
def _changing(workspace: Workspace) -> Iterator[None]:
    with file_lock(workspace.state / "locks" / "fleet", wait_s=_LOCK_S, owner="a gateway"):
        yield


def _write(workspace: Workspace, state: ApiBackoff) -> None:
    record = {
        "hold_until": state.hold_until,
        "why": state.reason,
        "failures": state.failures,
        "stopped": state.stopped,
    }
    atomic_write(workspace.state / "fleet.json", json.dumps(record))
