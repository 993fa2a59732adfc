"""Runs one worker's sessions: opens them, supervises them, resumes them after an interruption, and cleans up.

A session that ended because the model API was not available is resumed by its id after the wait; a session whose
process ended is resumed at once. The id is on disk, so a session is also resumed after the worker was killed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.agents import confinement, prompting
from harness.agents.agent_tools import AgentTools
from harness.agents.answers import attempts_text
from harness.agents.command import bound_paths, variables
from harness.agents.governor import Governor, SpendTracker, UsageLimits, reached_limit, run_limits, session_limits
from harness.agents.kernel_facts import KernelFacts
from harness.agents.kinds import KINDS
from harness.agents.model_access import api_backoff
from harness.agents.model_access.endpoint import Upstream
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_budget import RequestBudget
from harness.agents.others_work import best_of_others, show_others
from harness.agents.session import AgentSession, Alive, Brief, End, Event, Tools, Usage
from harness.agents.solution_sync import replace_with_copy, sync_solution
from harness.agents.transcripts import agent_directory
from harness.errors import ConfigurationError, HarnessError
from harness.git.repo import Repo
from harness.ledger.accounts import Spent, close_left_open
from harness.ledger.coordination import read_text
from harness.model.base_models import StrictModel
from harness.model.config import AgentKind, Config
from harness.model.device_description import DeviceDescription
from harness.model.paths import problem_path
from harness.model.problem import Problem
from harness.workspace.directories import COORDINATION_NAME, Workspace
from harness.workspace.files import atomic_write, file_lock, read_record

if TYPE_CHECKING:
    from harness.agents.model_access.gateway import Gateway

_CRASHES = 3
"""Number of consecutive crashes of a session's process, without a submission in between, that ends the session."""
_POLL_S = 0.5
_CONNECT_S = 120.0

logger = logging.getLogger(__name__)


class SessionRefusedError(ConfigurationError):
    """The model API refuses the credential, so no session can continue."""


class SessionRecord(StrictModel):
    """A worker's unfinished session, in a file, so that it continues after the worker was killed."""

    run: str
    kind: AgentKind
    problem: str
    session: str


@dataclass(frozen=True)
class WorkItem:
    """A worker's present assignment."""

    problem: Problem
    """Loaded from the worktree."""
    wanted: str
    """The instruction."""
    solution: Path
    """The solution directory in the worktree."""
    tools: Tools


@dataclass
class Sessions:
    """Opens one worker's sessions, one after the other. The `with` block owns the gateway that they share."""

    workspace: Workspace
    repo: Repo
    config: Config
    name: str
    """Name of the worker."""
    kind: AgentKind
    target: str
    """Such as `cpu` or `h200`."""
    on_event: Callable[[Event], None]
    """Called with every event of a session."""
    is_reassigned: Callable[[], bool]
    """Return True if the worker must leave its problem."""
    stop: threading.Event
    """Ends the present session when set."""
    current: AgentSession | None = None
    """The session that was opened last."""
    usd: float = 0.0
    """Cost of all sessions since the worker started."""
    evaluations: int = 0
    """Number of evaluations in all sessions since the worker started."""
    _request_refusal: str | None = None
    """The reason why a request exceeded the remaining budget of the worker or the run."""
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.directory = agent_directory(self.workspace, self.name)
        """Files that the worker's agents keep between sessions: their home, and the files shown in the sandbox."""
        self._writable_solution = self.directory / "solution"
        """The directory that the agent may write."""
        self._record = self.directory / "session.json"

    def __enter__(self) -> Self:
        close_left_open(self.workspace, self.name)
        api_backoff.allow_requests(self.workspace)
        self._spend_tracker = SpendTracker(self.workspace, self.repo, self.config)
        self._gateway: Gateway | None = None
        if self.kind != "tuner" and self.config.agent.network == "gateway":
            from harness.agents.model_access.gateway import Gateway  # noqa: PLC0415 - 12 MB that a tuner does not need

            with suppress(ConfigurationError):  # an agent of kind `command` may need no credential
                upstream = Upstream.of_environment(os.environ)
                gateway = Gateway(self.workspace, upstream, self.config.agent.gateway)
                self._gateway = self._stack.enter_context(gateway)
        elif self.kind != "tuner":
            logger.warning("agents have the host's network and login (agent.network: host)")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def unfinished(self, problem: str) -> str | None:
        """Return the id of the unfinished session on a problem; None without one, or for another run or kind."""
        record = read_record(self._record, SessionRecord)
        place = (self.config.run, self.kind, problem)
        if record is None or (record.run, record.kind, record.problem) != place:
            return None
        return record.session

    def reached_limit(self) -> str | None:
        """Return the limit that prevents further sessions of this worker; None without one."""
        limits = run_limits(self.config, self.config.agent.per_worker, self.name, self._spend_tracker)
        return reached_limit(limits) or self._request_refusal

    def work(self, work_item: WorkItem) -> End:
        """Run one session to its end, and resume it as often as necessary.

        Raises:
            SessionRefusedError: the model API refuses the credential.
            HarnessError: the session cannot be opened.
        """
        self._spend_tracker.reread(self.repo)
        problem, crashes = work_item.problem.key, 0
        resume = self.unfinished(problem)
        while True:
            end, submissions = self._run_session(work_item, resume)
            crashes = 0 if submissions else crashes
            stopped = api_backoff.read_backoff(self.workspace).stopped
            if end.reason == "refused" or (stopped and not self.stop.is_set()):
                raise SessionRefusedError(
                    stopped or end.text,
                    where="ANTHROPIC_API_KEY",
                    remedy="export a valid key; then run `harness start` to continue",
                )
            if end.reason == "crashed":
                crashes += 1
                if crashes >= _CRASHES:
                    self._record.unlink(missing_ok=True)
                    return End("failed", f"its process crashed {crashes} times: {end.text}")
            elif end.reason != "held":
                if end.reason != "interrupted" or not self.stop.is_set():
                    self._record.unlink(missing_ok=True)
                return end
            logger.warning("%s on %s: %s (%s); it will be resumed", self.name, problem, end.reason, end.text)
            if not self._wait_for_api(end):
                return End("interrupted", "stopped while the model was not available")
            resume = self.current.id if self.current is not None else None

    def _wait_for_api(self, end: End) -> bool:
        """Wait until requests are allowed again; return False if the worker must stop or leave its problem first."""
        left_s = api_backoff.read_backoff(self.workspace).wait_s()
        self.on_event(End(end.reason, f"waits {left_s:.0f} s: {end.text}"))
        while not self.stop.is_set() and not self.is_reassigned():
            if left_s <= 0:
                return True
            self.stop.wait(min(_POLL_S, left_s))
            left_s = api_backoff.read_backoff(self.workspace).wait_s()
        return False

    def _run_session(self, work_item: WorkItem, resume: str | None) -> tuple[End, int]:
        """Open a session, process its events and close it; return its end and its number of submissions."""
        problem = work_item.problem.key
        before = self._spend_tracker.spent(session=resume) if resume else Spent()
        with ExitStack() as stack:
            account = self.name, self.kind, problem, resume or ""
            meter = stack.enter_context(closing(Meter(self.workspace, self.config, *account)))
            agent_tools = self._agent_tools(work_item, meter)
            limits = session_limits(self.config, meter, self._spend_tracker, before)
            budget = stack.enter_context(closing(RequestBudget(meter, self._spend_tracker, limits)))
            governor = Governor(limits, self.config.agent.per_session, meter, agent_tools, budget.refusal)
            view = self._view(work_item) if self.kind != "tuner" else None
            if view is not None and (resume is None or not view.solution.is_dir()):
                replace_with_copy(work_item.solution, view.solution)
            if self._gateway is not None and view is not None and view.sockets is not None:
                stack.enter_context(self._gateway.serve(view.sockets, budget, governor.out_of_budget))
            connecting = stack.enter_context(self._connection_slot() if self.kind == "claude" else ExitStack())
            self.current = KINDS[self.kind](self._brief(work_item, agent_tools, view, resume, limits))
            record = SessionRecord(run=self.config.run, kind=self.kind, problem=problem, session=self.current.id)
            atomic_write(self._record, record.model_dump_json())
            meter.add(Spent(), session=self.current.id, model=self.current.model)
            if view is not None:
                stack.callback(self._save_solution, work_item)
            events = stack.enter_context(closing(self.current.events()))  # closed before the files that it uses
            end = self._process_events(self.current, events, governor, meter, connecting)
            return self._end_with_refusal(budget, governor.end_at_limit(end)), agent_tools.submissions

    def _end_with_refusal(self, budget: RequestBudget, end: End) -> End:
        """Return a session's end; a request that was refused for lack of budget overrides the agent's own report."""
        if budget.refused is None or end.reason in {"refused", "interrupted"}:
            return end
        if not budget.refused.of_session:
            self._request_refusal = budget.refused.reason
        return End("budget", budget.refused.reason)

    def _connection_slot(self) -> ExitStack:
        """Acquire one of as many locks as there are CPUs: many sessions connect faster one after the other."""
        slots = max(1, len(os.sched_getaffinity(0)))
        until = time.monotonic() + _CONNECT_S
        slot_lock = ExitStack()
        while not self.stop.is_set() and time.monotonic() < until:
            for slot in range(slots):
                with suppress(ConfigurationError):  # another session holds the lock
                    lock = self.workspace.state / "locks" / f"connect-{slot}"
                    slot_lock.enter_context(file_lock(lock, owner=f"harness worker {self.name}"))
                    return slot_lock
            self.stop.wait(_POLL_S / 5)
        return slot_lock  # after the timeout, the session connects without a lock

    def _process_events(
        self, session: AgentSession, events: Iterable[Event], governor: Governor, meter: Meter, connecting: ExitStack
    ) -> End:
        ended: End | None = None
        usd_before, evaluations_before, began = self.usd, self.evaluations, time.monotonic()
        for event in events:
            if meter.last_activity > began or not isinstance(event, Alive):
                connecting.close()
            if isinstance(event, Usage):
                meter.add(event.spent)
            self.usd, self.evaluations = usd_before + meter.spent.usd, evaluations_before + meter.spent.evaluations
            if isinstance(event, End):
                return replace(ended, text=f"{ended.text}; {event.text}") if ended is not None else event
            self.on_event(event)
            if ended is None:
                limit, misbehaviour = governor.out_of_budget(), governor.misbehaviour(event)
                ended = End("budget", limit) if limit else End("stale", misbehaviour) if misbehaviour else None
            is_refused = api_backoff.read_backoff(self.workspace).stopped is not None
            if ended is not None or is_refused:
                session.interrupt(at_once=True)
            elif self.stop.is_set() or self.is_reassigned():
                session.interrupt()
        return End("failed", "the session ended without an `End` event")

    def _brief(
        self,
        work_item: WorkItem,
        agent_tools: AgentTools,
        view: confinement.View | None,
        resume: str | None,
        limits: UsageLimits,
    ) -> Brief:
        prompt, system = work_item.wanted, ""
        if view is not None:
            prompt = prompting.assignment(
                work_item.problem,
                work_item.wanted,
                target=self.target,
                facts=work_item.tools.facts() or KernelFacts(DeviceDescription(target=self.target)),
                attempts=attempts_text(work_item.tools.history(), work_item.tools.lessons(), ""),
                remaining=prompting.remaining(limits),
            )
            programs = confinement.find_local_tools().programs
            system = prompting.system(self.config, worker=self.name, target=self.target, programs=programs)
        return Brief(
            role="worker",
            prompt=prompt,
            system=system,
            agent=self.config.agent,
            solution=work_item.solution,
            tools=work_item.tools,
            worker=self.name,
            seed=zlib.crc32(f"{self.config.run}/{self.name}/{work_item.problem.key}".encode()),
            resume=resume,
            offered=agent_tools.offered(),
            view=view,
            submitted=lambda: agent_tools.submissions,
        )

    def _view(self, work_item: WorkItem) -> confinement.View:
        agent, reading, requests = self.config.agent, self.directory / "view", self.directory / "requests"
        requests.mkdir(parents=True, exist_ok=True)
        atomic_write(reading / COORDINATION_NAME, read_text(self.repo, self.config.coordination_branch))
        self._show_others(work_item)
        return confinement.View(
            problem=work_item.problem.key,
            directory=work_item.problem.directory,
            solution=self._writable_solution,
            target=self.target,
            reading=reading,
            home=self.directory / "home",
            sockets=self.directory / "gateway" if self._gateway is not None else None,
            requests=requests if self.kind == "command" else None,
            network=agent.network,
            binds=bound_paths(agent, self.workspace.root) if self.kind == "command" else (),
            environment=variables(agent) if self.kind == "command" else {},
        )

    def _agent_tools(self, work_item: WorkItem, meter: Meter) -> AgentTools:
        directory = str(work_item.problem.directory)
        inside = f"{confinement.TASK}/{problem_path(work_item.problem.key)}"
        return AgentTools(
            tools=work_item.tools,
            target=self.target,
            axes=prompting.axes_in_words(work_item.problem),
            hide=lambda text: text.replace(directory, inside),
            meter=meter,
            take_solution=lambda: sync_solution(self._writable_solution, work_item.solution),
            after_outcome=lambda: self._show_others(work_item),
        )

    def _show_others(self, work_item: WorkItem) -> None:
        """Write the present champion and the best solutions of other workers to a directory that the agent can read."""
        chosen = best_of_others(work_item.tools.history(), self.name, work_item.tools.champion())
        show_others(self.directory / "view", chosen, work_item.tools.sources)

    def _save_solution(self, work_item: WorkItem) -> None:
        """Copy the solution that an agent did not submit into its worktree, if it is valid."""
        try:
            sync_solution(self._writable_solution, work_item.solution)
        except HarnessError as error:
            logger.warning("%s left files that cannot be copied: %s", self.name, error)
