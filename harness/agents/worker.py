"""One worker: does what its row in COORDINATION.md says, one session after the other, until it is told to stop.

The row is read from the coordination branch whenever that branch moves. A worker that is moved leaves at the next
boundary of its session, with its work committed on its own branch, and may find it there again later.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from harness.agents.session import (
    AgentSession,
    Attempt,
    Brief,
    End,
    Event,
    Retry,
    Submitted,
    Text,
    Tools,
    ToolUse,
    Usage,
)
from harness.agents.tuner import TunerSession
from harness.errors import ConfigurationError, HarnessError
from harness.failpoints import failpoint
from harness.model.assignment import Assignment
from harness.model.config import AgentKind, Config
from harness.model.entry import Entry
from harness.store.changes import Changes
from harness.store.coordination import read_assignments
from harness.store.files import file_lock
from harness.store.live import write_live
from harness.store.notes import leave_note
from harness.store.repo import Repo
from harness.store.submission import solution_dir, submit, trailers, wait_for_outcome
from harness.store.tried import Tried
from harness.store.workspace import Workspace

KINDS: dict[AgentKind, Callable[[Brief], AgentSession]] = {"tuner": TunerSession}
"""How a session of each kind of agent is opened."""

_IDLE_S = 5.0
"""A worker without work looks at the table again after so long, should it have missed a change."""
_OUTCOME_S = 6 * 3600.0
"""A queue as long as this is a daemon that does not work."""
_TURN_S = 120.0

logger = logging.getLogger(__name__)


def kind_of(config: Config) -> AgentKind:
    """The kind of agent the configuration asks for; a tuner when it asks for none.

    Raises:
        ConfigurationError: a kind that this version does not have.
    """
    kind = config.agent.kind or "tuner"
    if kind not in KINDS:
        raise ConfigurationError(
            f"agent `{kind}` is not available; available: {', '.join(KINDS)}",
            where="agent.kind",
            remedy="say `harness start --agent tuner`, or set `agent: {kind: tuner}` in harness.yaml",
        )
    return kind


def run_worker(workspace: Workspace, config: Config, name: str, stop: threading.Event, *, target: str) -> None:
    """Work as `name` until `stop` is set.

    Raises:
        ConfigurationError: another process works under this name, or the agent's kind is not available.
    """
    kind = kind_of(config)
    with (
        file_lock(workspace.state / "locks" / f"worker-{name}", owner=f"harness worker {name}"),
        Changes(workspace.git_common_dir / "refs" / "heads") as changes,
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
    finished: dict[str, str] = field(default_factory=dict)
    """Problems with nothing left for this worker, and why (the policy's words)."""
    usd: float = 0.0
    evaluations: int = 0
    said: str = ""
    _row: Assignment | None = None
    _tip: str = ""
    _resting: str | None = None
    """A problem just finished: nothing is done on it until the row has named another, or none."""
    _finished_at: dict[str, str | None] = field(default_factory=dict)
    """Problem -> tree of the solution on the coordination branch when the worker finished it."""
    _session: AgentSession | None = None

    def __post_init__(self) -> None:
        self.repo = Repo(self.workspace)
        self.tried = Tried(self.workspace, self.repo, self.config, self.target)

    def run(self, changes: Changes) -> None:
        self.live("idle")
        while not self.stop.is_set():
            row = self.row()
            if row is not None and self.may_work(row):
                self.finished.pop(row.problem, None)
                self.work(row)
                continue
            self.live("idle")
            changes.wait(_IDLE_S, stop=self.stop)
        self.live("stopped")

    def row(self) -> Assignment | None:
        """The row in force; the last good one while the table is broken."""
        tip = self.repo.tip(self.config.coordination_branch)
        if tip != self._tip:
            self._tip = tip
            try:
                rows = read_assignments(self.repo, self.config.coordination_branch)
            except HarnessError as error:
                logger.warning("the table cannot be read, the last row stays in force: %s", error)
                return self._row
            paused = {row.problem for row in rows if row.state == "paused"}
            mine = [row for row in rows if row.worker == self.name and row.state != "paused"]
            self._row = next((row for row in mine if row.problem not in paused), None)
        return self._row

    def may_work(self, row: Assignment) -> bool:
        if self._resting != row.problem:
            self._resting = None
        if row.problem in self._finished_at and self.committed(row.problem) != self._finished_at[row.problem]:
            self._resting = None  # people have put another solution there: there is something to do again
        return self._resting is None

    def committed(self, problem: str) -> str | None:
        tip = self.repo.tip(self.config.coordination_branch)
        return self.repo.tree_of(tip, f"problems/{problem}/solutions/{self.target}")

    def work(self, row: Assignment) -> None:
        """One session on one problem."""
        self.said = ""
        self.live("starting", row.problem)
        logger.info("%s starts on %s: %s", self.name, row.problem, row.wanted)
        try:
            end = self.session(row)
        except HarnessError as error:
            logger.exception("%s cannot work on %s", self.name, row.problem)
            end = End("failed", str(error).splitlines()[0])
            self.note(row.problem, "", f"could not go on: {end.text}")
        logger.info("%s leaves %s: %s %s", self.name, row.problem, end.reason, end.text)
        self.said = end.text
        if end.reason != "interrupted":
            self.finished[row.problem] = "exhausted" if end.reason in ("exhausted", "failed") else "stale"
            self._resting = row.problem
            self._finished_at[row.problem] = self.committed(row.problem)

    def session(self, row: Assignment) -> End:
        branch = f"agents/{self.config.run}/{self.name}/{row.problem}"
        failpoint("worktree.before_add")
        tip = self.repo.tip(self.config.coordination_branch)
        worktree = self.repo.add_worktree(self.name, row.problem, branch, tip)
        failpoint("worktree.after_add")
        directory = solution_dir(worktree, row.problem, self.target)
        self.tried.begin(row.problem, worktree / "problems" / row.problem)
        self.tried.place_champion(directory)
        failpoint("worktree.after_champion")
        brief = Brief(
            role="worker",
            prompt=f"{row.problem}: {row.wanted}",
            directory=worktree,
            solution=directory,
            tools=self.tools(row.problem, worktree),
            budget=self.config.agent.per_worker,
            seed=zlib.crc32(f"{self.config.run}/{self.name}/{row.problem}".encode()),
        )
        self._session = KINDS[self.kind](brief)
        for event in self._session.events():
            if isinstance(event, End):
                return event
            self.heed(row.problem, event)
            now = self.row()
            if self.stop.is_set() or now is None or now.problem != row.problem:
                self._session.interrupt()
        return End("failed", "the session ended without saying why")

    def heed(self, problem: str, event: Event) -> None:
        """Log an event and show it."""
        if isinstance(event, Usage):
            self.usd += event.usd
            self.evaluations += event.evaluations
            return
        if isinstance(event, Text):
            self.said = event.text
        elif isinstance(event, ToolUse):
            self.said = f"{event.name} {event.summary}"
        elif isinstance(event, Retry):
            self.said = f"waits {event.after_s:.0f} s: {event.reason}"
        logger.info("%s on %s: %s", self.name, problem, self.said)
        self.live("working", problem)

    def tools(self, problem: str, worktree: Path) -> Tools:
        def commit(message: str) -> Submitted:
            said = trailers(
                run=self.config.run,
                worker=self.name,
                agent=self.kind,
                session=self.open_session.id,
                model=self.open_session.model,
                cost_usd=self.usd,
            )
            done = submit(
                self.repo,
                worktree,
                problem=problem,
                target=self.target,
                message=message,
                said=said,
                base=self.config.coordination_branch,
                languages=self.config.languages,
            )
            return Submitted(commit=done.commit, tree=done.tree, branch=done.branch)

        def outcome(submitted: Submitted) -> Entry | None:
            self.live("waiting", problem)
            return wait_for_outcome(
                self.workspace,
                problem,
                self.target,
                submitted.tree,
                known=lambda: self.tried.entry(submitted.tree),
                stop=self.stop,
                deadline_s=_OUTCOME_S,
            )

        @contextmanager
        def turn() -> Iterator[None]:
            lock = self.workspace.state / "locks" / f"turn-{problem.replace('/', '-')}"
            with file_lock(lock, wait_s=_TURN_S, owner=f"harness worker {self.name}"):
                yield

        return Tools(
            commit=commit,
            outcome=outcome,
            history=self.history,
            note=lambda text: self.note(problem, self.open_session.id, text),
            turn=turn,
        )

    @property
    def open_session(self) -> AgentSession:
        """The session at work: tools exist only while there is one."""
        assert self._session is not None  # noqa: S101
        return self._session

    def history(self) -> tuple[Attempt, ...]:
        return tuple(
            Attempt(tree=one.tree, worker=one.worker, verdict=one.verdict, speedup=one.speedup)
            for one in self.tried.candidates()
        )

    def note(self, problem: str, session: str, text: str) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
        leave_note(self.workspace, problem=problem, worker=self.name, session=session, text=text, at=at)

    def live(self, state: str, problem: str | None = None) -> None:
        write_live(
            self.workspace,
            f"worker-{self.name}",
            {
                "worker": self.name,
                "agent": self.kind,
                "state": state,
                "problem": problem,
                "said": self.said,
                "evaluations": self.evaluations,
                "usd": self.usd,
                "finished": self.finished,
            },
        )
