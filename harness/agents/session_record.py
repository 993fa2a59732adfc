"""The file that names a worker's open session, so that the session continues after the worker was killed."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.model.config import AgentKind
from harness.workspace.files import atomic_write


@dataclass(frozen=True)
class SessionRecord:
    """Reads and writes the id of one worker's unfinished session. A record of another run or kind is ignored."""

    file: Path
    run: str
    kind: AgentKind

    def remember(self, problem: str, session: str) -> None:
        """Record an open session.

        Args:
            problem: key of its problem.
            session: its id.
        """
        record = {"run": self.run, "kind": self.kind, "problem": problem, "session": session}
        atomic_write(self.file, json.dumps(record))

    def unfinished(self, problem: str) -> str | None:
        """Return the id of the unfinished session on a problem; None without one."""
        with suppress(OSError, FormatError, TypeError, KeyError):
            record = load_json_file(self.file)
            if (record["run"], record["kind"], record["problem"]) == (self.run, self.kind, problem):
                return str(record["session"])
        return None

    def forget(self) -> None:
        """Remove the record of a session that has ended."""
        self.file.unlink(missing_ok=True)
