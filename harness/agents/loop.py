"""An event loop that leaves none of its processes' pipes open."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Loop(asyncio.SelectorEventLoop):
    """Knows the processes that were started in it."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - passed on as it is
        transport, protocol = await super().subprocess_exec(*arguments, **settings)
        self.started.append(transport)
        return transport, protocol


def run_and_close(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """`asyncio.run`, whatever the coroutine started then closed.

    A process that has ended may have pipes that have not: something else holds them, or nobody has read their end yet.
    A transport that is open when its loop closes keeps their descriptors, and asyncio complains of it wherever it is
    collected.
    """
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            for transport in loop.started:
                transport.close()
