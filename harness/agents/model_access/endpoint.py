"""One cheap request to the model's side: that it can be reached, and that it accepts the key."""

from __future__ import annotations

import http.client
import json
import queue
import socket
import threading
import urllib.error
import urllib.request
from typing import Literal
from urllib.parse import urlsplit

from harness.agents.model_access.gateway import Upstream
from harness.errors import ConfigurationError

_REFUSED = {401, 403}
_NOT_THERE = {301, 302, 303, 307, 308, 404, 405}
"""The gateway follows no redirect."""
_QUOTED = 200
# Without a message the request is invalid, so that it costs nothing; the key is checked before that.
_REQUEST = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": []}

_Outcome = ConfigurationError | int
"""Why the request failed, or the HTTP status of its answer."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key is for one host only."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask_endpoint(upstream: Upstream, *, within_s: float) -> Literal["accepted", "slow", "no such path"]:
    """Ask the endpoint once, on the path that the gateway uses.

    Args:
        upstream: its address and the credential.
        within_s: the longest time this may take, name resolution included.

    Returns:
        `accepted` when it answered and did not refuse the key; `slow` when a connection was made and no answer came in
        time; `no such path` when it says that it has no Messages API there.

    Raises:
        ConfigurationError: it cannot be reached, or it refuses the key.
    """
    connected = threading.Event()
    outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()

    def ask() -> None:
        try:
            outcomes.put(_status(upstream, connected, within_s))
        except ConfigurationError as error:
            outcomes.put(error)

    # Name resolution has no timeout of its own, so the request runs in a thread that is left behind at the deadline.
    threading.Thread(target=ask, name="endpoint", daemon=True).start()
    try:
        outcome = outcomes.get(timeout=within_s)
    except queue.Empty:
        if connected.is_set():
            return "slow"
        raise _unreachable(upstream.url, f"no connection within {within_s:g} s") from None
    if isinstance(outcome, ConfigurationError):
        raise outcome
    return "no such path" if outcome in _NOT_THERE else "accepted"


def _status(upstream: Upstream, connected: threading.Event, within_s: float) -> int:
    try:
        with socket.create_connection(_first_hop(upstream.url), within_s):
            connected.set()
        body = json.dumps(_REQUEST).encode()
        headers = {**upstream.headers, "content-type": "application/json", "anthropic-version": "2023-06-01"}
        if "authorization" in upstream.headers:
            headers["anthropic-beta"] = "oauth-2025-04-20"  # logins are refused without it
        request = urllib.request.Request(f"{upstream.url}/v1/messages", body, headers, method="POST")  # noqa: S310
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            if error.code in _REFUSED:
                message = " ".join(error.read(4096).decode(errors="replace").split())[:_QUOTED]
                raise ConfigurationError(
                    f"the model's side refuses the key ({error.code}): {message}",
                    where=upstream.url,
                    remedy="export ANTHROPIC_API_KEY=...    # one that is valid at that address",
                ) from error
            return error.code
    except (OSError, ValueError, http.client.HTTPException) as error:  # the last: what answers does not speak HTTP
        why = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise _unreachable(upstream.url, why) from error


def _first_hop(url: str) -> tuple[str, int]:
    """Host and port of the first connection: the endpoint's, or those of the proxy that leads to it."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an address that begins with https:// or http://")
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme="http")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _unreachable(url: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the model's side cannot be reached: {why}",
        where=url,
        remedy="export ANTHROPIC_BASE_URL=...    # or repair the network, the proxy's variables or the certificates",
    )
