"""The live page from its start to Ctrl-C: the server, and the thread that updates the page."""

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

_VIEWED_INTERVAL_S = 0.25
"""Pause between two updates while a viewer is connected; an update without changes takes 10 ms."""
_IDLE_INTERVAL_S = 15.0
_JOIN_S = 2.0


class PageUpdater:
    """Collects and publishes changes in a thread, from `start` to `close`.

    Args:
        collector: used and closed by the thread only.
        state: receives the parts.
        viewers: notified of each change.
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
        """End the thread. A thread that reads a large ledger ends with the process; it only reads."""
        self._stop.set()
        self._viewers.connected.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._viewers.connected.clear()
                self._update()
                if self._viewers.count:
                    self._stop.wait(_VIEWED_INTERVAL_S)
                else:
                    self._viewers.connected.wait(_IDLE_INTERVAL_S)
        finally:
            self._collector.close()

    def _update(self) -> None:
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
        texts: the parts of the first collection.
        announce: called once the server accepts connections.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    state = PageState()
    state.publish(texts)
    with ExitStack() as stack:

        def ready(access: Access, viewers: Viewers) -> None:
            updater = PageUpdater(collector, state, viewers)
            stack.callback(updater.close)
            updater.start()
            announce(access)

        asyncio.run(serve(listener, state, ready))
