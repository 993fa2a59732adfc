"""An asyncio event loop that closes the pipes of its processes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that records the transports of its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - forwarded unchanged
        transport, protocol = await super().subprocess_exec(*arguments, **settings)
        self.transports.append(transport)
        return transport, protocol


def run_and_close(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine like `asyncio.run`, then close the transports of its processes, and return its result.

    The pipes of a process that has ended may still be open: another process holds them, or their end was not read yet.
    A transport that is open when its loop closes keeps the descriptors, and asyncio warns when it is garbage-collected.
    """
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            for transport in loop.transports:
                transport.close()
