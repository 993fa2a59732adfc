"""The loop of one worker: run sessions on the problem that COORDINATION.md assigns, until the worker must stop.

The worker reads its row again whenever the coordination branch moves. A worker that is assigned to another problem ends
its session before the next turn; its work is committed on its own branch, so that it can continue there later.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.agents.kernel_facts import KernelFacts, read_facts
from harness.agents.kinds import kind_of
from harness.agents.reference_solution import write_reference_solution
from harness.agents.session import End, Event, Retry, Text, Tools, ToolUse
from harness.agents.session_runner import SessionRefusedError, Sessions, WorkItem
from harness.errors import HarnessError
from harness.failpoints import failpoint
from harness.formats.problems import load_problem
from harness.formats.solutions import copy_from_another_gpu
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.solution_commits import StrayFilesError, Submission, has_strays
from harness.git.tree_ids import tree_files, tree_id
from harness.git.worktree_places import Place
from harness.ledger.candidates import ProblemCandidates
from harness.ledger.coordination import read_assignments
from harness.ledger.lessons import LessonBook
from harness.ledger.submission import submit, trailers, wait_for_outcome
from harness.model.assignment import Assignment
from harness.model.config import AgentKind, Config
from harness.model.counters import CounterReport
from harness.model.entry import Entry, stamp
from harness.model.judging import CheckOrder, CheckReply, ShownCode
from harness.model.paths import agent_branch, is_problem, problem_path, solution_path
from harness.model.problem import Problem
from harness.model.process_status import DaemonStatus, FinishReason, WorkerState, WorkerStatus
from harness.model.verdict import EntryKind
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace
from harness.workspace.file_watch import FileWatch
from harness.workspace.files import file_lock
from harness.workspace.notes import Note, leave_note
from harness.workspace.order_files import ProfileOrder, order_check, order_profile
from harness.workspace.status import is_alive, read_status, write_status

_IDLE_S = 5.0
"""Interval at which an idle worker reads the table again, in case it has missed a change."""
_OUTCOME_S = 6 * 3600.0
"""Timeout of the wait for a verdict. After it, the worker assumes that the daemon is down."""
_TURN_S = 120.0
_PROFILE_S = 300.0
"""Timeout of the wait for a profile, which the judge makes only when no candidate waits."""
_MAX_WORKTREES = 4
"""A worker keeps the worktrees of its last problems only: 200 workers on 235 problems would make 47,000."""
_BASELINE_S = 240.0
"""Upper bound on the wait for baseline times before a first session; its prompt shows them."""
_CHECK_S = 300.0
"""Upper bound on the wait for a check: the judge may still be starting or measuring a baseline."""

logger = logging.getLogger(__name__)


def run_worker(workspace: Workspace, config: Config, name: str, stop: threading.Event, *, target: str) -> None:
    """Run the worker's loop until `stop` is set.

    Raises:
        ConfigurationError: another process runs this worker, or the agent's kind is not available.
    """
    kind = kind_of(config, root=workspace.root)
    with (
        file_lock(workspace.state / "locks" / f"worker-{name}", owner=f"harness worker {name}"),
        FileWatch(workspace.git_common_dir / "refs" / "heads") as changes,
    ):
        _Worker(workspace, config, name, kind, target, stop).run(changes)


@dataclass
class _Worker:
    workspace: Workspace
    config: Config
    name: str
    kind: AgentKind
    target: str
    stop: threading.Event
    finished: dict[str, FinishReason] = field(default_factory=dict)
    """Problem -> the reason why this worker has finished it."""
    last_message: str = ""
    """The last message of the agent, or the reason why the last session ended."""
    sessions_completed: int = 0
    sessions_failed: int = 0
    last_failure: str | None = None
    _row: Assignment | None = None
    _tip: str = ""
    _resting: str | None = None
    """The problem that was just finished. The worker ignores it until its row has named another problem, or none."""
    _finished_trees: dict[str, str | None] = field(default_factory=dict)
    """Problem -> tree of the solution on the coordination branch when the worker finished it."""
    _with_strays: set[str] = field(default_factory=set)
    """Problems whose last commit was refused because files outside the solution had changed."""
    _present_problem: str = ""
    """The problem of the last session."""
    _recent_problems: list[str] = field(default_factory=list)
    """The problems with worktrees, the last one first."""

    def __post_init__(self) -> None:
        self.repo = Repo(self.workspace)
        self.tried = ProblemCandidates(self.workspace, self.repo, self.config, self.target)
        of_worker = self.workspace, self.repo, self.config, self.name, self.kind, self.target
        self.sessions = Sessions(*of_worker, self.handle_event, self.is_reassigned, self.stop)

    def run(self, changes: FileWatch) -> None:
        self.write_status("idle")
        with self.sessions:
            while not self.stop.is_set():
                reached_limit = self.sessions.reached_limit()
                row = self.row()
                self.retry_without_strays()
                if reached_limit is None and row is not None and self.may_work(row):
                    self.finished.pop(row.problem, None)
                    self.work(row)
                    continue
                self.last_message = reached_limit or self.last_message
                self.write_status("spent" if reached_limit else "idle")
                changes.wait(_IDLE_S, stop=self.stop)
        self.write_status("stopped")

    def is_reassigned(self) -> bool:
        """Return True if the present row names another problem than the present session's."""
        row = self.row()
        return row is None or row.problem != self._present_problem

    def row(self) -> Assignment | None:
        """Return the worker's present row; the last valid one while the table is malformed."""
        tip = self.repo.tip(self.config.coordination_branch)
        if tip != self._tip:
            self._tip = tip
            try:
                rows = read_assignments(self.repo, self.config.coordination_branch)
            except HarnessError as error:
                logger.warning("the table cannot be read, the last valid row is used: %s", error)
                return self._row
            paused = {row.problem for row in rows if row.state == "paused"}
            self._row = next((row for row in rows if row.worker == self.name and row.problem not in paused), None)
        return self._row

    def retry_without_strays(self) -> None:
        """Reopen each problem with a refused commit once the files that prevented the commit are as before."""
        for problem in sorted(self._with_strays):
            if not has_strays(self.repo, Place(self.name, problem), self.target):
                self._with_strays.remove(problem)
                self.finished.pop(problem, None)
                self._resting = None if self._resting == problem else self._resting

    def may_work(self, row: Assignment) -> bool:
        if self._resting != row.problem:
            self._resting = None
        if row.problem in self._finished_trees and self.committed(row.problem) != self._finished_trees[row.problem]:
            self._resting = None  # a person has committed another solution, which this worker may improve
        return self._resting is None

    def committed(self, problem: str) -> str | None:
        tip = self.repo.tip(self.config.coordination_branch)
        return self.repo.tree_of(tip, solution_path(problem, self.target))

    def work(self, row: Assignment) -> None:
        """Run one session on a problem."""
        self.last_message = ""
        self.write_status("starting", row.problem)
        logger.info("%s starts on %s: %s", self.name, row.problem, row.wanted)
        try:
            end, gained = self.session(row)
        except SessionRefusedError:
            raise
        except HarnessError as error:
            logger.exception("%s cannot work on %s", self.name, row.problem)
            end, gained = End("failed", error.sentence), False
            self.note(row.problem, f"the session failed: {end.text}")
        logger.info("%s leaves %s: %s %s", self.name, row.problem, end.reason, end.text)
        self.last_message = end.text
        if end.reason == "failed":  # `harness start` fails when every session of every worker failed
            self.sessions_failed += 1
            self.last_failure = f"{row.problem}: {end.text}"
        else:
            self.sessions_completed += 1
        if end.reason == "interrupted" or (end.reason == "budget" and gained):
            return  # a session that gained before it reached its budget is followed by another one
        self.finished[row.problem] = "exhausted" if end.reason in ("exhausted", "failed") else "stale"
        self._resting = row.problem
        self._finished_trees[row.problem] = self.committed(row.problem)

    def best(self) -> float:
        """Return the best speed-up of this worker's own candidates for its present problem; 0 before the first."""
        own = (candidate for candidate in self.tried.candidates() if candidate.worker == self.name)
        return max((candidate.speedup or 0.0 for candidate in own), default=0.0)

    def session(self, row: Assignment) -> tuple[End, bool]:
        """Run one session; return its end, and whether this worker's best speed-up has grown."""
        failpoint("worktree.before_add")
        tip, branch = self.repo.tip(self.config.coordination_branch), self.branch(row.problem)
        worktree = worktrees.add(self.repo, Place(self.name, row.problem), branch, tip)
        failpoint("worktree.after_add")
        self._retire_worktrees(row.problem)
        directory = worktree / solution_path(row.problem, self.target)
        data_root = data_root_of(self.workspace, self.config)
        problem = load_problem(worktree / problem_path(row.problem), key=row.problem, data_root=data_root)
        self.tried.begin(row.problem, problem.directory)
        self._present_problem, best_before = row.problem, self.best()
        if not self.sessions.unfinished(row.problem) and not self.tried.place_champion(directory):
            nearest = copy_from_another_gpu(problem.directory, self.target)
            if nearest:
                logger.info("%s begins on %s with the solution of %s", self.name, row.problem, nearest)
            elif self.kind == "tuner" and write_reference_solution(directory, problem, self.target):
                logger.info("%s begins on %s with variants of its reference", self.name, row.problem)
        failpoint("worktree.after_champion")
        end = self.sessions.work(WorkItem(problem, row.wanted, directory, self.tools(problem, worktree)))
        if self.kind != "tuner" and not self.stop.is_set():
            self.save(row.problem, worktree)
        return end, self.best() > best_before

    def _retire_worktrees(self, present: str) -> None:
        """Remove this worker's older worktrees whose work is all on their branches."""
        earlier = [problem for problem in self._recent_problems if problem != present]
        self._recent_problems = [present, *earlier[: _MAX_WORKTREES - 1]]
        for directory in (self.workspace.worktrees / self.name).glob("*/*"):
            problem = f"{directory.parent.name}/{directory.name}"
            if problem in self._recent_problems or not is_problem(problem):
                continue
            try:
                worktrees.retire(self.repo, Place(self.name, problem))
            except HarnessError as error:
                logger.info("the worktree of %s is kept: %s", problem, error.message)

    def save(self, problem: str, worktree: Path) -> None:
        """Commit a solution that the agent did not submit, so that it is judged; log the reason if that fails."""
        path = solution_path(problem, self.target)
        committed = self.repo.tree_of(self.repo.tip(self.branch(problem)), path)
        try:
            if tree_id(tree_files(worktree / path)) not in {committed, self.tried.champion_tree()}:
                submission = self.commit(problem, worktree, "Save what was not submitted")
                logger.info("%s left an unsubmitted solution of %s: %s", self.name, problem, submission.commit)
        except HarnessError as error:
            logger.info("%s left no solution of %s that can be committed: %s", self.name, problem, error.message)

    def branch(self, problem: str) -> str:
        return agent_branch(self.config.run, self.name, problem)

    def handle_event(self, event: Event) -> None:
        """Log an event and write it to the status record."""
        state: WorkerState = "working"
        if isinstance(event, Text):
            self.last_message = event.text
        elif isinstance(event, ToolUse):
            self.last_message = f"{event.name} {event.summary}"
        elif isinstance(event, Retry):
            self.last_message = f"waits {event.after_s:.0f} s: {event.reason}"
        elif isinstance(event, End):
            self.last_message, state = event.text, "waiting for the model"
        else:
            return
        logger.info("%s on %s: %s", self.name, self._present_problem, self.last_message)
        self.write_status(state, self._present_problem)

    def commit(self, problem: str, worktree: Path, message: str) -> Submission:
        """Commit the present solution."""
        session = self.sessions.current
        commit_trailers = trailers(
            run=self.config.run,
            worker=self.name,
            agent=self.kind,
            session=session.id if session else "none",
            model=session.model if session else None,
            cost_usd=self.sessions.usd,
        )
        self._with_strays.discard(problem)
        try:
            return submit(
                self.repo,
                worktree,
                problem=problem,
                target=self.target,
                message=message,
                commit_trailers=commit_trailers,
                base=self.config.coordination_branch,
                languages=self.config.languages,
            )
        except StrayFilesError:
            self._with_strays.add(problem)
            raise

    def tools(self, judged: Problem, worktree: Path) -> Tools:
        problem = judged.key

        def facts() -> KernelFacts:
            self.await_baselines(judged)
            return read_facts(self.workspace, self.tried.index, judged, self.target, self.tried.champion())

        def outcome(submitted: Submission) -> Entry | None:
            self.write_status("waiting", problem)
            return wait_for_outcome(
                self.workspace,
                problem,
                self.target,
                submitted.tree,
                find_entry=lambda: self.tried.entry(submitted.tree),
                stop=self.stop,
                deadline_s=_OUTCOME_S,
            )

        def profile(submitted: Submission, workload: str | None) -> CounterReport | None:
            commit, tree = submitted.commit, submitted.tree
            order = ProfileOrder(problem=problem, target=self.target, commit=commit, tree=tree, workload=workload)
            return order_profile(self.workspace, order, stop=self.stop, deadline_s=_PROFILE_S)

        def check(show: ShownCode, function: str) -> CheckReply | None:
            order = CheckOrder(worker=self.name, problem=problem, target=self.target, show=show, function=function)
            solution = worktree / solution_path(problem, self.target)
            return order_check(self.workspace, order, solution, stop=self.stop, within_s=_CHECK_S)

        def lessons() -> tuple[str, ...]:
            messages = {candidate.tree: candidate.message for candidate in self.tried.candidates()}
            book = LessonBook(self.workspace, self.repo, self.tried.index, self.config, self.target)
            return book.lines(problem, judged.definition.op_type, messages)

        lock = self.workspace.state / "locks" / f"turn-{problem.replace('/', '-')}"
        return Tools(
            commit=lambda message: self.commit(problem, worktree, message),
            outcome=outcome,
            history=self.tried.candidates,
            note=lambda *lesson: self.note(problem, *lesson, session=self.session_id),
            lessons=lessons,
            turn=lambda: file_lock(lock, wait_s=_TURN_S, owner=f"harness worker {self.name}"),
            profile=profile,
            facts=facts,
            sources=self.tried.sources,
            entry_of=self.tried.entry,
            champion=self.tried.champion_tree,
            check=check,
        )

    def await_baselines(self, problem: Problem) -> None:
        """Order a measurement of a problem's baselines before its first session, if a daemon with a judge runs."""
        self.tried.index.refresh(self.repo)
        rows = self.tried.index.rows(problem.key, target=self.target, kind=EntryKind.BASELINE)
        daemon = read_status(self.workspace, DaemonStatus)
        has_judge = daemon is not None and is_alive(daemon) and any(judge.became_ready for judge in daemon.judges)
        if not has_judge or any(row.problem_digest == problem.digest for row in rows):
            return
        try:
            order = CheckOrder(worker=self.name, problem=problem.key, target=self.target, kind="baseline")
            order_check(self.workspace, order, stop=self.stop, within_s=_BASELINE_S)
            self.tried.index.refresh(self.repo)
        except TimeoutError as error:
            logger.info("%s begins on %s without baseline times: %s", self.name, problem.key, error)

    @property
    def session_id(self) -> str:
        """Return the id of the last session; empty before the first."""
        return self.sessions.current.id if self.sessions.current else ""

    def note(
        self, problem: str, text: str, entry: int | None = None, contradicts: str | None = None, *, session: str = ""
    ) -> None:
        at = stamp(datetime.now(UTC))
        note = Note(
            problem=problem, worker=self.name, session=session, text=text, at=at, entry=entry, contradicts=contradicts
        )
        leave_note(self.workspace, note)

    def write_status(self, state: WorkerState, problem: str | None = None) -> None:
        """Replace this worker's status record, which the planner and `harness start` read."""
        status = WorkerStatus(
            worker=self.name,
            agent=self.kind,
            state=state,
            problem=problem,
            last_message=self.last_message,
            evaluations=self.sessions.evaluations,
            usd=self.sessions.usd,
            finished=dict(self.finished),
            sessions_completed=self.sessions_completed,
            sessions_failed=self.sessions_failed,
            last_failure=self.last_failure,
        )
        write_status(self.workspace, status)
