"""The agents' only way to a model: an HTTP server on Unix sockets that adds the credential and keeps the accounts.

Each session has a socket of its own, bound into its sandbox, so that a request's session is known by the way it came
and cannot be forged. Only the Messages API passes. Answers pass through piece by piece as they come. Rate limits and
outages hold all workers back (`fleet`): the request that met one waits here, unseen by the agent, as long as that may
take; a refused credential stops everybody. What a request may cost is reserved before it is forwarded
(`request_budget`): one that does not fit in what is left is refused, one that does not fit yet waits.
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
from harness.agents.model_access.request_budget import NoRoomYet, Refused, RequestBudget, Reserved
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
_STARTS_WITHIN_S = 20.0
_LONGEST_RETRY_AFTER_S = 24 * 3600.0
_ROOM_WITHIN_S = 480.0
"""A request waits so long for other reservations to be released: less than the 600 s after which the CLI gives up."""
_ROOM_POLL_S = 0.25
_ROOM_LONGEST_POLL_S = 2.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Upstream:
    """Where the model is, and what opens the door."""

    url: str
    headers: Mapping[str, str]

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Upstream:
        """From ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN).

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
            remedy="export ANTHROPIC_API_KEY=..., or say `harness start --agent tuner`, which needs no model",
        )


class Gateway:
    """The server, in a thread of its own, from `with` to its end.

    Args:
        workspace: whose fleet it belongs to.
        upstream: the model.
        config: how patient it is.
    """

    def __init__(self, workspace: Workspace, upstream: Upstream, config: GatewayConfig) -> None:
        self._workspace, self._upstream, self._config = workspace, upstream, config
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)
        self._started: Future[None] = Future()
        self._client: ClientSession | None = None
        self.counting: set[asyncio.Future[Any]] = set()
        """Answers that are being added to accounts, and reservations that are being released: a session whose client
        has gone is over when they are."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(_STARTS_WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STARTS_WITHIN_S)

    def serve(
        self, directory: Path, meter: Meter, over: Callable[[], str | None], budget: RequestBudget | None = None
    ) -> Served:
        """Serve one session on a socket, until what is returned is closed.

        Args:
            directory: where the socket appears, named `socket`; made as needed.
            meter: what its answers are added to.
            over: says why the session may not ask any more, or None. Called in the gateway's thread.
            budget: reserves what each request may cost; None where no limit in USD holds.
        """
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "socket").unlink(missing_ok=True)
        future = asyncio.run_coroutine_threadsafe(self._serve(directory, meter, over, budget), self._loop)
        return Served(self, *future.result(_STARTS_WITHIN_S))

    def call(self, closing: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine of the gateway's to its end."""
        asyncio.run_coroutine_threadsafe(closing, self._loop).result(_STARTS_WITHIN_S)

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
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _serve(
        self, directory: Path, meter: Meter, over: Callable[[], str | None], budget: RequestBudget | None
    ) -> tuple[web.AppRunner, int]:
        from aiohttp import web  # noqa: PLC0415

        async def handle(request: web.Request) -> web.StreamResponse:
            return await _Passing(self, request, meter, over, budget).answer()

        app = web.Application(client_max_size=_MAX_REQUEST_BYTES)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await runner.setup()
        # A socket's path has at most 107 characters; this one is short wherever the directory is.
        handle_of_directory = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        await web.UnixSite(runner, f"/proc/self/fd/{handle_of_directory}/socket").start()
        return runner, handle_of_directory

    @property
    def parts(self) -> tuple[Workspace, Upstream, GatewayConfig, ClientSession]:
        """What a request needs."""
        assert self._client is not None  # noqa: S101 - open since `_started`
        return self._workspace, self._upstream, self._config, self._client


@dataclass
class Served:
    """One session's socket."""

    gateway: Gateway
    runner: web.AppRunner
    directory: int

    def close(self) -> None:
        """Stop serving it; what is under way is broken off."""
        self.gateway.call(self._end())
        os.close(self.directory)

    async def _end(self) -> None:
        await self.runner.cleanup()
        await asyncio.gather(*self.gateway.counting)


@dataclass
class _Passing:
    """One request on its way through."""

    gateway: Gateway
    request: web.Request
    meter: Meter
    over: Callable[[], str | None]
    budget: RequestBudget | None
    answered: Spent | None = None
    """Tokens and cost of the answer, set after they are entered in the account."""
    _counting: asyncio.Future[None] | None = None
    _held_s: float = 0.0
    """Seconds for which the request has waited for a rate limit or an outage."""
    _waited_for_room_s: float = 0.0

    async def answer(self) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415

        if (self.request.method, self.request.path) not in _ADMITTED:
            if self.request.method == "HEAD":  # how the CLI asks whether anybody is there
                return web.Response()
            return _error(404, "not_found_error", "this gateway passes the Messages API and nothing else")
        body = await self.request.read()
        self.meter.heard()
        return await self._forward(body)

    async def _forward(self, body: bytes) -> web.StreamResponse:
        """Ask the model once it may be asked, and what the request may cost is reserved."""
        from aiohttp import web  # noqa: PLC0415

        while True:
            state = api_backoff.look(self.gateway.parts[0])
            why = self.over()
            if state.stopped:
                return _error(401, "authentication_error", state.stopped)
            if why:
                return _error(400, "invalid_request_error", f"{_ENDS_SESSION}: {why}")
            if state.wait_s() > 0:
                if not await self._wait_out(state):
                    return _held(state, state.wait_s())
                continue
            reserved = await self._reserve(body)
            if isinstance(reserved, web.Response):
                return reserved
            if reserved is None:
                continue
            try:
                passed = await self._ask(body, state)
            finally:
                await self._settle(reserved)
            if passed is not None:
                return passed

    async def _wait_out(self, state: api_backoff.Fleet) -> bool:
        """Wait until requests may go out again; False when that takes longer than one waits here."""
        wait_s = state.wait_s()
        wait_s += random.uniform(0, min(1.0, wait_s / 4))  # noqa: S311 - so that not all ask at once
        if self._held_s + wait_s > self.gateway.parts[2].hold_s:
            return False
        self._held_s += wait_s
        await asyncio.sleep(wait_s)
        return True

    async def _reserve(self, body: bytes) -> Reserved | web.Response | None:
        """Reserve what the request may cost; the answer that refuses it; None when it does not fit yet."""
        if self.budget is None or self.request.path != _MESSAGES:
            return Reserved(None, len(body))
        reserving = asyncio.ensure_future(_aside(self.budget.reserve, body))
        try:
            reserved: Reserved | NoRoomYet | Refused = await asyncio.shield(reserving)
        except asyncio.CancelledError:  # the client has gone; the thread may still enter the reservation
            reserved = await reserving
            if isinstance(reserved, Reserved):
                await self._settle(reserved)
            raise
        except FormatError as error:
            return _error(400, "invalid_request_error", str(error))
        if isinstance(reserved, Refused):
            return _error(400, "invalid_request_error", f"{_ENDS_SESSION}: {reserved.why}")
        if isinstance(reserved, Reserved):
            return reserved
        self.meter.heard()  # the model is not silent: it has not been asked yet
        if self._waited_for_room_s > _ROOM_WITHIN_S:
            return _error(429, "rate_limit_error", reserved.why, retry=True)
        wait_s = min(max(_ROOM_POLL_S, self._waited_for_room_s / 4), _ROOM_LONGEST_POLL_S)
        wait_s *= random.uniform(0.5, 1.5)  # noqa: S311 - so that not all look at once
        self._waited_for_room_s += wait_s
        await asyncio.sleep(wait_s)
        return None

    async def _settle(self, reserved: Reserved) -> None:
        """Release a reservation, after what the answer cost has been added to the account."""
        if self.budget is None:
            return
        budget, counting = self.budget, self._counting

        async def settle() -> None:
            if counting is not None:
                await asyncio.wait([counting])
            await _aside(budget.settle, reserved, self.answered)

        await self._count(settle())

    async def _count(self, counting: Coroutine[Any, Any, None]) -> None:
        """Run what must be brought to its end also when the client has gone."""
        self._counting = asyncio.ensure_future(counting)
        self.gateway.counting.add(self._counting)
        self._counting.add_done_callback(self.gateway.counting.discard)
        await asyncio.shield(self._counting)

    async def _add_answer(self, used: AnswerUsage) -> None:
        spent = used.spent()
        await _aside(self.meter.add_answer, used.model, spent)
        self.answered = spent

    async def _ask(self, body: bytes, state: api_backoff.Fleet) -> web.StreamResponse | None:
        """Ask the model once; None when the fleet is held back and the request is to be made again."""
        import aiohttp  # noqa: PLC0415

        workspace, upstream, config, client = self.gateway.parts
        back_off = {"first_s": config.first_s, "longest_s": config.longest_s}
        headers = {name: value for name, value in self.request.headers.items() if name.lower() not in _DROPPED}
        headers |= {**upstream.headers, "accept-encoding": "identity"}
        url = f"{upstream.url}{self.request.path_qs}"
        try:
            async with client.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                if answer.status in _REFUSED:
                    said = (await answer.text())[:300]
                    why = f"the model's side refuses the credential ({answer.status}): {said}"
                    await _aside(api_backoff.stop, workspace, why)
                    logger.error("%s", why)
                    return _error(answer.status, "authentication_error", why)
                if answer.status in _BUSY:
                    after_s = _retry_after_s(answer.headers.get("retry-after"))
                    why = f"the model's side answers {answer.status}"
                    held = await _aside(api_backoff.hold, workspace, after_s=after_s, why=why, **back_off)
                    logger.warning("%s: everybody waits %.0f s", why, held.wait_s())
                    return None
                await _aside(api_backoff.worked, workspace, state)
                return await self._pass_on(answer)
        except (aiohttp.ClientConnectionError, aiohttp.SocketTimeoutError, TimeoutError, OSError) as error:
            if self.request.transport is None or self.request.transport.is_closing():
                return _error(400, "invalid_request_error", "nobody waits for this answer any more")
            why = f"the model cannot be reached: {type(error).__name__} {error}"
            held = await _aside(api_backoff.hold, workspace, after_s=None, why=why, **back_off)
            logger.warning("%s: everybody waits %.0f s", why, held.wait_s())
            return None

    async def _pass_on(self, answer: ClientResponse) -> web.StreamResponse:
        import aiohttp  # noqa: PLC0415
        from aiohttp import web  # noqa: PLC0415

        headers = {name: answer.headers[name] for name in _KEPT_OF_ANSWERS if name in answer.headers}
        response = web.StreamResponse(status=answer.status, headers=headers)
        used = AnswerUsage(streamed="event-stream" in answer.headers.get("content-type", ""))
        await response.prepare(self.request)
        try:
            async for piece in answer.content.iter_any():
                self.meter.heard()
                used.feed(piece)
                await response.write(piece)
            await response.write_eof()
        except (aiohttp.ClientError, TimeoutError) as error:
            logger.warning("an answer broke off: %s %s", type(error).__name__, error)
            if self.request.transport is not None:
                self.request.transport.abort()  # the agent sees what was seen here: a stream without its end
        finally:
            used.end()
            if used.begun:
                await self._count(self._add_answer(used))
        return response


async def _aside(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - passes through
    """Call what writes a file without holding the other sessions up."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*arguments, **named))


def _error(status: int, kind: str, message: str, *, retry: bool = False) -> web.Response:
    from aiohttp import web  # noqa: PLC0415

    body = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(body, status=status, headers={"x-should-retry": "true" if retry else "false"})


def _held(state: api_backoff.Fleet, wait_s: float) -> web.Response:
    response = _error(429, "rate_limit_error", f"{state.why}: everybody waits {wait_s:.0f} s")
    response.headers["retry-after"] = str(round(wait_s + 0.5))
    return response


def _retry_after_s(text: str | None) -> float | None:
    """The header's seconds; None where it says none (a date is not used by this API)."""
    with suppress(TypeError, ValueError):
        return min(max(float(str(text)), 0.0), _LONGEST_RETRY_AFTER_S)
    return None
