"""Lessons that are not in the ledger yet: a worker writes one as a file, the planner records it.

The files are in the git common directory: a lesson is not derived, so it must survive the deletion of `.harness/`.
"""

from __future__ import annotations

import uuid
from pathlib import Path

from pydantic import Field

from harness.model.base_models import StrictModel
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write, read_record


class Note(StrictModel):
    """A lesson of one line from a worker about a problem."""

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
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
        note: the note; line breaks in its text become spaces.
    """
    note = note.model_copy(update={"text": " ".join(note.text.split())})
    atomic_write(_directory(workspace) / f"{note.id}.json", note.model_dump_json())


def waiting_notes(workspace: Workspace) -> list[Note]:
    """Return the notes that are not recorded yet, oldest first; other files are ignored."""
    notes = (read_record(file, Note) for file in _directory(workspace).glob("*.json"))
    return sorted((note for note in notes if note is not None), key=lambda note: (note.at, note.id))


def drop_note(workspace: Workspace, note: Note) -> None:
    """Remove a note that the ledger holds."""
    (_directory(workspace) / f"{note.id}.json").unlink(missing_ok=True)


def _directory(workspace: Workspace) -> Path:
    directory = workspace.state / "notes"
    directory.mkdir(parents=True, exist_ok=True)
    return directory
