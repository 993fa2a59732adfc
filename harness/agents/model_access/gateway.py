"""The agents' only connection to a model: an HTTP proxy on Unix sockets that adds the credential and keeps accounts.

Each session has its own socket, bound into its sandbox, so that the socket identifies the session and an agent cannot
forge it. The gateway forwards requests of the Messages API only, and streams the answers. A rate limit or an outage
makes all workers wait (`api_backoff`): the affected request waits in the gateway, and the agent does not see the wait.
A refused credential stops all workers. The gateway reserves the largest possible cost of a request before it forwards
it (`request_budget`). It refuses a request that exceeds the remaining budget; a request waits if it exceeds the budget
only together with other reservations.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
from aiohttp import web

from harness.agents.model_access import api_backoff
from harness.agents.model_access.endpoint import REFUSED, Upstream
from harness.agents.model_access.request_budget import Refused, RequestBudget, Reserved
from harness.agents.model_access.usage import AnswerUsage
from harness.errors import FormatError
from harness.model.config import GatewayConfig
from harness.workspace.directories import Workspace

_T = TypeVar("_T")
_MESSAGES = "/v1/messages"
_ENDS_SESSION = "the harness ends this session"
_ADMITTED = {("POST", _MESSAGES), ("POST", f"{_MESSAGES}/count_tokens")}
_DROPPED = {
    "host", "x-api-key", "authorization", "proxy-authorization", "cookie", "connection", "keep-alive",
    "accept-encoding", "content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer",
}  # fmt: skip
_KEPT_OF_ANSWERS = ("content-type", "request-id", "retry-after", "cache-control")
_BUSY = {429, 500, 502, 503, 504, 529}

_MAX_REQUEST_BYTES = 64 << 20
_CONNECT_S = 20.0
_START_TIMEOUT_S = 20.0
_LONGEST_RETRY_AFTER_S = 24 * 3600.0
_BUDGET_WAIT_S = 480.0
"""Timeout of the wait for other reservations to be released: less than the 600 s after which the CLI gives up."""
_BUDGET_POLL_S = 0.25
_BUDGET_LONGEST_POLL_S = 2.0

logger = logging.getLogger(__name__)


class Gateway:
    """Runs the server in a thread for the duration of a `with` block.

    Args:
        workspace: its workers share the backoff state and the reservations.
        upstream: address and credential of the model API.
    """

    def __init__(self, workspace: Workspace, upstream: Upstream, config: GatewayConfig) -> None:
        self.workspace, self.upstream, self.config = workspace, upstream, config
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="gateway", daemon=True)
        self._started: Future[asyncio.AbstractEventLoop] = Future()
        self._stop = asyncio.Event()
        self.client: aiohttp.ClientSession
        """Open from the start of the thread on."""
        self.accounting: set[asyncio.Future[Any]] = set()
        """Updates of accounts and releases of reservations in progress. They finish even if the client disconnects."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop = self._started.result(_START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_TIMEOUT_S)

    @contextmanager
    def serve(self, directory: Path, budget: RequestBudget, refusal: Callable[[], str | None]) -> Iterator[None]:
        """Serve one session on a socket for the duration of a `with` block; its end aborts requests in progress.

        Args:
            directory: receives the socket, named `socket`; created if missing.
            budget: reserves the largest possible cost of each request. The usage of each answer is added to its meter.
            refusal: returns the reason why the session may send no further request, or None. Called in the gateway's
                thread.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "socket").unlink(missing_ok=True)
        # A socket's path has at most 107 characters; a path through the descriptor is short for every directory.
        directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        try:
            runner = self._call(self._serve(f"/proc/self/fd/{directory_fd}/socket", budget, refusal))
            try:
                yield
            finally:
                self._call(self._end(runner))
        finally:
            os.close(directory_fd)

    def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the gateway's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_TIMEOUT_S)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self.config.idle_s)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, auto_decompress=False, trust_env=True
        ) as self.client:
            self._started.set_result(asyncio.get_running_loop())
            await self._stop.wait()

    async def _serve(self, socket: str, budget: RequestBudget, refusal: Callable[[], str | None]) -> web.AppRunner:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await _ForwardedRequest(self, request, budget, refusal).answer()

        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        await web.UnixSite(runner, socket).start()
        return runner

    async def _end(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await asyncio.gather(*self.accounting)


@dataclass
class _ForwardedRequest:
    """One request of an agent and its state in the gateway."""

    gateway: Gateway
    request: web.Request
    budget: RequestBudget
    refusal: Callable[[], str | None]
    _usage: AnswerUsage | None = None
    """Tokens of an answer that are not in the account yet."""
    _backoff_wait_s: float = 0.0
    """Seconds for which the request has waited for a rate limit or an outage."""
    _budget_wait_s: float = 0.0
    """Seconds for which the request has waited for other reservations to be released."""

    async def answer(self) -> web.StreamResponse:
        if (self.request.method, self.request.path) not in _ADMITTED:
            if self.request.method == "HEAD":  # the CLI probes the connection with HEAD
                return web.Response()
            return _error(404, "not_found_error", "this gateway forwards requests of the Messages API only")
        body = await self.request.read()
        self.budget.meter.record_activity()
        return await self._forward(body)

    async def _forward(self, body: bytes) -> web.StreamResponse:
        """Send the request after the backoff has ended and its cost is reserved; return the answer."""
        while True:
            state = api_backoff.read_backoff(self.gateway.workspace)
            refusal = self.refusal()
            if state.stopped:
                return _error(401, "authentication_error", state.stopped)
            if refusal:
                return _error(400, "invalid_request_error", f"{_ENDS_SESSION}: {refusal}")
            if wait_s := state.wait_s():
                if not await self._wait_for_backoff(wait_s):
                    refused = _error(429, "rate_limit_error", f"{state.reason}: all workers wait {wait_s:.0f} s")
                    refused.headers["retry-after"] = str(round(wait_s + 0.5))
                    return refused
                continue
            reserved = await self._reserve(body)
            if isinstance(reserved, web.Response):
                return reserved
            if reserved is None:
                continue
            try:
                response = await self._send(body, state)
            finally:
                await self._settle(reserved)
            if response is not None:
                return response

    async def _wait_for_backoff(self, wait_s: float) -> bool:
        """Wait until requests may be sent again; return False if that exceeds the longest wait in the gateway."""
        wait_s += random.uniform(0, min(1.0, wait_s / 4))  # noqa: S311 - jitter spreads the requests of all workers
        if self._backoff_wait_s + wait_s > self.gateway.config.hold_s:
            return False
        self._backoff_wait_s += wait_s
        await asyncio.sleep(wait_s)
        return True

    async def _reserve(self, body: bytes) -> Reserved | web.Response | None:
        """Reserve the largest cost of the request; return a response that refuses it, or None if it must wait."""
        if self.request.path != _MESSAGES:
            return Reserved(None, len(body))
        reserving = asyncio.ensure_future(asyncio.to_thread(self.budget.reserve, body))
        try:
            reserved = await asyncio.shield(reserving)
        except asyncio.CancelledError:  # the client has disconnected; the thread may still enter the reservation
            reserved = await reserving
            if isinstance(reserved, Reserved):
                await self._settle(reserved)
            raise
        except FormatError as error:
            return _error(400, "invalid_request_error", str(error))
        if isinstance(reserved, Refused):
            return _error(400, "invalid_request_error", f"{_ENDS_SESSION}: {reserved.reason}")
        if isinstance(reserved, Reserved):
            return reserved
        self.budget.meter.record_activity()  # this wait does not count as silence: the request was not sent yet
        if self._budget_wait_s > _BUDGET_WAIT_S:
            return _error(429, "rate_limit_error", reserved.reason, retry=True)
        wait_s = min(max(_BUDGET_POLL_S, self._budget_wait_s / 4), _BUDGET_LONGEST_POLL_S)
        wait_s *= random.uniform(0.5, 1.5)  # noqa: S311 - jitter spreads the reads of the reservations
        self._budget_wait_s += wait_s
        await asyncio.sleep(wait_s)
        return None

    async def _settle(self, reserved: Reserved) -> None:
        """Add the cost of the answer to the account and release the reservation, also if the client disconnects."""
        accounting = asyncio.ensure_future(asyncio.to_thread(self._account, reserved))
        self.gateway.accounting.add(accounting)
        accounting.add_done_callback(self.gateway.accounting.discard)
        await asyncio.shield(accounting)

    def _account(self, reserved: Reserved) -> None:
        usage, self._usage, spent = self._usage, None, None
        if usage is not None and usage.begun:
            spent = usage.spent()
            self.budget.meter.add_answer(usage.model, spent)
        self.budget.settle(reserved, spent)

    async def _send(self, body: bytes, state: api_backoff.ApiBackoff) -> web.StreamResponse | None:
        """Send the request once; return None after a backoff, when it must be sent again."""
        workspace, upstream = self.gateway.workspace, self.gateway.upstream
        headers = {name: value for name, value in self.request.headers.items() if name.lower() not in _DROPPED}
        headers |= {**upstream.headers, "accept-encoding": "identity"}
        url = f"{upstream.url}{self.request.path_qs}"
        try:
            async with self.gateway.client.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status in REFUSED:
                    text = (await answer.text())[:300]
                    reason = f"the model API refuses the credential ({answer.status}): {text}"
                    await asyncio.to_thread(api_backoff.stop_requests, workspace, reason)
                    logger.error("%s", reason)
                    return _error(answer.status, "authentication_error", reason)
                if answer.status in _BUSY:
                    after_s = _retry_after_s(answer.headers.get("retry-after"))
                    await self._back_off(f"the model API answers {answer.status}", after_s)
                    return None
                await asyncio.to_thread(api_backoff.reset_failures, workspace, state)
                return await self._stream(answer)
        except (aiohttp.ClientConnectionError, aiohttp.SocketTimeoutError, TimeoutError, OSError) as error:
            if self.request.transport is None or self.request.transport.is_closing():
                return _error(400, "invalid_request_error", "the client has disconnected")
            await self._back_off(f"the model cannot be reached: {type(error).__name__} {error}", None)
            return None

    async def _back_off(self, reason: str, after_s: float | None) -> None:
        workspace, config = self.gateway.workspace, self.gateway.config
        state = await asyncio.to_thread(api_backoff.back_off, workspace, config, after_s=after_s, reason=reason)
        logger.warning("%s: all workers wait %.0f s", reason, state.wait_s())

    async def _stream(self, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {name: answer.headers[name] for name in _KEPT_OF_ANSWERS if name in answer.headers}
        response = web.StreamResponse(status=answer.status, headers=headers)
        usage = self._usage = AnswerUsage(streamed="event-stream" in answer.headers.get("content-type", ""))
        await response.prepare(self.request)
        try:
            async for chunk in answer.content.iter_any():
                self.budget.meter.record_activity()
                usage.feed(chunk)
                await response.write(chunk)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("an answer of the model ended early: %s %s", type(error).__name__, error)
            if self.request.transport is not None:
                self.request.transport.abort()  # the agent must see an incomplete stream too
        finally:
            usage.end()
        return response


def _error(status: int, kind: str, message: str, *, retry: bool = False) -> web.Response:
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(body, status=status, headers={"x-should-retry": "true" if retry else "false"})


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds of a `retry-after` header; None for any other value (this API sends no dates)."""
    with suppress(TypeError, ValueError):
        return min(max(float(str(text)), 0.0), _LONGEST_RETRY_AFTER_S)
    return None
