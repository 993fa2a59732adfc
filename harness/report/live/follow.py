"""The live page from its start to Ctrl-C: the server, and the thread that keeps the page up to date."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from harness.errors import HarnessError
from harness.report.live.access import Access
from harness.report.live.collector import Collector
from harness.report.live.page_state import PageState
from harness.report.live.problem_parts import as_json
from harness.report.live.server import Viewers, serve

logger = logging.getLogger(__name__)

_WATCHED_S = 0.25
"""Pause between two looks while a viewer is connected; a look without changes takes 10 ms."""
_ALONE_S = 15.0
_JOIN_S = 2.0


class Following:
    """Looks for changes and publishes them, from `start` to `close`, in a thread of its own.

    Args:
        collector: used by this thread alone, which closes it.
        state: receives the parts.
        viewers: woken after each change.
    """

    def __init__(self, collector: Collector, state: PageState, viewers: Viewers) -> None:
        self._collector, self._state, self._viewers = collector, state, viewers
        self._stop = threading.Event()
        self._texts: Mapping[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="live page", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread. One that is reading a large ledger ends with the process, which harms nothing."""
        self._stop.set()
        self._viewers.came.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._viewers.came.clear()
                self._look()
                if self._viewers.count:
                    self._stop.wait(_WATCHED_S)
                else:
                    self._viewers.came.wait(_ALONE_S)
        finally:
            self._collector.close()

    def _look(self) -> None:
        try:
            self._texts = self._collector.collect()
            texts = self._texts
        except HarnessError as error:
            texts = {**self._texts, "fault": as_json({"message": str(error)})}
        except Exception as error:
            logger.exception("the live page could not be brought up to date")
            texts = {**self._texts, "fault": as_json({"message": f"internal error: {type(error).__name__}: {error}"})}
        if self._state.publish(texts):
            self._viewers.wake()


def serve_page(
    listener: socket.socket, collector: Collector, texts: Mapping[str, str], announce: Callable[[Access], None]
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        listener: from `listen`; closed at the end.
        collector: reads the ledger, from now on in a thread that closes it.
        texts: the parts that it collected first.
        announce: called once the page can be opened.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    state = PageState()
    state.publish(texts)
    with ExitStack() as stack:

        def ready(access: Access, viewers: Viewers) -> None:
            following = Following(collector, state, viewers)
            stack.callback(following.close)
            following.start()
            announce(access)

        asyncio.run(serve(listener, state, ready))
