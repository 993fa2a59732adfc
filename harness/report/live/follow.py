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
from harness.report.live.problem_parts import as_json
from harness.report.live.server import PageState, Viewers, serve

logger = logging.getLogger(__name__)

_VIEWED_INTERVAL_S = 0.25
"""Pause between two updates while a viewer is connected; an update without changes takes 10 ms."""
_IDLE_INTERVAL_S = 15.0
_JOIN_S = 2.0


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
            announce(access)

        asyncio.run(serve(listener, state, ready))
