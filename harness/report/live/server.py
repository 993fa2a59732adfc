"""The HTTP server of `harness serve`: one read-only page, a stream of its changes, and the thread that finds them."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from aiohttp import web

from harness.errors import ConfigurationError, HarnessError
from harness.report.live.access import Access
from harness.report.live.collector import Collector
from harness.report.live.problem_parts import as_json
from harness.report.page import page_file

logger = logging.getLogger(__name__)

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

HEARTBEAT_S = 10.0
"""Interval of comments on an idle stream, which detect closed connections."""
_WRITE_TIMEOUT_S = 30.0
_RETRY_MS = 1000
_SHUTDOWN_S = 0.2
_VIEWED_INTERVAL_S = 0.25
"""Pause between two updates while a viewer is connected; an update without changes takes 10 ms."""
_IDLE_INTERVAL_S = 15.0
_JOIN_S = 2.0
_MAX_VIEWERS = 64
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "harness",
}
_FILES = {
    "": ("live/live.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "live.css": ("live/live.css", "text/css"),
    "charts.js": ("charts.js", "text/javascript"),
    "live.js": ("live/live.js", "text/javascript"),
}
"""Name below the access' path -> file in the package, and its type."""
_REFUSED = "Open the URL that `harness serve` printed: it has the token that this page needs.\n"
_REFUSED_FOREIGN = "Refused: this request does not come from the page at the URL that `harness serve` printed.\n"


class PageState:
    """Parts that one thread publishes and other threads read.

    A viewer sends its version and receives the parts that changed since then. The server therefore stores no state per
    viewer, and a slow viewer receives several changes at once.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._lock = threading.Lock()
        self._version = 0
        self._parts: dict[str, tuple[int, str]] = {}
        """Name -> (version of the last change, JSON); `null` for a removed part."""

    def publish(self, texts: Mapping[str, str]) -> bool:
        """Replace all parts.

        Args:
            texts: name -> JSON on one line.

        Returns:
            True if a part changed.
        """
        with self._lock:
            published = {name: text for name, (_, text) in self._parts.items()}
            present = {**dict.fromkeys(published, "null"), **texts}
            changed = {name: text for name, text in present.items() if published.get(name) != text}
            if changed:
                self._version += 1
                self._parts |= {name: (self._version, text) for name, text in changed.items()}
            return bool(changed)

    def changes_since(self, event_id: str | None) -> tuple[str, str] | None:
        """Return the present event id and a JSON object of the parts that changed since an earlier event.

        Args:
            event_id: the viewer's last event; None, or an id of another server, for all parts.

        Returns:
            None if no part changed.
        """
        viewer_version = self._viewer_version(event_id)
        with self._lock:
            if viewer_version == self._version:
                return None
            changed = [f'"{name}":{text}' for name, (version, text) in self._parts.items() if version > viewer_version]
            return f"{self._epoch}-{self._version}", "{" + ",".join(changed) + "}"

    def _viewer_version(self, event_id: str | None) -> int:
        epoch, _, digits = (event_id or "").partition("-")
        version = int(digits) if epoch == self._epoch and digits.isascii() and digits.isdigit() else 0
        return version if version <= self._version else 0


class Viewers:
    """The open streams, and the event that wakes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self.count = 0
        self.connected = threading.Event()
        """Set when a viewer connects."""
        self.closing = False

    def wake(self) -> None:
        """Notify all streams of a change. Thread-safe."""
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams. Called in the loop's thread."""
        self.closing = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def stream(self, request: web.Request, state: PageState) -> web.StreamResponse:
        """Send the parts that the viewer does not have, then each change, until the connection or the server ends.

        Args:
            request: the viewer's request; its Last-Event-ID names the version that it has.
            state: content of the page.
        """
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(f"retry: {_RETRY_MS}\n\n".encode())
        last_id = request.headers.get("Last-Event-ID")
        self.count += 1
        self.connected.set()
        try:
            while not self.closing:
                changed = self._changed
                changes = state.changes_since(last_id)
                if changes is None:
                    try:
                        await asyncio.wait_for(changed.wait(), HEARTBEAT_S)
                        continue
                    except TimeoutError:
                        text = ": still here\n\n"
                else:
                    last_id, data = changes
                    text = f"id: {last_id}\nevent: parts\ndata: {data}\n\n"
                await asyncio.wait_for(response.write(text.encode()), _WRITE_TIMEOUT_S)
        except (ConnectionError, TimeoutError):  # the viewer has disconnected or does not read
            pass
        finally:
            self.count -= 1
        return response


@dataclass(frozen=True)
class _Page:
    """The requests of the page, and the checks before each of them."""

    access: Access
    state: PageState
    viewers: Viewers

    @web.middleware
    async def guard(self, request: web.Request, handler: Answer) -> web.StreamResponse:
        """Answer only requests of this page by holders of the token."""
        access, host = self.access, request.headers.get("Host")
        origins = request.headers.getall("Origin", [])
        if not access.host_allowed(host) or any(origin != f"http://{host}" for origin in origins):
            return web.Response(status=403, text=_REFUSED_FOREIGN)
        if request.path != "/" and not access.cookie_matches(request.cookies.get(access.cookie_name)):
            return web.Response(status=403, text=_REFUSED)
        return await handler(request)

    async def enter(self, request: web.Request) -> web.Response:
        """Exchange the token for the cookie."""
        access = self.access
        if not access.token_matches(request.query.get("token")):
            return web.Response(status=403, text=_REFUSED)
        response = web.Response(status=303, headers={"Location": access.path})
        response.set_cookie(access.cookie_name, access.cookie, path=access.path, httponly=True, samesite="Strict")
        return response

    async def file(self, request: web.Request) -> web.Response:
        """Return a file of the package."""
        name, kind = _FILES[request.path.removeprefix(self.access.path)]
        return web.Response(text=page_file(name), content_type=kind)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Return the stream of changes."""
        if self.viewers.count >= _MAX_VIEWERS:
            return web.Response(status=503, text=f"{_MAX_VIEWERS} pages are already open: close a page.\n")
        return await self.viewers.stream(request, self.state)


def application(access: Access, state: PageState, viewers: Viewers) -> web.Application:
    """Return the application.

    Args:
        access: checks each request.
        state: content of the page.
    """
    page = _Page(access, state, viewers)

    async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(_HEADERS)

    app = web.Application(middlewares=[page.guard])
    app.on_response_prepare.append(add_headers)
    app.router.add_get("/", page.enter)
    for name in _FILES:
        app.router.add_get(f"{access.path}{name}", page.file)
    app.router.add_get(f"{access.path}events", page.events, allow_head=False)
    return app


async def serve(listener: socket.socket, state: PageState, ready: Callable[[Access, Viewers], None]) -> None:
    """Serve until the task is cancelled, which Ctrl-C does.

    Args:
        listener: from `listen`; closed at the end.
        state: content of the page.
        ready: called in the loop's thread once the server answers.
    """
    address, port = listener.getsockname()[:2]
    access, viewers = Access(address, port), Viewers(asyncio.get_running_loop())
    app = application(access, state, viewers)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        ready(access, viewers)
        await asyncio.Event().wait()
    finally:
        viewers.close()
        await runner.cleanup()
        listener.close()


def listen(address: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        port: 0 for a free port.

    Raises:
        ConfigurationError: the address or port cannot be used.
    """
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    except ValueError as error:
        raise ConfigurationError(
            f"`{address}` is not an IP address", where="--bind", remedy="harness serve    # listens at 127.0.0.1"
        ) from error
    try:
        return socket.create_server((address, port), family=family, backlog=_MAX_VIEWERS)
    except OSError as error:
        refused = {
            errno.EADDRINUSE: f"port {port} is used by another program",
            errno.EACCES: f"this user may not listen at port {port}",
        }
        if reason := refused.get(error.errno or 0):
            remedy = "harness serve --port 0    # selects a free port"
            raise ConfigurationError(reason, where="--port", remedy=remedy) from error
        message = f"cannot listen at {address}: {error.strerror}"
        remedy = "harness serve    # listens at 127.0.0.1; `ip address` lists the addresses of this machine"
        raise ConfigurationError(message, where="--bind", remedy=remedy) from error


def _update(
    collector: Collector, texts: Mapping[str, str], state: PageState, viewers: Viewers, stop: threading.Event
) -> None:
    """Collect and publish changes until `stop` is set, then close the collector."""
    try:
        while not stop.is_set():
            viewers.connected.clear()
            fault = None
            try:
                texts = collector.collect()
            except HarnessError as error:
                fault = str(error)
            except Exception as error:
                logger.exception("the live page could not be brought up to date")
                fault = f"internal error: {type(error).__name__}: {error}"
            if state.publish({**texts, "fault": as_json({"message": fault})} if fault is not None else texts):
                viewers.wake()
            if viewers.count:
                stop.wait(_VIEWED_INTERVAL_S)
            else:
                viewers.connected.wait(_IDLE_INTERVAL_S)
    finally:
        collector.close()


def serve_page(
    listener: socket.socket, collector: Collector, texts: Mapping[str, str], announce: Callable[[str], None]
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        listener: from `listen`; closed at the end.
        collector: reads the ledger, from now on in a thread that closes it.
        texts: the parts of the first collection.
        announce: called with the URL once the server accepts connections.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    state, stop = PageState(), threading.Event()
    state.publish(texts)
    with ExitStack() as stack:

        def ready(access: Access, viewers: Viewers) -> None:
            arguments = (collector, texts, state, viewers, stop)
            thread = threading.Thread(target=_update, args=arguments, name="live page", daemon=True)
            # A thread that reads a large ledger ends with the process; it only reads.
            stack.callback(thread.join, _JOIN_S)
            stack.callback(viewers.connected.set)
            stack.callback(stop.set)
            thread.start()
            announce(access.url)

        asyncio.run(serve(listener, state, ready))
