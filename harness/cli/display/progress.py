"""A progress bar on stderr, for people only: nothing is shown where stderr is no terminal, or when it is soon over."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SOON_S = 1.0


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a function to call with how much is done and how much there is."""
    if not sys.stderr.isatty():
        yield lambda _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")
    bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what)
    since = time.monotonic()

    def show(done: int, of: int) -> None:
        if not bar.live.is_started and time.monotonic() - since > _SOON_S:
            bar.start()
        bar.update(task, completed=done, total=of)

    try:
        yield show
    finally:
        bar.stop()
