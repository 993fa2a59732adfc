"""Lessons on their way into the ledger: a worker leaves one as a file, the planner records it.

They lie in the git common directory: what was learned is not derived and must not be lost with `.harness/`.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write


@dataclass(frozen=True)
class Note:
    """One line that a worker learned about a problem."""

    id: str
    """Recorded with it, so that a note is not recorded twice when the planner dies between two steps."""
    problem: str
    worker: str
    session: str
    text: str
    at: str


def leave_note(workspace: Workspace, *, problem: str, worker: str, session: str, text: str, at: str) -> Note:
    """Put a note where the planner finds it."""
    line = " ".join(text.split())
    note = Note(id=uuid.uuid4().hex, problem=problem, worker=worker, session=session, text=line, at=at)
    atomic_write(_directory(workspace) / f"{note.id}.json", json.dumps(asdict(note)))
    return note


def waiting_notes(workspace: Workspace) -> list[Note]:
    """Notes that wait, oldest first. A file that is no note is left alone."""
    notes = []
    for file in _directory(workspace).glob("*.json"):
        with contextlib.suppress(OSError, FormatError, TypeError):
            notes.append(Note(**load_json_file(file)))
    return sorted(notes, key=lambda note: (note.at, note.id))


def drop_note(workspace: Workspace, note: Note) -> None:
    """The note is in the ledger now."""
    (_directory(workspace) / f"{note.id}.json").unlink(missing_ok=True)


def _directory(workspace: Workspace) -> Path:
    directory = workspace.state / "notes"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
