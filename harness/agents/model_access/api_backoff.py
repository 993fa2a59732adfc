"""What holds all workers of a workspace back together: a rate limit, an outage, a refused credential.

One small file that every worker's gateway looks at before each request. Who meets the limit writes it; nobody has to
be told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, file_lock

_LOCK_S = 10.0


@dataclass(frozen=True)
class Fleet:
    """How things stand with the model."""

    hold_until: float = 0.0
    """Seconds since the epoch; no request goes out before."""
    why: str = ""
    failures: int = 0
    """In a row, over all workers."""
    stopped: str | None = None
    """Why nobody may ask any more: the credential was refused. Ends when a worker is started again."""

    def wait_s(self) -> float:
        """How long from now no request may go out."""
        return max(0.0, self.hold_until - time.time())


def look(workspace: Workspace) -> Fleet:
    """How things stand; all well where nothing can be read."""
    with suppress(OSError, FormatError, TypeError):
        return Fleet(**load_json_file(workspace.state / "fleet.json"))
    return Fleet()


def hold(workspace: Workspace, *, after_s: float | None, why: str, first_s: float, longest_s: float) -> Fleet:
    """Hold everybody back: for `after_s`, or twice as long as the last time, from `first_s` up to `longest_s`.

    An `after_s` below `first_s` (some say 0) is not taken at its word: asking at once, again and again, helps nobody.
    """
    with _changing(workspace):
        fleet = look(workspace)
        doubled = min(longest_s, first_s * 2.0 ** min(fleet.failures, 30))
        until = time.time() + (doubled if after_s is None or after_s < first_s else after_s)
        fleet = replace(fleet, hold_until=max(fleet.hold_until, until), why=why, failures=fleet.failures + 1)
        _write(workspace, fleet)
    return fleet


def stop(workspace: Workspace, why: str) -> None:
    """Nobody asks any more."""
    with _changing(workspace):
        _write(workspace, replace(look(workspace), stopped=why))


def worked(workspace: Workspace, seen: Fleet) -> None:
    """A request was answered: back-off starts from the beginning again. Writes only when there is something to undo."""
    if seen.failures:
        with _changing(workspace):
            _write(workspace, replace(look(workspace), failures=0, why=""))


def ask_again(workspace: Workspace) -> None:
    """A fresh start, perhaps with another credential; a wait stays in force."""
    if look(workspace).stopped:
        with _changing(workspace):
            _write(workspace, replace(look(workspace), stopped=None))


@contextmanager
def _changing(workspace: Workspace) -> Iterator[None]:
    with file_lock(workspace.state / "locks" / "fleet", wait_s=_LOCK_S, owner="a gateway"):
        yield


def _write(workspace: Workspace, fleet: Fleet) -> None:
    atomic_write(workspace.state / "fleet.json", json.dumps(asdict(fleet)))
