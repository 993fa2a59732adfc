"""Recorded decisions, decided again from their recorded inputs: without a device, and without a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.git.repo import Repo
from harness.ledger.ledger import read_records
from harness.model.config import Config
from harness.model.paths import DECISIONS
from harness.planner.decision import Decision, PolicyInputs
from harness.planner.policies import POLICIES
from harness.planner.policy import decide, expected_gains
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class Replayed:
    """One recorded decision, and the same inputs decided again."""

    seq: int
    at: str
    policy: str
    """The policy that decided then."""
    recorded: Decision
    now: Decision
    """By the policy that decided then, if there still is one of that name and version, else by today's."""
    inputs: PolicyInputs

    @property
    def same(self) -> bool:
        """Whether it comes out the same."""
        return self.recorded == self.now

    @property
    def by_model(self) -> bool:
        """Whether a model decided then: the policy need not agree with it."""
        return not self.policy.startswith(tuple(name.partition("/")[0] for name in POLICIES))


def replay(workspace: Workspace, repo: Repo, config: Config) -> list[Replayed]:
    """Every recorded decision of the configuration's run, decided again.

    Raises:
        LedgerError: a record is no decision; the message names it.
    """
    found = []
    for record in read_records(workspace, repo, DECISIONS, branch=config.coordination_branch):
        if record.get("run") != config.run:
            continue
        try:
            inputs = PolicyInputs.model_validate(record["inputs"])
            recorded = Decision.model_validate(record["decision"])
        except (KeyError, ValidationError) as error:
            raise LedgerError(f"record {record.get('seq')} is no decision: {error}", where=DECISIONS) from error
        found.append(
            Replayed(
                int(record["seq"]),
                str(record["at"]),
                str(record["policy"]),
                recorded,
                POLICIES.get(str(record["policy"]), decide)(inputs),
                inputs,
            )
        )
    return found


@dataclass(frozen=True)
class Compared:
    """One policy over all recorded decisions."""

    policy: str
    decisions: int
    same: int
    """How many come out with the rows that were recorded."""
    moves: int
    """How many workers it moves from where they were."""
    idle: int
    """How many workers it leaves without a row."""
    value: float
    """Sum of the expected gains per cost of the rows it gives, as the planner's policy estimates them."""


def compare(found: Sequence[Replayed], policies: Mapping[str, Callable[[PolicyInputs], Decision]]) -> list[Compared]:
    """Let policies decide the same recorded inputs again."""
    rows = []
    for name, policy in policies.items():
        decided = [(one, policy(one.inputs)) for one in found]
        rows.append(
            Compared(
                policy=name,
                decisions=len(decided),
                same=sum(_rows(decision) == _rows(one.recorded) for one, decision in decided),
                moves=sum(len(_rows(decision) - _present(one.inputs)) for one, decision in decided),
                idle=sum(len(one.inputs.workers) - len(_rows(decision)) for one, decision in decided),
                value=round(sum(_value(one.inputs, decision) for one, decision in decided), 4),
            )
        )
    return rows


def _rows(decision: Decision) -> set[tuple[str, str]]:
    return {(row.worker, row.problem) for row in decision.assignments if row.state != "paused"}


def _present(inputs: PolicyInputs) -> set[tuple[str, str]]:
    return {(row.worker, row.problem) for row in inputs.assignments if row.state != "paused"}


def _value(inputs: PolicyInputs, decision: Decision) -> float:
    values = expected_gains(inputs.problems)
    return sum(values.get(problem, 0.0) for problem in {problem for _, problem in _rows(decision)})
