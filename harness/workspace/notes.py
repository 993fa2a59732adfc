"""Lessons that are not in the ledger yet: a worker writes one as a file, the planner records it.

The files are in the git common directory: a lesson is not derived, so it must survive the deletion of `.harness/`.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness.errors import FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write


@dataclass(frozen=True, kw_only=True)
class Note:
    """A lesson of one line from a worker about a problem."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The ledger has it too, so that a planner that was killed between two steps does not record a note twice."""
    problem: str
    worker: str
    session: str
    text: str
    at: str
    entry: int | None = None
    """`seq` of the worker's last ledger entry on the problem, the source of the lesson."""
    contradicts: str | None = None
    """First digits of the id of a lesson that this lesson refutes."""


def leave_note(workspace: Workspace, note: Note) -> None:
    """Write a note for the planner.

    Args:
        workspace: the workspace of the planner.
        note: the note; line breaks in its text become spaces.
    """
    note = replace(note, text=" ".join(note.text.split()))
    atomic_write(_directory(workspace) / f"{note.id}.json", json.dumps(asdict(note)))


def waiting_notes(workspace: Workspace) -> list[Note]:
    """Return the notes that are not recorded yet, oldest first; other files are ignored."""
    notes = []
    for file in _directory(workspace).glob("*.json"):
        with contextlib.suppress(OSError, FormatError, TypeError):
            notes.append(Note(**load_json_file(file)))
    return sorted(notes, key=lambda note: (note.at, note.id))


def drop_note(workspace: Workspace, note: Note) -> None:
    """Remove a note that the ledger holds.

    Args:
        workspace: the workspace of the planner.
        note: the note.
    """
    (_directory(workspace) / f"{note.id}.json").unlink(missing_ok=True)


def _directory(workspace: Workspace) -> Path:
    directory = workspace.state / "notes"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
