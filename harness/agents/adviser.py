"""The planner's model: a short session that is shown the standings and the policy's decision, and proposes a table."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from harness.agents import confinement, documentation, prompting
from harness.agents.governor import Purse, over
from harness.agents.kinds import KINDS
from harness.agents.model_access import api_backoff
from harness.agents.model_access.gateway import Gateway, Upstream
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_budget import RequestBudget, planner_limits
from harness.agents.session import Answer, Brief, End, Submitted, Tool, Tools
from harness.errors import HarnessError, RepositoryError
from harness.git.repo import Repo
from harness.ledger.accounts import (
    Account,
    close_left_open,
    present_time,
    recorded_accounts,
    total,
    unrecorded_accounts,
)
from harness.ledger.coordination import read_text
from harness.model.config import Config, SessionBudget
from harness.model.paths import SOLUTIONS
from harness.workspace.directories import COORDINATION_NAME, Workspace
from harness.workspace.files import atomic_write

WORKER = "planner"
_TURNS = 12

logger = logging.getLogger(__name__)

Judge = Callable[[dict[str, object]], str | None]
"""Takes a proposal; says what is wrong with it, None when it holds."""


class PlanningModel:
    """Asks a model for proposals. One process asks at a time: the planner.

    Args:
        workspace: whose accounts and api_backoff.
        config: names model, deadline and budget.
        schema: of a proposal.
        stop: ends what is under way.
    """

    def __init__(
        self, workspace: Workspace, config: Config, schema: Mapping[str, object], stop: threading.Event
    ) -> None:
        self._workspace, self._config, self._schema, self._stop = workspace, config, schema, stop
        self._directory = workspace.state / "agents" / WORKER
        self._upstream = Upstream.of_environment(os.environ)
        close_left_open(workspace, WORKER)

    def ask(self, situation: dict[str, object], judge: Judge) -> str | None:
        """Show a situation and have proposals judged, until one holds; its model's name, None when none did.

        Whatever goes wrong is logged: the planner goes on without.
        """
        state = api_backoff.look(self._workspace)
        why = state.stopped or (state.why if state.wait_s() else None) or self._used_up()
        if why:
            logger.warning("the planner's model is not asked: %s", why)
            return None
        try:
            return self._session(situation, judge)
        except HarnessError as error:
            logger.warning("the planner's model was not heard: %s", error)
        return None

    def _used_up(self) -> str | None:
        with Repo(self._workspace) as repo:
            ledger = recorded_accounts(self._workspace, repo, self._config.coordination_branch)
        every = {
            each.id: each for each in (*unrecorded_accounts(self._workspace), *ledger) if each.run == self._config.run
        }
        mine = total(each for each in every.values() if each.worker == WORKER)
        of_all = over(self._config.agent.overall, total(every.values()), f"for the run {self._config.run}")
        return over(self._config.planner.budget, mine, "for the planner") or of_all

    def _session(self, situation: dict[str, object], judge: Judge) -> str | None:
        held: list[bool] = []

        def propose(given: object) -> Answer:
            said = judge(dict(given) if isinstance(given, dict) else {})
            if said is not None:
                return Answer(f"this proposal does not hold: {said}", failed=True)
            held.append(True)
            return Answer("taken; you are done")

        tool = Tool("propose", "Propose who works on what. One row for each worker.", (), propose, self._schema)
        until = time.monotonic() + self._config.planner.deadline_s
        with ExitStack() as stack:
            gateway = stack.enter_context(Gateway(self._workspace, self._upstream, self._config.agent.gateway))
            account = Account(
                id=uuid.uuid4().hex,
                run=self._config.run,
                worker=WORKER,
                problem="",
                session="",
                agent="claude",
                began=present_time(),
            )
            meter = Meter(self._workspace, account, self._config.agent.prices)
            stack.callback(meter.close)
            with Repo(self._workspace) as repo:
                purse = Purse(self._workspace, repo, self._config)
            limits = planner_limits(self._config, WORKER, purse)
            budget = RequestBudget(self._workspace, meter, purse, limits, self._config.agent.prices)
            stack.callback(budget.close)
            served = gateway.serve(self._directory / "gateway", meter, lambda: None, budget)
            stack.callback(served.close)
            session = KINDS["claude"](self._brief(situation, tool))
            meter.add(meter.account.spent, session=session.id)
            for event in stack.enter_context(closing(session.events())):
                if held or self._stop.is_set() or time.monotonic() > until:
                    break
                if isinstance(event, End):
                    logger.info("the planner's model ended: %s %s", event.reason, event.text)
        if not held:
            logger.warning("the planner's model made no proposal that holds within its time; the policy decides")
        return session.model if held else None

    def _brief(self, situation: dict[str, object], tool: Tool) -> Brief:
        empty = self._directory / "problem"
        (empty / SOLUTIONS).mkdir(parents=True, exist_ok=True)
        view = confinement.View(
            problem="planner/none",
            directory=empty,
            solution=self._directory / "solution",
            target="none",
            reading=self._reading(),
            docs=documentation.PACK,
            home=self._directory / "home",
            sockets=self._directory / "gateway",
        )
        shown = json.dumps(situation, indent=1, default=str)
        return Brief(
            role="planner",
            prompt=f"The situation:\n{shown}\n\nPropose a table, or agree by proposing the policy's.",
            system=prompting.prompt_file("planner"),
            directory=empty,
            solution=empty / SOLUTIONS,
            tools=_no_tools(),
            budget=SessionBudget(turns=_TURNS),
            offered=(tool,),
            view=view,
            model=self._config.planner.model or self._config.agent.model,
            max_answer_tokens=self._config.agent.max_answer_tokens,
        )

    def _reading(self) -> Path:
        reading = self._directory / "view"
        with Repo(self._workspace) as repo:
            atomic_write(reading / COORDINATION_NAME, read_text(repo, self._config.coordination_branch))
        return reading


def _no_tools() -> Tools:
    def refuse(_: str) -> Submitted:
        raise RepositoryError("the planner submits nothing")

    return Tools(commit=refuse, outcome=lambda _: None, history=tuple, note=lambda *_: None, turn=nullcontext)
