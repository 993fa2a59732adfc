"""Lessons about a problem: workers' notes and the change of each champion, with the entry that proves them.

A later entry that contradicts a lesson withdraws it: another measurement of the same solution with a different result,
or a later note that names the lesson and has a later entry as its own proof. Nothing is deleted: the records stay in
the ledger, and withdrawals are derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import PROBLEM_BYTES, load_json
from harness.git.repo import Repo
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.ledger import read_records
from harness.model.config import Config
from harness.model.paths import LESSONS, is_lessons_file, lessons_file, problem_path
from harness.model.verdict import EntryKind, Verdict
from harness.workspace.directories import Workspace

ID_DIGITS = 8
_MOST_OWN, _MOST_OF_FAMILY = 12, 6
_MEASURED = (EntryKind.EVALUATION, EntryKind.CONFIRMATION)


@dataclass(frozen=True)
class Lesson:
    """A lesson about a problem."""

    problem: str
    worker: str
    text: str
    id: str = ""
    """First digits of a note's record id, which a later note names to contradict it; empty for a champion's lesson."""
    proof: int | None = None
    """`seq` of the entry that proves the lesson."""
    outcome: str = ""
    """Result of that entry, in words."""

    def line(self, current_problem: str) -> str:
        """Return the lesson as one line, for work on `current_problem`."""
        name = f"[{self.id}] " if self.id else ""
        place = "" if self.problem == current_problem else f"on {self.problem}, "
        proved = f" (entry {self.proof}: {self.outcome})" if self.proof is not None else ""
        return f"{name}{place}{self.worker}: {self.text}{proved}"


def standing_notes(problem: str, records: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> list[Lesson]:
    """Return the notes that no later entry contradicts, oldest first.

    Args:
        records: the records of the problem's lessons file.
    """
    measured = {row.seq: row for row in rows if row.kind in _MEASURED}
    standing = []
    for record in records:
        proof = record.get("entry") if isinstance(record.get("entry"), int) else None
        row = measured.get(proof) if proof is not None else None
        identity = str(record.get("id", ""))[:ID_DIGITS]
        if _is_named_by_later(identity, proof, records) or (row is not None and _is_measured_otherwise(row, rows)):
            continue
        proved = (row.seq, _outcome(row)) if row else (None, "")
        standing.append(Lesson(problem, str(record.get("worker")), str(record.get("text")), identity, *proved))
    return standing


def champion_lessons(problem: str, rows: Sequence[Row], messages: Mapping[str, str]) -> list[Lesson]:
    """Return a lesson for each champion: its change and gain, oldest first, unless a later entry contradicts it.

    Args:
        rows: the problem's entries for one run and target.
        messages: tree -> message of its commit.
    """
    measured = {row.seq: row for row in rows if row.kind in _MEASURED}
    champions = [measured[row.cites] for row in rows if row.kind == EntryKind.CHAMPION and row.cites in measured]
    lessons, before = [], 1.0
    for row in champions:
        speedup, message = row.speedup or 0.0, messages.get(row.tree or "", "")
        last = next((later for later in reversed(_later(row, rows)) if later.speedup is not None), row)
        is_valid = not _is_measured_otherwise(row, rows) and (last.speedup or 0.0) > before
        if is_valid and message:
            text = f"made it {speedup:.3f}x, {before:.3f}x before: {message}"
            lessons.append(Lesson(problem, row.worker or "", text, proof=row.seq, outcome=_outcome(row)))
        before = speedup
    return lessons


def _later(row: Row, rows: Sequence[Row]) -> list[Row]:
    """Return the later measurements of the same solution of the same problem."""
    solution = (row.tree, row.problem_digest, row.target)
    later_rows = [later for later in rows if later.kind in _MEASURED and later.seq > row.seq]
    return [later for later in later_rows if (later.tree, later.problem_digest, later.target) == solution]


def _is_measured_otherwise(row: Row, rows: Sequence[Row]) -> bool:
    """Return true if a later measurement of the same solution has another verdict or a disjoint interval."""
    for later in _later(row, rows):
        if (later.verdict == Verdict.PASSED) != (row.verdict == Verdict.PASSED):
            return True
        ends = (row.speedup_ci95_low, row.speedup_ci95_high, later.speedup_ci95_low, later.speedup_ci95_high)
        ci95_low, ci95_high, later_low, later_high = ends
        if None not in ends and (later_low > ci95_high or later_high < ci95_low):  # type: ignore[operator]
            return True
    return False


def _is_named_by_later(identity: str, proof: int | None, records: Sequence[Mapping[str, Any]]) -> bool:
    """Return true if a note with a later entry as its proof contradicts this one."""
    entries = [record.get("entry") for record in records if str(record.get("contradicts") or "").startswith(identity)]
    return bool(identity) and any(isinstance(entry, int) and entry > (proof or 0) for entry in entries)


def _outcome(row: Row) -> str:
    if row.verdict == Verdict.PASSED and row.speedup is not None:
        return f"PASSED {row.speedup:.3f}x"
    return row.verdict or "?"


@dataclass(frozen=True)
class LessonBook:
    """Reads the lessons of a problem and of its family: the problems with the same `op_type`."""

    workspace: Workspace
    repo: Repo
    index: Index
    config: Config
    target: str

    def lines(self, problem: str, op_type: str | None, messages: Mapping[str, str]) -> tuple[str, ...]:
        """Return the lessons about a problem, then those about its family, one line each.

        Args:
            op_type: the problem's kind of operation; None if it has no family.
            messages: tree -> message of its commit, of the problem's candidates.
        """
        self.index.refresh(self.repo)
        rows = self.index.rows(problem, target=self.target)
        of_run = [row for row in rows if row.run == self.config.run]
        own = [*champion_lessons(problem, of_run, messages), *standing_notes(problem, self._records(problem), rows)]
        family = [lesson for key in self._family(problem, op_type) for lesson in self._proved(key)]
        return tuple(lesson.line(problem) for lesson in [*own[-_MOST_OWN:], *family[-_MOST_OF_FAMILY:]])

    def _proved(self, problem: str) -> list[Lesson]:
        """Return the notes about another problem that have an entry as proof."""
        rows = self.index.rows(problem, target=self.target)
        return [lesson for lesson in standing_notes(problem, self._records(problem), rows) if lesson.proof is not None]

    def _records(self, problem: str) -> list[dict[str, Any]]:
        branch = self.config.coordination_branch
        return read_records(self.workspace, self.repo, lessons_file(problem), branch=branch)

    def _family(self, problem: str, op_type: str | None) -> list[str]:
        """Return the other problems with lessons and the same `op_type`."""
        if op_type is None:
            return []
        tip = self.repo.tip(self.config.coordination_branch)
        files = [file for file in self.repo.files(tip, LESSONS) if is_lessons_file(file)]
        keys = [file.removeprefix(f"{LESSONS}/").removesuffix(".yaml") for file in files]
        definitions = {f"{problem_path(key)}/definition.json": key for key in keys if key != problem}
        read = self.repo.read_many(tip, list(definitions))
        return [definitions[name] for name, data in read.items() if _op_type(data, name) == op_type]


def _op_type(data: bytes, where: str) -> object:
    try:
        definition = load_json(data, where=where, max_bytes=PROBLEM_BYTES)
    except FormatError:
        return None
    return definition.get("op_type") if isinstance(definition, dict) else None
