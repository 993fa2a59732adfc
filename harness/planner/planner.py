"""The planner's loop: it reads the ledger and the table, decides, records the decision and rewrites COORDINATION.md.

The decision itself is `policy.decide`, a pure function. Every change of the table is recorded in ledger/decisions.yaml,
with the inputs of the decision.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.errors import FormatError, HarnessError
from harness.failpoints import failpoint
from harness.formats.problems import problem_names
from harness.git.branch_commits import Change
from harness.git.repo import Repo
from harness.ledger.accounts import recorded_accounts, set_aside, unrecorded_accounts
from harness.ledger.coordination import parse, read_assignments, render, sign_of_editing
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger, read_records
from harness.ledger.spool import read_all
from harness.ledger.standings import Standing, StandingsCache
from harness.ledger.standings_table import markdown, speedup
from harness.model.assignment import Assignment
from harness.model.config import Config
from harness.model.paths import ACCOUNTS, DECISIONS, LESSONS, PROBLEMS, is_lessons_file, lessons_file
from harness.model.process_status import FinishReason, PlannerStatus, WorkerStatus
from harness.planner.advice import Adviser
from harness.planner.decision import Decision, PolicyInputs, WorkerFacts
from harness.planner.facts import problem_facts
from harness.planner.policy import NAME, decide
from harness.workspace.directories import COORDINATION_NAME, Workspace
from harness.workspace.file_watch import FileWatch
from harness.workspace.files import file_lock
from harness.workspace.notes import drop_note, waiting_notes
from harness.workspace.status import is_worker_status, read_status, write_status

LOOK_EVERY_S = 10.0
"""Longest time between two rounds, without any change of files."""
STANDINGS_EVERY_S = 30.0
"""Shortest time between two writes of the standings alone."""
_TABLE_EVERY_S = 0.05
"""Shortest time between two writes of a changed table, per worker; at most `_LONGEST_REST_S`."""
EDIT_PATIENCE_S = 60.0
"""While a person edits the file, nothing is written for this time; then a changed table is written on the branch, and
the person's file does not change."""
_REST_FACTOR = 9.0
"""Length of the rest after a round, as a multiple of the round's: single entries cost a tenth of a core at most."""
_LONGEST_REST_S = 2.0
_NOTES_KEPT = 3
_Rows = frozenset[tuple[str, str, str]]

logger = logging.getLogger(__name__)


class TableChangedError(HarnessError):
    """The table has changed since the decision was made."""


def run_planner(
    workspace: Workspace,
    config: Config,
    stop: threading.Event,
    *,
    workers: tuple[str, ...],
    target: str,
    adviser: Adviser | None = None,
) -> None:
    """Plan until `stop` is set, then write the standings once more.

    Args:
        workspace: has the table and the ledger.
        stop: ends the loop when it is set.
        workers: names of the workers to assign.
        target: the standings of this target count.
        adviser: a model that may propose another table than the policy's; None: the policy alone decides.

    Raises:
        ConfigurationError: another planner serves this repository.
    """
    with ExitStack() as stack:
        stack.enter_context(file_lock(workspace.state / "planner.lock", owner="harness planner"))
        repo = stack.enter_context(Repo(workspace))
        ledger = Ledger(workspace, repo, writer="planner", branch=config.coordination_branch)
        stack.callback(ledger.close)
        index = stack.enter_context(Index(workspace, branch=config.coordination_branch))
        watched = (
            workspace.spool,
            workspace.git_common_dir / "refs" / "heads",
            workspace.status,
            workspace.state / "notes",
            workspace.state / "accounts",
        )
        changes = stack.enter_context(FileWatch(*watched, matters=lambda file: _matters(workspace, file)))
        planner = _Planner(workspace, config, repo, ledger, index, workers, target, adviser)
        while not stop.is_set():
            begun = time.monotonic()
            planner.look()
            _pause(stop, min(_REST_FACTOR * (time.monotonic() - begun), _LONGEST_REST_S))
            changes.wait(_LONGEST_REST_S if planner.waits_to_write else LOOK_EVERY_S, stop=stop)
        planner.finish()


@dataclass(frozen=True)
class _Advised:
    """Last question to the model, the table that it proposed, and the number of evaluations at that time."""

    question: tuple[_Rows, tuple[str, ...]]
    table: _Rows
    evaluations: int


@dataclass
class _Planner:
    workspace: Workspace
    config: Config
    repo: Repo
    ledger: Ledger
    index: Index
    workers: tuple[str, ...]
    target: str
    adviser: Adviser | None
    waits_to_write: bool = False
    """True if a changed table has not been written yet."""
    _advised_on: _Advised | None = None
    _table: tuple[Assignment, ...] = ()
    _since: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Worker -> its problem, and the number of its evaluations there when it was assigned."""
    _messages: tuple[str, ...] = ()
    _earlier_messages: tuple[str, ...] = ()
    """Messages of the round before, so that a message is logged once while its cause persists."""
    _written_status: PlannerStatus | None = None
    _finished: dict[str, dict[str, FinishReason]] = field(default_factory=dict)
    """Worker -> the problems that it had finished before the last round that left no decision unwritten."""
    _confirmed: dict[str, str] = field(default_factory=dict)
    """Problem -> its champion's speed-up as text."""
    _written_at: float = -STANDINGS_EVERY_S
    _edited_since: float | None = None
    """Time at which the planner first detected that a person edits COORDINATION.md; None while there is no edit."""

    def __post_init__(self) -> None:
        self._branch = self.config.coordination_branch
        self._table_standings = StandingsCache(self.index, self.target, self.config.run)
        self._recorded = {str(record["id"]) for record in self._lessons() if "id" in record}
        self._accounted = {account.id for account in recorded_accounts(self.workspace, self.repo, self._branch)}
        self._reasons = self._last_reasons()
        """Problem -> the model's reason, for COORDINATION.md."""

    def _lessons(self) -> list[dict[str, object]]:
        records: list[dict[str, object]] = []
        tip = self.repo.tip(self._branch)
        waiting = {record.file for record in read_all(self.workspace.spool)}  # a file may have no commit yet
        lessons = {file for file in waiting if is_lessons_file(file)}
        for file in sorted({*self.repo.files(tip, LESSONS), *lessons}):
            records += read_records(self.workspace, self.repo, file, branch=self._branch)
        return records

    def look(self) -> None:
        """Do one round. A failed round is reported and repeated, and the last good table remains."""
        self._earlier_messages, self._messages = self._messages, ()
        statuses = [read_status(self.workspace, WorkerStatus, name) for name in self.workers]
        try:
            self._round()
        except TableChangedError:
            logger.info("the table was changed while a decision was made: it is made again")
            self.waits_to_write = True
        except FormatError as error:
            self._complain(f"{error.sentence}; the last good table stays in force")
        except HarnessError as error:
            self._complain(error.sentence)
        if not self.waits_to_write:
            self._finished = {status.worker: status.finished for status in statuses if status is not None}
        self._write_status()

    def _complain(self, sentence: str) -> None:
        if sentence not in self._earlier_messages:
            logger.warning("%s", sentence)
        self._messages = (sentence,)

    def _write_status(self) -> None:
        status = PlannerStatus(
            assignments=self._table, finished=self._finished, confirmed=self._confirmed, messages=self._messages
        )
        if status != self._written_status:
            write_status(self.workspace, status)
            self._written_status = status

    def _round(self) -> None:
        self.index.refresh(self.repo)
        self._take_notes()
        self._take_accounts()
        present = self._table = read_assignments(self.repo, self._branch)
        table = self._standings()
        inputs = self._inputs(present, table)
        decision, by = decide(inputs), NAME
        if _rows(decision.assignments) != _rows(present):
            decision, by = self._advised(inputs, decision)
        moved = _rows(decision.assignments) != _rows(present)
        if self._may_write(moved=moved):
            if moved:
                self._record(inputs, decision, by)
                failpoint("planner.decision_recorded")
            self._write(present, decision.assignments, table)
        self.ledger.flush()

    def _may_write(self, *, moved: bool) -> bool:
        """Return true if COORDINATION.md is due and no person edits it. An unwritten table is decided again later."""
        monotonic_s = time.monotonic()
        table_every_s = min(_TABLE_EVERY_S * len(self.workers), _LONGEST_REST_S)
        self.waits_to_write = moved
        if monotonic_s - self._written_at < (table_every_s if moved else STANDINGS_EVERY_S):
            return False
        sign = sign_of_editing(self.workspace, self.repo, self._branch)
        if sign is None:
            self._edited_since, self.waits_to_write = None, False
            return True
        self._edited_since = self._edited_since or monotonic_s
        self._complain(f"{COORDINATION_NAME} is not rewritten while a person edits it: {sign}")
        return moved and monotonic_s - self._edited_since >= EDIT_PATIENCE_S

    def _standings(self) -> tuple[Standing, ...]:
        tip = self.repo.tip(self._branch)
        names = problem_names(self.repo.files(tip, PROBLEMS), self.config.problems)
        table = self._table_standings.standings(names)
        self._confirmed = {standing.problem: speedup(standing.champion) for standing in table if standing.champion}
        return table

    def _inputs(self, present: tuple[Assignment, ...], table: tuple[Standing, ...]) -> PolicyInputs:
        evaluations = {standing.problem: standing.workers for standing in table}
        rows = {row.worker: row.problem for row in present if row.state != "paused"}
        facts = []
        for name in self.workers:
            problem = rows.get(name)
            done = evaluations.get(problem or "", {}).get(name, 0)
            came = self._since.get(name)
            if problem is not None and (came is None or came[0] != problem):
                came = self._since[name] = (problem, done)
            stint = done - came[1] if problem is not None and came else 0
            status = read_status(self.workspace, WorkerStatus, name)
            facts.append(WorkerFacts(worker=name, stint=stint, finished=status.finished if status else {}))
        recent, policy = self._recent(), self.config.policy
        problems = tuple(problem_facts(standing, recent, policy) for standing in table)
        return PolicyInputs(problems=problems, workers=tuple(facts), assignments=present, policy=policy)

    def _recent(self) -> list[str]:
        """Return the times at which the run's last evaluations were entered, ascending.

        There are as many as the age of a stale problem can depend on.
        """
        sql = "SELECT at FROM entries WHERE kind = 'evaluation' AND run = ? AND target = ? ORDER BY at DESC LIMIT ?"
        limit = self.config.policy.return_after + 1
        return sorted(at for (at,) in self.index.query(sql, (self.config.run, self.target, limit)))

    def _advised(self, inputs: PolicyInputs, decision: Decision) -> tuple[Decision, str]:
        """Return the model's decision if it gives an acceptable one, else the policy's; and the name of its author."""
        if self.adviser is None:
            return decision, NAME
        question = (_rows(decision.assignments), tuple(sorted(str(facts) for facts in inputs.workers)))
        present = _rows(inputs.assignments)
        evaluations = sum(facts.evaluations for facts in inputs.problems)
        slice_of_all = self.config.policy.slice_evaluations * max(len(self.workers), 1)
        last = self._advised_on
        if (
            last
            and (last.question, last.table) == (question, present)
            and evaluations - last.evaluations < slice_of_all
        ):
            return Decision(assignments=inputs.assignments, reasons={}), NAME  # the model has just proposed this table
        advice = self.adviser(inputs, decision)
        if advice is None:
            return decision, NAME
        self._advised_on = _Advised(question, _rows(advice.decision.assignments), evaluations)
        self._reasons |= advice.notes
        return advice.decision, advice.by

    def _last_reasons(self) -> dict[str, str]:
        """Return a model's recorded reasons by problem, from before this planner was started."""
        reasons: dict[str, str] = {}
        for record in read_records(self.workspace, self.repo, DECISIONS, branch=self._branch):
            notes = record.get("notes")
            reasons |= {str(name): str(text) for name, text in notes.items()} if isinstance(notes, dict) else {}
        return reasons

    def _record(self, inputs: PolicyInputs, decision: Decision, by: str) -> None:
        record: dict[str, object] = {
            "run": self.config.run,
            "target": self.target,
            "policy": by,
            "inputs": inputs.model_dump(mode="json"),
            "decision": decision.model_dump(mode="json"),
        }
        if self._reasons:
            record["notes"] = dict(self._reasons)
        self.ledger.append_record(DECISIONS, record)
        for row in decision.assignments:
            logger.info("%s works on %s: %s", row.worker, row.problem, decision.reasons.get(row.worker, ""))

    def _take_notes(self) -> None:
        for note in waiting_notes(self.workspace):
            if note.id not in self._recorded:
                record = {**note.model_dump(exclude={"at"}, exclude_none=True), "left": note.at}
                self.ledger.append_record(lessons_file(note.problem), record)
                self._recorded.add(note.id)
                failpoint("planner.note_recorded")
            drop_note(self.workspace, note)
            failpoint("planner.note_dropped")

    def _take_accounts(self) -> None:
        """Record closed accounts, each once."""
        for account in unrecorded_accounts(self.workspace):
            if account.ended is None:
                continue
            if account.id not in self._accounted:
                self.ledger.append_record(ACCOUNTS, account.record())
                self._accounted.add(account.id)
                failpoint("planner.account_recorded")
            set_aside(self.workspace, account)

    def _notes(self) -> dict[str, str]:
        """Return problem -> the model's reason and the problem's last lessons."""
        last: dict[str, list[str]] = {}
        for record in self._lessons():
            texts = last.setdefault(str(record["problem"]), [])
            line = f"{record['worker']}: {record['text']}"
            texts[:] = [*(text for text in texts if text != line), line]
        notes = {problem: "; ".join(texts[-_NOTES_KEPT:]) for problem, texts in last.items()}
        for problem, reason in self._reasons.items():
            notes[problem] = f"planner: {reason}" + (f"; {notes[problem]}" if problem in notes else "")
        return notes

    def _write(
        self, present: tuple[Assignment, ...], assignments: tuple[Assignment, ...], table: tuple[Standing, ...]
    ) -> None:
        """Rewrite the planner's parts of COORDINATION.md, and keep what people have written meanwhile.

        Raises:
            TableChangedError: the table on the branch is not `present`.
        """
        written_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        where = f"{COORDINATION_NAME} on {self._branch}"
        body, notes = markdown(table), self._notes()

        def build(read: Callable[[str], bytes | None]) -> Change:
            text = (read(COORDINATION_NAME) or b"").decode()
            if parse(text, where=where) != present:
                raise TableChangedError("a person has changed the table", where=where)
            fresh = render(text, assignments=assignments, standings_markdown=body, notes=notes, updated_at=written_at)
            if _without_time(fresh) == _without_time(text):
                return Change()
            failpoint("planner.before_write")
            return Change(writes={COORDINATION_NAME: fresh.encode()})

        self.repo.commit_built(self._branch, build, "Plan")
        self._written_at = time.monotonic()
        self._table = assignments
        failpoint("planner.after_write")

    def finish(self) -> None:
        """Write the present standings, and commit every record."""
        try:
            self.index.refresh(self.repo)
            self._take_notes()
            self._take_accounts()
            present = read_assignments(self.repo, self._branch)
            if sign_of_editing(self.workspace, self.repo, self._branch) is None:
                self._write(present, present, self._standings())
        except HarnessError as error:
            self._complain(str(error))
        try:
            self.ledger.flush(force=True)
        except HarnessError as error:
            self._complain(str(error))
        self._write_status()


def _pause(stop: threading.Event, seconds: float) -> None:
    """Wait until the time is over or `stop` is set. Its lock is not taken here, because a signal handler sets it."""
    until = time.monotonic() + seconds
    while (remaining_s := until - time.monotonic()) > 0 and not stop.is_set():
        time.sleep(min(remaining_s, 0.1))


def _matters(workspace: Workspace, file: Path) -> bool:
    """Return true if a change of a file starts a round.

    The daemon's status does not, because it changes several times a second.
    """
    return file.parent != workspace.status or is_worker_status(workspace, file)


def _rows(assignments: tuple[Assignment, ...]) -> _Rows:
    """Return the parts of a table whose change moves a worker; its texts may change freely."""
    return frozenset((row.worker, row.problem, row.state) for row in assignments)


def _without_time(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("As of "))
