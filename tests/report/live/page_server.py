"""The live page's real server in the test's own process, and a client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from harness.report.live.access import Access
from harness.report.live.server import PageState, Viewers, listen, serve
from tests.waiting import DEADLINE_S


@dataclass
class Served:
    """A running server, and a client without cookies."""

    access: Access
    viewers: Viewers
    state: PageState
    client: aiohttp.ClientSession
    task: asyncio.Task[None]

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.access.port}"

    @property
    def cookie(self) -> dict[str, str]:
        """Return the header of a viewer that has exchanged the token."""
        return {"Cookie": f"{self.access.cookie_name}={self.access.cookie}"}

    async def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> tuple[int, str]:
        """Return the status and the body of a response."""
        async with self.client.request(method, self.root + path, headers=headers, allow_redirects=False) as response:
            return response.status, await response.text()

    def publish(self, **parts: object) -> None:
        """Publish the content of the page, as the collecting thread does."""
        if self.state.publish({name.replace("__", ":"): json.dumps(value) for name, value in parts.items()}):
            self.viewers.wake()

    @asynccontextmanager
    async def events(self, last_id: str | None = None) -> AsyncIterator[Callable[[], Awaitable[tuple[str, Any]]]]:
        """Yield a function that waits for the next event of a stream and returns its id and data."""
        headers = self.cookie | ({"Last-Event-ID": last_id} if last_id else {})
        async with self.client.get(f"{self.root}{self.access.path}events", headers=headers) as response:
            assert response.status == 200
            assert response.content_type == "text/event-stream"

            async def next_event() -> tuple[str, Any]:
                fields: dict[str, str] = {}
                while True:
                    line = (await asyncio.wait_for(response.content.readline(), DEADLINE_S)).decode().rstrip("\n")
                    name, _, value = line.partition(": ")
                    if not line and "data" in fields:
                        return fields["id"], json.loads(fields["data"])
                    fields[name] = value

            yield next_event


@asynccontextmanager
async def serving(address: str = "127.0.0.1") -> AsyncIterator[Served]:
    """Run a server at a free port until the end of the block."""
    state = PageState()
    ready: asyncio.Future[tuple[Access, Viewers]] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(listen(address, 0), state, lambda *parts: ready.set_result(parts)))
    access, viewers = await asyncio.wait_for(ready, DEADLINE_S)
    try:
        # 1 MB: a whole page comes as one line.
        async with aiohttp.ClientSession(read_bufsize=1 << 20, cookie_jar=aiohttp.DummyCookieJar()) as client:
            yield Served(access, viewers, state, client, task)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, DEADLINE_S)


def in_loop(test: Callable[[Served], Awaitable[None]]) -> None:
    """Run a test against a new server."""

    async def run() -> None:
        async with serving() as served:
            await test(served)

    asyncio.run(run())
