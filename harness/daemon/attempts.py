"""Number of judges lost over each measurement. Kept on disk: a restart must not grant a candidate new attempts.

Only losses that the daemon saw count. A crash of the daemon does not count as a failed attempt of the candidate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import FormatError
from harness.failpoints import failpoint
from harness.formats.bounded import load_json_file
from harness.workspace.files import atomic_write

MOST = 2
"""So many lost judges are a verdict."""


class Loss(BaseModel):
    """One judge that was lost over a measurement."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    how: Literal["ended", "deadline"]
    reason: str


class Attempts:
    """Losses per measurement, in `directory`, one small file each.

    Args:
        directory: in the workspace's state, not among what can be derived again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._here: dict[Path, tuple[Loss, ...]] = {}
        """What this process has seen: a disk that takes no record must not make a candidate immortal."""

    def losses(self, identity: Sequence[str]) -> tuple[Loss, ...]:
        """What is known of a measurement; a file that cannot be read is an attempt less, not an error."""
        if self._file(identity) in self._here:
            return self._here[self._file(identity)]
        try:
            rows = load_json_file(self._file(identity))["losses"]
            return tuple(Loss.model_validate(row) for row in rows)
        except (OSError, FormatError, KeyError, TypeError, ValidationError):
            return ()

    def lost(self, identity: Sequence[str], loss: Loss) -> tuple[Loss, ...]:
        """Add a loss and return all of them.

        Raises:
            ConfigurationError: they cannot be written; this object counts them all the same.
        """
        losses = self._here[self._file(identity)] = (*self.losses(identity), loss)
        record = {"version": 1, "key": list(identity), "losses": [each.model_dump() for each in losses]}
        failpoint("daemon.before_attempt_recorded")
        atomic_write(self._file(identity), json.dumps(record))
        failpoint("daemon.after_attempt_recorded")
        return losses

    def forget(self, identity: Sequence[str]) -> None:
        """The measurement has its entry."""
        self._here.pop(self._file(identity), None)
        with suppress(OSError):  # it has its entry: nobody asks for its attempts again
            self._file(identity).unlink(missing_ok=True)

    def _file(self, identity: Sequence[str]) -> Path:
        return self._directory / f"{hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:32]}.json"
