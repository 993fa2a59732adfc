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
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.agents.model_access import api_backoff
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_budget import BudgetReserved, Refused, RequestBudget, Reserved
from harness.agents.model_access.usage import AnswerUsage
from harness.errors import ConfigurationError, FormatError
from harness.ledger.accounts import Spent
from harness.model.config import GatewayConfig
from harness.workspace.directories import Workspace

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web

DEFAULT_UPSTREAM = "https://api.anthropic.com"
_MESSAGES = "/v1/messages"
_ENDS_SESSION = "the harness ends this session"
"""`claude` looks for these words in the CLI's last message."""
_ADMITTED = {("POST", _MESSAGES), ("POST", f"{_MESSAGES}/count_tokens")}
_DROPPED = {
    "host", "x-api-key", "authorization", "proxy-authorization", "cookie", "connection", "keep-alive",
    "accept-encoding", "content-length", "transfer-encoding", "expect", "upgrade", "te", "trailer",
}  # fmt: skip
_KEPT_OF_ANSWERS = ("content-type", "request-id", "retry-after", "cache-control")
_BUSY = {429, 500, 502, 503, 504, 529}
_REFUSED = {401, 403}
_MAX_REQUEST_BYTES = 64 << 20
_CONNECT_S = 20.0
_START_TIMEOUT_S = 20.0
_LONGEST_RETRY_AFTER_S = 24 * 3600.0
_BUDGET_WAIT_S = 480.0
"""Timeout of the wait for other reservations to be released: less than the 600 s after which the CLI gives up."""
_BUDGET_POLL_S = 0.25
_BUDGET_LONGEST_POLL_S = 2.0

logger = logging.getLogger(__name__)


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
        url = environ.get("ANTHROPIC_BASE_URL") or DEFAULT_UPSTREAM
        if environ.get("ANTHROPIC_API_KEY"):
            return cls(url.rstrip("/"), {"x-api-key": environ["ANTHROPIC_API_KEY"]})
        if environ.get("ANTHROPIC_AUTH_TOKEN"):
            return cls(url.rstrip("/"), {"authorization": f"Bearer {environ['ANTHROPIC_AUTH_TOKEN']}"})
        raise ConfigurationError(
            "no credential for the model",
            where="ANTHROPIC_API_KEY",
            remedy="export ANTHROPIC_API_KEY=..., or use `harness start --agent tuner`, which needs no model",
        )


class Gateway:
    """Runs the server in a thread for the duration of a `with` block.

    Args:
        workspace: its workers share the backoff state and the reservations.
        upstream: address and credential of the model API.
        config: timeouts and waits.
    """

    def __init__(self, workspace: Workspace, upstream: Upstream, config: GatewayConfig) -> None:
        self._workspace, self._upstream, self._config = workspace, upstream, config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._started: Future[None] = Future()
        self._client: ClientSession | None = None
        self.accounting: set[asyncio.Future[Any]] = set()
        """Updates of accounts and releases of reservations in progress. They finish even if the client disconnects."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(_START_TIMEOUT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_TIMEOUT_S)

    def serve(
        self,
        directory: Path,
        meter: Meter,
        refusal: Callable[[], str | None],
        budget: RequestBudget | None = None,
    ) -> SessionSocket:
        """Serve one session on a socket, until the returned object is closed.

        Args:
            directory: receives the socket, named `socket`; created if missing.
            meter: the session's account, to which the usage of each answer is added.
            refusal: returns the reason why the session may send no further request, or None. Called in the gateway's
                thread.
            budget: reserves the largest possible cost of each request; None without a limit in USD.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "socket").unlink(missing_ok=True)
        future = asyncio.run_coroutine_threadsafe(self._serve(directory, meter, refusal, budget), self._loop)
        return SessionSocket(self, *future.result(_START_TIMEOUT_S))

    def call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the gateway's loop and wait for its end."""
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_START_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._open())
            self._started.set_result(None)
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for the start
            self._started.set_exception(error)
            return
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _open(self) -> None:
        from aiohttp import ClientSession, ClientTimeout, TCPConnector  # noqa: PLC0415 - a tenth of a second

        timeout = ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._config.idle_s)
        connector = TCPConnector(limit=0)
        self._client = ClientSession(timeout=timeout, connector=connector, auto_decompress=False, trust_env=True)

    async def _close(self) -> None:
        if self._client is not None:
            await self._client.close()
        remaining = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in remaining:
            task.cancel()
        await asyncio.gather(*remaining, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _serve(
        self, directory: Path, meter: Meter, refusal: Callable[[], str | None], budget: RequestBudget | None
    ) -> tuple[web.AppRunner, int]:
        from aiohttp import web  # noqa: PLC0415

        async def handle(request: web.Request) -> web.StreamResponse:
            return await _ForwardedRequest(self, request, meter, refusal, budget).answer()

        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        # A socket's path has at most 107 characters; a path through the descriptor is short for every directory.
        directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        await web.UnixSite(runner, f"/proc/self/fd/{directory_fd}/socket").start()
        return runner, directory_fd

    @property
    def parts(self) -> tuple[Workspace, Upstream, GatewayConfig, ClientSession]:
        """Return the workspace, the upstream, the configuration and the HTTP client."""
        assert self._client is not None  # noqa: S101 - open since `_started`
        return self._workspace, self._upstream, self._config, self._client


@dataclass
class SessionSocket:
    """The socket of one session."""

    gateway: Gateway
    runner: web.AppRunner
    directory_fd: int

    def close(self) -> None:
        """Stop serving the session; requests in progress are aborted."""
        self.gateway.call(self._end())
        os.close(self.directory_fd)

    async def _end(self) -> None:
        await self.runner.cleanup()
        await asyncio.gather(*self.gateway.accounting)


@dataclass
class _ForwardedRequest:
    """One request of an agent and its state in the gateway."""

    gateway: Gateway
    request: web.Request
    meter: Meter
    refusal: Callable[[], str | None]
    budget: RequestBudget | None
    answer_spent: Spent | None = None
    """Tokens and cost of the answer, set after they are entered in the account."""
    _accounting: asyncio.Future[None] | None = None
    _backoff_wait_s: float = 0.0
    """Seconds for which the request has waited for a rate limit or an outage."""
    _budget_wait_s: float = 0.0
    """Seconds for which the request has waited for other reservations to be released."""

    async def answer(self) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415

        if (self.request.method, self.request.path) not in _ADMITTED:
            if self.request.method == "HEAD":  # the CLI probes the connection with HEAD
                return web.Response()
            return _error(404, "not_found_error", "this gateway forwards requests of the Messages API only")
        body = await self.request.read()
        self.meter.record_activity()
        return await self._forward(body)

    async def _forward(self, body: bytes) -> web.StreamResponse:
        """Send the request after the backoff has ended and its cost is reserved; return the answer."""
        from aiohttp import web  # noqa: PLC0415

        while True:
            state = api_backoff.read_backoff(self.gateway.parts[0])
            refusal = self.refusal()
            if state.stopped:
                return _error(401, "authentication_error", state.stopped)
            if refusal:
                return _error(400, "invalid_request_error", f"{_ENDS_SESSION}: {refusal}")
            if state.wait_s() > 0:
                if not await self._wait_for_backoff(state):
                    return _rate_limit_answer(state, state.wait_s())
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

    async def _wait_for_backoff(self, state: api_backoff.ApiBackoff) -> bool:
        """Wait until requests may be sent again; return False if that exceeds the longest wait in the gateway."""
        wait_s = state.wait_s()
        wait_s += random.uniform(0, min(1.0, wait_s / 4))  # noqa: S311 - jitter spreads the requests of all workers
        if self._backoff_wait_s + wait_s > self.gateway.parts[2].hold_s:
            return False
        self._backoff_wait_s += wait_s
        await asyncio.sleep(wait_s)
        return True

    async def _reserve(self, body: bytes) -> Reserved | web.Response | None:
        """Reserve the largest cost of the request; return a response that refuses it, or None if it must wait."""
        if self.budget is None or self.request.path != _MESSAGES:
            return Reserved(None, len(body))
        reserving = asyncio.ensure_future(_in_thread(self.budget.reserve, body))
        try:
            reserved: Reserved | BudgetReserved | Refused = await asyncio.shield(reserving)
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
        self.meter.record_activity()  # this wait does not count as silence: the request was not sent yet
        if self._budget_wait_s > _BUDGET_WAIT_S:
            return _error(429, "rate_limit_error", reserved.reason, retry=True)
        wait_s = min(max(_BUDGET_POLL_S, self._budget_wait_s / 4), _BUDGET_LONGEST_POLL_S)
        wait_s *= random.uniform(0.5, 1.5)  # noqa: S311 - jitter spreads the reads of the reservations
        self._budget_wait_s += wait_s
        await asyncio.sleep(wait_s)
        return None

    async def _settle(self, reserved: Reserved) -> None:
        """Release a reservation after the cost of the answer has been added to the account."""
        if self.budget is None:
            return
        budget, accounting = self.budget, self._accounting

        async def settle() -> None:
            if accounting is not None:
                await asyncio.wait([accounting])
            await _in_thread(budget.settle, reserved, self.answer_spent)

        await self._finish(settle())

    async def _finish(self, accounting: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end, also if the client disconnects."""
        self._accounting = asyncio.ensure_future(accounting)
        self.gateway.accounting.add(self._accounting)
        self._accounting.add_done_callback(self.gateway.accounting.discard)
        await asyncio.shield(self._accounting)

    async def _add_answer(self, usage: AnswerUsage) -> None:
        spent = usage.spent()
        await _in_thread(self.meter.add_answer, usage.model, spent)
        self.answer_spent = spent

    async def _send(self, body: bytes, state: api_backoff.ApiBackoff) -> web.StreamResponse | None:
        """Send the request once; return None after a backoff, when it must be sent again."""
        import aiohttp  # noqa: PLC0415

        workspace, upstream, config, client = self.gateway.parts
        waits = {"first_s": config.first_s, "longest_s": config.longest_s}
        headers = {name: value for name, value in self.request.headers.items() if name.lower() not in _DROPPED}
        headers |= {**upstream.headers, "accept-encoding": "identity"}
        url = f"{upstream.url}{self.request.path_qs}"
        try:
            async with client.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status in _REFUSED:
                    text = (await answer.text())[:300]
                    reason = f"the model API refuses the credential ({answer.status}): {text}"
                    await _in_thread(api_backoff.stop_requests, workspace, reason)
                    logger.error("%s", reason)
                    return _error(answer.status, "authentication_error", reason)
                if answer.status in _BUSY:
                    after_s = _retry_after_s(answer.headers.get("retry-after"))
                    await self._back_off(f"the model API answers {answer.status}", after_s, waits)
                    return None
                await _in_thread(api_backoff.reset_failures, workspace, state)
                return await self._stream(answer)
        except (aiohttp.ClientConnectionError, aiohttp.SocketTimeoutError, TimeoutError, OSError) as error:
            if self.request.transport is None or self.request.transport.is_closing():
                return _error(400, "invalid_request_error", "the client has disconnected")
            await self._back_off(f"the model cannot be reached: {type(error).__name__} {error}", None, waits)
            return None

    async def _back_off(self, reason: str, after_s: float | None, waits: Mapping[str, float]) -> None:
        workspace = self.gateway.parts[0]
        state = await _in_thread(api_backoff.back_off, workspace, after_s=after_s, reason=reason, **waits)
        logger.warning("%s: all workers wait %.0f s", reason, state.wait_s())

    async def _stream(self, answer: ClientResponse) -> web.StreamResponse:
        import aiohttp  # noqa: PLC0415
        from aiohttp import web  # noqa: PLC0415

        headers = {name: answer.headers[name] for name in _KEPT_OF_ANSWERS if name in answer.headers}
        response = web.StreamResponse(status=answer.status, headers=headers)
        usage = AnswerUsage(streamed="event-stream" in answer.headers.get("content-type", ""))
        await response.prepare(self.request)
        try:
            async for chunk in answer.content.iter_any():
                self.meter.record_activity()
                usage.feed(chunk)
                await response.write(chunk)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("an answer of the model ended early: %s %s", type(error).__name__, error)
            if self.request.transport is not None:
                self.request.transport.abort()  # the agent must see an incomplete stream too
        finally:
            usage.end()
            if usage.begun:
                await self._finish(self._add_answer(usage))
        return response


async def _in_thread(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - passes through
    """Call a function that does file I/O in a thread, so that other sessions do not wait for it."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*arguments, **named))


def _error(status: int, kind: str, message: str, *, retry: bool = False) -> web.Response:
    from aiohttp import web  # noqa: PLC0415

    body = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(body, status=status, headers={"x-should-retry": "true" if retry else "false"})


def _rate_limit_answer(state: api_backoff.ApiBackoff, wait_s: float) -> web.Response:
    response = _error(429, "rate_limit_error", f"{state.reason}: all workers wait {wait_s:.0f} s")
    response.headers["retry-after"] = str(round(wait_s + 0.5))
    return response


def _retry_after_s(text: str | None) -> float | None:
    """Return the seconds of a `retry-after` header; None for any other value (this API sends no dates)."""
    with suppress(TypeError, ValueError):
        return min(max(float(str(text)), 0.0), _LONGEST_RETRY_AFTER_S)
    return None
