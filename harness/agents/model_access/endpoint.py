"""The address of the model API and its credential, and one cheap request that checks both."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from harness.errors import ConfigurationError

REFUSED = {401, 403}
"""HTTP statuses by which the model API refuses a credential."""
_NOT_THERE = {301, 302, 303, 307, 308, 404, 405}
"""The gateway follows no redirect."""

# A request without messages is invalid and costs nothing; the API checks the key first.
_REQUEST = {"model": "claude-haiku-4-5", "max_tokens": 1, "messages": []}


@dataclass(frozen=True)
class Upstream:
    """Address of the model API and the headers with the credential."""

    url: str
    headers: Mapping[str, str]

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Upstream:
        """Read ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN).

        Raises:
            ConfigurationError: there is no credential.
        """
        url = (environ.get("ANTHROPIC_BASE_URL") or "https://api.anthropic.com").rstrip("/")
        if key := environ.get("ANTHROPIC_API_KEY"):
            return cls(url, {"x-api-key": key})
        if token := environ.get("ANTHROPIC_AUTH_TOKEN"):
            return cls(url, {"authorization": f"Bearer {token}"})
        raise ConfigurationError(
            "no credential for the model",
            where="ANTHROPIC_API_KEY",
            remedy="export ANTHROPIC_API_KEY=..., or use `harness start --agent tuner`, which needs no model",
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key is for one host only."""

    def redirect_request(self, *_: object) -> None:
        return None


def ask_endpoint(upstream: Upstream, *, within_s: float) -> Literal["accepted", "slow", "no such path"]:
    """Ask the endpoint once, on the path that the gateway uses.

    Args:
        within_s: timeout in seconds, name resolution included.

    Returns:
        `accepted` if the endpoint answered and did not refuse the key; `slow` if a connection was made but no answer
        arrived in time; `no such path` if the status shows that the Messages API is not at this address.

    Raises:
        ConfigurationError: the endpoint cannot be reached, or it refuses the key.
    """
    connected = threading.Event()
    status: Future[int] = Future()

    def ask() -> None:
        try:
            status.set_result(_status(upstream, connected, within_s))
        except ConfigurationError as error:
            status.set_exception(error)

    # Name resolution has no timeout, so the request runs in a daemon thread that is abandoned at the deadline.
    threading.Thread(target=ask, name="endpoint", daemon=True).start()
    try:
        return "no such path" if status.result(within_s) in _NOT_THERE else "accepted"
    except TimeoutError:
        if connected.is_set():
            return "slow"
        raise _unreachable(upstream.url, f"no connection within {within_s:g} s") from None


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
            if error.code in REFUSED:
                message = " ".join(error.read(4096).decode(errors="replace").split())[:200]
                raise ConfigurationError(
                    f"the model API refuses the key ({error.code}): {message}",
                    where=upstream.url,
                    remedy="export ANTHROPIC_API_KEY=...    # a key that is valid at that address",
                ) from error
            return error.code
    except (OSError, ValueError, http.client.HTTPException) as error:  # HTTPException: the answer is not HTTP
        reason = str(getattr(error, "reason", None) or error) or type(error).__name__
        raise _unreachable(upstream.url, reason) from error


def _first_hop(url: str) -> tuple[str, int]:
    """Return host and port of the first connection: the proxy's if one is configured, else the endpoint's."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("not an address that begins with https:// or http://")
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme="http")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _unreachable(url: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"the model API cannot be reached: {reason}",
        where=url,
        remedy="export ANTHROPIC_BASE_URL=...    # or fix the network, the proxy variables or the certificates",
    )
