"""Number of judges that each measurement has lost, on disk: a restart must not grant a candidate new attempts.

Only losses that the daemon detected count. A crash of the daemon does not count as a failed attempt of the candidate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from harness.failpoints import failpoint
from harness.model.base_models import StrictModel
from harness.workspace.files import atomic_write, read_record

MAX_LOSSES = 2
"""A measurement with this number of lost judges gets a verdict."""


class Loss(StrictModel):
    """The loss of a judge during a measurement."""

    cause: Literal["ended", "deadline"]
    reason: str


class _LossRecord(StrictModel):
    version: Literal[1] = 1
    key: tuple[str, ...]
    """Identity of the measurement, for people."""
    losses: tuple[Loss, ...]


class Attempts:
    """Losses per measurement, one small file each.

    Args:
        directory: the files' directory, in the workspace's state: losses cannot be derived again.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._losses: dict[Path, tuple[Loss, ...]] = {}
        """Losses of this process: without them, a candidate would have unlimited attempts on an unwritable disk."""

    def losses(self, identity: Sequence[str]) -> tuple[Loss, ...]:
        """Return the losses of a measurement; an unreadable file counts as no loss."""
        file = self._file(identity)
        if file in self._losses:
            return self._losses[file]
        record = read_record(file, _LossRecord)
        return record.losses if record is not None else ()

    def lost(self, identity: Sequence[str], loss: Loss) -> tuple[Loss, ...]:
        """Add a loss and return all losses of the measurement.

        Raises:
            ConfigurationError: the losses cannot be written; this object still counts them.
        """
        losses = self._losses[self._file(identity)] = (*self.losses(identity), loss)
        record = _LossRecord(key=tuple(identity), losses=losses)
        failpoint("daemon.before_attempt_recorded")
        atomic_write(self._file(identity), record.model_dump_json())
        failpoint("daemon.after_attempt_recorded")
        return losses

    def forget(self, identity: Sequence[str]) -> None:
        """Delete the losses of a measurement that has its entry."""
        self._losses.pop(self._file(identity), None)
        with suppress(OSError):  # the losses of a measurement with an entry are never read again
            self._file(identity).unlink(missing_ok=True)

    def _file(self, identity: Sequence[str]) -> Path:
        return self._directory / f"{hashlib.sha256(json.dumps(list(identity)).encode()).hexdigest()[:32]}.json"
