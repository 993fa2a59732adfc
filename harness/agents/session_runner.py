"""One worker's session on one problem: made, watched, resumed after it was cut off, and cleared away.

A session that the model's absence ended waits and goes on by its id; one whose process died goes on at once. Its id
is on disk, so that it also goes on after the worker itself was killed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from harness.agents import confinement, documentation, prompt_tables, prompting
from harness.agents.agent_tools import Desk
from harness.agents.answers import attempts
from harness.agents.command import bound_paths, variables
from harness.agents.governor import Governor, Purse, used_up
from harness.agents.kernel_facts import KernelFacts
from harness.agents.kinds import KINDS
from harness.agents.local_tools import find_local_tools
from harness.agents.model_access import api_backoff
from harness.agents.model_access.gateway import Gateway, Upstream
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_budget import RequestBudget, worker_limits
from harness.agents.others_work import best_of_others, show_others
from harness.agents.profile import profile
from harness.agents.session import AgentSession, Alive, Brief, End, Event, Submitted, Tools, Usage
from harness.agents.session_record import SessionRecord
from harness.agents.solution_sync import lay_out, take_in
from harness.agents.transcripts import agent_directory
from harness.errors import ConfigurationError, HarnessError
from harness.git.repo import Repo
from harness.ledger.accounts import Account, Spent, close_left_open, present_time
from harness.ledger.coordination import read_text
from harness.model.assignment import Assignment
from harness.model.checking import CheckReply, ShownCode
from harness.model.config import AgentKind, Config
from harness.model.device_description import DeviceDescription
from harness.model.entry import Entry
from harness.model.paths import problem_path
from harness.model.problem import Problem
from harness.workspace.directories import COORDINATION_NAME, Workspace
from harness.workspace.files import atomic_write, file_lock

_CRASHES = 3
"""Deaths of a session's process in a row, without a submission in between, after which it is given up."""
_WAIT_S = 0.5
_CONNECT_S = 120.0

logger = logging.getLogger(__name__)


class SessionRefusedError(ConfigurationError):
    """The model's side refuses the credential: no session can continue."""


@dataclass(frozen=True)
class Stay:
    """Where a worker is: its row, its worktree, and the tools that work on them."""

    row: Assignment
    problem: Problem
    worktree: Path
    solution: Path
    tools: Tools


class Sessions:
    """Opens one worker's sessions, one after the other. What they share lives as long as the `with` block.

    Args:
        workspace, repo, config, name, kind, target: the worker's.
        heed: is told every event.
        moved: whether the worker is to leave its problem.
        stop: ends everything.
    """

    def __init__(
        self,
        workspace: Workspace,
        repo: Repo,
        config: Config,
        name: str,
        kind: AgentKind,
        target: str,
        *,
        heed: Callable[[Event], None],
        moved: Callable[[], bool],
        stop: threading.Event,
    ) -> None:
        self._workspace, self._repo, self._config = workspace, repo, config
        self._name, self._kind, self._target = name, kind, target
        self._heed, self._moved, self._stop = heed, moved, stop
        self._stack = ExitStack()
        self.directory = agent_directory(workspace, name)
        """What the worker's agents need from one session to the next: their home, and what they are shown."""
        self.record = SessionRecord(self.directory, config.run, kind)
        self.current: AgentSession | None = None
        """The session that was opened last."""
        self._refused: str | None = None
        """Why no further request of this worker fits in what is left of its money or the run's."""
        self.usd = 0.0
        """What all sessions since the beginning cost together; `evaluations` likewise."""
        self.evaluations = 0

    def __enter__(self) -> Self:
        close_left_open(self._workspace, self._name)
        api_backoff.ask_again(self._workspace)
        self._purse = Purse(self._workspace, self._repo, self._config)
        self._gateway: Gateway | None = None
        if self._kind != "tuner" and self._config.agent.network == "gateway":
            with suppress(ConfigurationError):  # a command may need no model at all
                upstream = Upstream.of_environment(os.environ)
                gateway = Gateway(self._workspace, upstream, self._config.agent.gateway)
                self._gateway = self._stack.enter_context(gateway)
        elif self._kind != "tuner":
            logger.warning("agents have the host's network and login (agent.network: host)")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def spent_out(self) -> str | None:
        """Why this worker may open no session any more."""
        return used_up(self._config, self._name, self._purse) or self._refused

    def work(self, stay: Stay) -> End:
        """One session on one problem, to its end; over as many processes as it takes.

        Raises:
            SessionRefusedError: the model's side refuses the credential.
            HarnessError: the session cannot be opened.
        """
        self._purse.reread(self._repo, self._config)
        resume, crashes = self.record.unfinished(stay.row.problem), 0
        while True:
            end, submissions = self._once(stay, resume)
            crashes = 0 if submissions else crashes
            stopped = api_backoff.look(self._workspace).stopped
            if end.reason == "refused" or (stopped and not self._stop.is_set()):
                raise SessionRefusedError(
                    stopped or end.text,
                    where="ANTHROPIC_API_KEY",
                    remedy="export a key that is good, then `harness start` goes on",
                )
            if end.reason == "crashed":
                crashes += 1
                if crashes >= _CRASHES:
                    self.record.forget()
                    return End("failed", f"its process died {crashes} times: {end.text}")
            elif end.reason != "held":
                if end.reason != "interrupted" or not self._stop.is_set():
                    self.record.forget()
                return end
            logger.warning("%s on %s: %s (%s); it goes on", self._name, stay.row.problem, end.reason, end.text)
            if not self._wait_out(end):
                return End("interrupted", "told to stop while the model was away")
            resume = self.current.id if self.current is not None else None

    def _wait_out(self, end: End) -> bool:
        """Wait until the fleet may ask again; False when the worker is to stop or move meanwhile."""
        left_s = api_backoff.look(self._workspace).wait_s()
        self._heed(End(end.reason, f"waits {left_s:.0f} s: {end.text}"))
        while not self._stop.is_set() and not self._moved():
            if left_s <= 0:
                return True
            self._stop.wait(min(_WAIT_S, left_s))
            left_s = api_backoff.look(self._workspace).wait_s()
        return False

    def _once(self, stay: Stay, resume: str | None) -> tuple[End, int]:
        """Open the session, go through its events, close it; how it ended, and how much it submitted."""
        before = self._purse.spent(session=resume) if resume else Spent()
        with ExitStack() as stack:
            meter = self._meter(stay, resume)
            stack.callback(meter.close)
            desk = self._desk(stay, meter)
            limits = worker_limits(self._config, meter, self._purse, before)
            budget = RequestBudget(self._workspace, meter, self._purse, limits, self._config.agent.prices)
            stack.callback(budget.close)
            governor = Governor(
                self._config, self._name, meter, self._purse, desk, before, lambda: _why_refused(budget)
            )
            view = self._view(stay) if self._kind != "tuner" else None
            if view is not None and (resume is None or not view.solution.is_dir()):
                lay_out(stay.solution, view.solution)
            if self._gateway is not None and view is not None and view.sockets is not None:
                served = self._gateway.serve(view.sockets, meter, governor.out_of_budget, budget)
                stack.callback(served.close)
            connecting = stack.enter_context(self._turn_to_connect() if self._kind == "claude" else ExitStack())
            self.current = KINDS[self._kind](self._brief(stay, desk, view, resume, before))
            self.record.remember(stay.row.problem, self.current.id)
            meter.add(Spent(), session=self.current.id, model=self.current.model)
            if view is not None:
                stack.callback(self._take_in, stay)
            events = stack.enter_context(closing(self.current.events()))  # ends before what it works on is taken away
            end = self._watch(self.current, events, governor, meter, connecting)
            return self._refused_end(budget, end), desk.submissions

    def _refused_end(self, budget: RequestBudget, end: End) -> End:
        """Outcome of a session. A request refused for lack of money decides it, whatever the agent reports."""
        if budget.refused is None or end.reason in {"refused", "interrupted"}:
            return end
        if not budget.refused.of_session:
            self._refused = budget.refused.why
        return End("budget", budget.refused.why)

    def _turn_to_connect(self) -> ExitStack:
        """Held while a session connects: many at once take longer than one after the other."""
        slots = max(1, len(os.sched_getaffinity(0)))
        until = time.monotonic() + _CONNECT_S
        held = ExitStack()
        while not self._stop.is_set() and time.monotonic() < until:
            for slot in range(slots):
                with suppress(ConfigurationError):  # another session connects
                    lock = self._workspace.state / "locks" / f"connect-{slot}"
                    held.enter_context(file_lock(lock, owner=f"harness worker {self._name}"))
                    return held
            self._stop.wait(_WAIT_S / 5)
        return held  # the slots stayed busy too long: connect without one

    def _watch(
        self, session: AgentSession, events: Iterable[Event], governor: Governor, meter: Meter, connecting: ExitStack
    ) -> End:
        ended: End | None = None
        usd, began = self.usd, time.monotonic()
        for event in events:
            if meter.heard_at > began or not isinstance(event, Alive):
                connecting.close()
            if isinstance(event, End):
                return replace(ended, text=f"{ended.text}; {event.text}") if ended is not None else event
            if isinstance(event, Usage):
                used = Spent(usd=event.usd, input_tokens=event.tokens, turns=event.turns, evaluations=event.evaluations)
                meter.add(used)
                self.evaluations += event.evaluations
            self.usd = usd + meter.spent.usd
            self._heed(event)
            if ended is None:
                why, astray = governor.out_of_budget(), governor.astray(event)
                ended = End("budget", why) if why else End("stale", astray) if astray else None
            refused = api_backoff.look(self._workspace).stopped is not None
            if ended is not None or refused:
                session.interrupt(at_once=True)
            elif self._stop.is_set() or self._moved():
                session.interrupt()
        return End("failed", "the session ended without saying why")

    def _prompt(self, stay: Stay, desk: Desk, before: Spent) -> str:
        """The first message of a session; `before` is what earlier openings of it used."""
        agent = self._config.agent
        limits = {
            "session": (agent.per_session, before),
            "worker": (agent.per_worker, self._purse.spent(self._name)),
            "run": (agent.overall, self._purse.spent()),
        }
        return prompting.assignment(
            stay.problem,
            stay.row,
            target=self._target,
            facts=stay.tools.facts() or KernelFacts(DeviceDescription(target=self._target)),
            stands=attempts(stay.tools.history(), desk.lessons(), ""),
            remaining=prompt_tables.remaining(limits),
        )

    def _system(self) -> str:
        programs = find_local_tools().programs
        return prompting.system(self._config, worker=self._name, target=self._target, programs=programs)

    def _brief(self, stay: Stay, desk: Desk, view: confinement.View | None, resume: str | None, before: Spent) -> Brief:
        agent, row = self._config.agent, stay.row
        return Brief(
            role="worker",
            prompt=self._prompt(stay, desk, before) if view else row.wanted,
            system=self._system() if view else "",
            directory=stay.worktree,
            solution=stay.solution,
            tools=stay.tools,
            budget=agent.per_session,
            seed=zlib.crc32(f"{self._config.run}/{self._name}/{row.problem}".encode()),
            resume=resume,
            offered=desk.offered(),
            view=view,
            model=agent.model,
            effort=agent.effort,
            max_answer_tokens=agent.max_answer_tokens,
            roles=agent.roles,
            command=agent.command,
            values={"problem": row.problem, "target": self._target, "worker": self._name},
            submitted=lambda: desk.submissions,
        )

    def _view(self, stay: Stay) -> confinement.View:
        agent, reading, requests = self._config.agent, self.directory / "view", self.directory / "requests"
        requests.mkdir(parents=True, exist_ok=True)
        atomic_write(reading / COORDINATION_NAME, read_text(self._repo, self._config.coordination_branch))
        self._show_others(stay)
        return confinement.View(
            problem=stay.row.problem,
            directory=stay.worktree / problem_path(stay.row.problem),
            solution=self._written,
            target=self._target,
            reading=reading,
            docs=documentation.PACK,
            home=self.directory / "home",
            sockets=self.directory / "gateway" if self._gateway is not None else None,
            requests=requests if self._kind == "command" else None,
            network=agent.network,
            binds=bound_paths(agent, self._workspace.root) if self._kind == "command" else (),
            environment=variables(agent) if self._kind == "command" else {},
        )

    def _desk(self, stay: Stay, meter: Meter) -> Desk:
        directory = stay.worktree / problem_path(stay.row.problem)
        axes = prompt_tables.axes_in_words(stay.problem)

        def hide(text: str) -> str:
            return text.replace(str(directory), f"{confinement.TASK}/{problem_path(stay.row.problem)}")

        def spend(spent: Spent) -> None:
            meter.add(spent)
            self.evaluations += spent.evaluations

        return Desk(
            tools=stay.tools if self._kind == "tuner" else self._tools_of_agent(stay),
            lessons=stay.tools.lessons,
            axes=axes,
            hide=hide,
            profiled=lambda passed, workload: profile(self._target, passed, workload, axes, stay.tools.profile),
            spend=spend,
        )

    def _tools_of_agent(self, stay: Stay) -> Tools:
        """Return the tools for an agent in a sandbox: its files are copied into the worktree before each use."""
        tools = stay.tools
        run_check = tools.check

        def commit(message: str) -> Submitted:
            take_in(self._written, stay.solution)
            return tools.commit(message)

        def check(show: ShownCode, function: str) -> CheckReply | None:
            assert run_check is not None  # noqa: S101 - offered only where there is one
            take_in(self._written, stay.solution)
            return run_check(show, function)

        def outcome(submitted: Submitted) -> Entry | None:
            entry = tools.outcome(submitted)
            self._show_others(stay)
            return entry

        return replace(tools, commit=commit, outcome=outcome, check=check if run_check is not None else None)

    def _show_others(self, stay: Stay) -> None:
        """Write the current champion and the best solutions of other workers where the agent can read them."""
        history, champion = stay.tools.history(), stay.tools.champion()
        chosen = best_of_others(history, self._name, champion)
        show_others(self.directory / "view", chosen, stay.tools.sources)

    @property
    def _written(self) -> Path:
        """What an agent may write."""
        return self.directory / "solution"

    def _take_in(self, stay: Stay) -> None:
        """Put what an agent left unsubmitted into its worktree, where it can be."""
        try:
            take_in(self._written, stay.solution)
        except HarnessError as error:
            logger.warning("%s left what cannot be taken: %s", self._name, error)

    def _meter(self, stay: Stay, resume: str | None) -> Meter:
        account = Account(
            id=uuid.uuid4().hex,
            run=self._config.run,
            worker=self._name,
            problem=stay.row.problem,
            session=resume or "",
            agent=self._kind,
            began=present_time(),
            model=self._config.agent.model or "none",
        )
        return Meter(self._workspace, account, self._config.agent.prices)


def _why_refused(budget: RequestBudget) -> str | None:
    return budget.refused.why if budget.refused is not None else None
