"""The planner's model: a short session that reads the standings and the policy's decision, and proposes a table."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing

from harness.agents import confinement, prompting
from harness.agents.governor import SpendTracker, UsageLimits, reached_limit, run_limits
from harness.agents.kinds import KINDS
from harness.agents.model_access import api_backoff
from harness.agents.model_access.endpoint import Upstream
from harness.agents.model_access.gateway import Gateway
from harness.agents.model_access.meter import Meter
from harness.agents.model_access.request_budget import RequestBudget
from harness.agents.session import Answer, Brief, End, Tool
from harness.errors import HarnessError
from harness.git.repo import Repo
from harness.ledger.accounts import Spent, close_left_open
from harness.ledger.coordination import read_text
from harness.model.config import Config, SessionBudget
from harness.model.paths import SOLUTIONS
from harness.workspace.directories import COORDINATION_NAME, Workspace
from harness.workspace.files import atomic_write

WORKER = "planner"
_TURNS = 12

logger = logging.getLogger(__name__)

ProposalCheck = Callable[[dict[str, object]], str | None]
"""Proposal -> the reason to reject it; None if it is valid."""


class PlanningModel:
    """Requests proposals from a model. Only the planner's process uses it.

    Args:
        workspace: stores the accounts and the backoff state of the model API.
    """

    def __init__(
        self, workspace: Workspace, config: Config, schema: Mapping[str, object], stop: threading.Event
    ) -> None:
        self._workspace, self._config, self._schema, self._stop = workspace, config, schema, stop
        self._directory = workspace.state / "agents" / WORKER
        self._upstream = Upstream.of_environment(os.environ)
        close_left_open(workspace, WORKER)

    def ask(self, situation: dict[str, object], check: ProposalCheck) -> str | None:
        """Run a session until it proposes a valid table or its deadline is reached.

        An error is logged, and the planner continues with the policy's table.

        Args:
            situation: standings, workers and the policy's decision, as JSON for the model.
            check: validates a proposal and stores it if it is valid.

        Returns:
            The name of the model; None if it made no valid proposal.
        """
        config, state = self._config, api_backoff.read_backoff(self._workspace)
        with Repo(self._workspace) as repo:
            spend_tracker = SpendTracker(self._workspace, repo, config)
        limits = run_limits(config, config.planner.budget, WORKER, spend_tracker)
        obstacle = state.stopped or (state.reason if state.wait_s() else None) or reached_limit(limits)
        if obstacle:
            logger.warning("the planner's model is not used: %s", obstacle)
            return None
        try:
            return self._session(situation, check, spend_tracker, limits)
        except HarnessError as error:
            logger.warning("the session of the planner's model failed: %s", error)
        return None

    def _session(
        self, situation: dict[str, object], check: ProposalCheck, spend_tracker: SpendTracker, limits: UsageLimits
    ) -> str | None:
        accepted = threading.Event()

        def propose(arguments: object) -> Answer:
            rejection = check(dict(arguments) if isinstance(arguments, dict) else {})
            if rejection is not None:
                return Answer(f"this proposal is not valid: {rejection}", failed=True)
            accepted.set()
            return Answer("accepted; you are done")

        description = "Propose which worker works on which problem. One row per worker."
        tool = Tool("propose", description, self._schema, propose)
        until = time.monotonic() + self._config.planner.deadline_s
        with ExitStack() as stack:
            gateway = stack.enter_context(Gateway(self._workspace, self._upstream, self._config.agent.gateway))
            meter = stack.enter_context(closing(Meter(self._workspace, self._config, WORKER, "claude")))
            budget = stack.enter_context(closing(RequestBudget(meter, spend_tracker, limits)))
            stack.enter_context(gateway.serve(self._directory / "gateway", budget, lambda: None))
            session = KINDS["claude"](self._brief(situation, tool))
            meter.add(Spent(), session=session.id)
            for event in stack.enter_context(closing(session.events())):
                if accepted.is_set() or self._stop.is_set() or time.monotonic() > until:
                    break
                if isinstance(event, End):
                    logger.info("the planner's model ended: %s %s", event.reason, event.text)
        if not accepted.is_set():
            logger.warning("the planner's model made no valid proposal before its deadline; the policy decides")
        return session.model if accepted.is_set() else None

    def _brief(self, situation: dict[str, object], tool: Tool) -> Brief:
        no_problem = self._directory / "problem"
        (no_problem / SOLUTIONS).mkdir(parents=True, exist_ok=True)
        reading = self._directory / "view"
        with Repo(self._workspace) as repo:
            atomic_write(reading / COORDINATION_NAME, read_text(repo, self._config.coordination_branch))
        view = confinement.View(
            problem="planner/none",
            directory=no_problem,
            solution=self._directory / "solution",
            target="none",
            reading=reading,
            home=self._directory / "home",
            sockets=self._directory / "gateway",
        )
        situation_json, agent = json.dumps(situation, indent=1, default=str), self._config.agent
        return Brief(
            role="planner",
            prompt=f"The situation:\n{situation_json}\n\nPropose a table. To agree with the policy, propose its table.",
            system=prompting.prompt_file("planner"),
            agent=agent.model_copy(
                update={
                    "model": self._config.planner.model or agent.model,
                    "effort": None,
                    "roles": {},
                    "per_session": SessionBudget(turns=_TURNS),
                }
            ),
            solution=no_problem / SOLUTIONS,
            offered=(tool,),
            view=view,
        )
