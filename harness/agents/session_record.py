"""The file that names a worker's open session, so that the session continues after the worker was killed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.model.config import AgentKind
from harness.workspace.files import atomic_write


@dataclass(frozen=True)
class SessionRecord:
    """Reads and writes the id of one worker's unfinished session. A record of another run or kind is ignored."""

    directory: Path
    """The directory of the worker's agents."""
    run: str
    kind: AgentKind

    @property
    def _file(self) -> Path:
        return self.directory / "session.json"

    def remember(self, problem: str, session: str) -> None:
        """Record an open session.

        Args:
            problem: key of its problem.
            session: its id.
        """
        record = {"run": self.run, "kind": self.kind, "problem": problem, "session": session}
        if record != self._read():
            atomic_write(self._file, json.dumps(record))

    def unfinished(self, problem: str) -> str | None:
        """Return the id of the unfinished session on a problem; None without one."""
        record = self._read()
        matches = (record.get("run"), record.get("kind"), record.get("problem")) == (self.run, self.kind, problem)
        return str(record["session"]) if matches else None

    def forget(self) -> None:
        """Remove the record of a session that has ended."""
        self._file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        with suppress(OSError, FormatError):
            record = load_json_file(self._file)
            return record if isinstance(record, dict) else {}
        return {}
