"""Lessons that are not in the ledger yet: a worker writes one as a file, the planner records it.

The files are in the git common directory: a lesson is not derived, so it must survive the deletion of `.harness/`.
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
    """A lesson of one line from a worker about a problem."""

    id: str
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


def leave_note(
    workspace: Workspace,
    *,
    problem: str,
    worker: str,
    session: str,
    text: str,
    at: str,
    entry: int | None = None,
    contradicts: str | None = None,
) -> Note:
    """Write a note for the planner.

    Args:
        workspace: the workspace of the planner.
        problem: the problem's key, `suite/name`.
        worker: the worker's id.
        session: the id of the worker's session.
        text: the lesson; line breaks become spaces.
        at: time of the lesson, ISO 8601.
        entry: `seq` of the worker's last ledger entry on the problem.
        contradicts: first digits of the id of a lesson that this lesson refutes.
    """
    line = " ".join(text.split())
    note = Note(
        id=uuid.uuid4().hex,
        problem=problem,
        worker=worker,
        session=session,
        text=line,
        at=at,
        entry=entry,
        contradicts=contradicts,
    )
    atomic_write(_directory(workspace) / f"{note.id}.json", json.dumps(asdict(note)))
    return note


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
