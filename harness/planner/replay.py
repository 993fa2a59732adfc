"""Replay of recorded decisions from their recorded inputs, which needs no device and no worker."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.git.repo import Repo
from harness.ledger.ledger import read_records
from harness.model.config import Config
from harness.model.paths import DECISIONS
from harness.planner.decision import Decision, PolicyInputs
from harness.planner.policies import POLICIES
from harness.planner.policy import decide
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class Replayed:
    """One recorded decision, and a new decision from the same inputs."""

    seq: int
    at: str
    policy: str
    """The recorded author: a policy or a model."""
    recorded: Decision
    replayed: Decision
    """Decision of the recorded policy if it still exists in that version, else of the planner's present policy."""
    inputs: PolicyInputs

    @property
    def is_equal(self) -> bool:
        """True if both decisions are equal."""
        return self.recorded == self.replayed

    @property
    def by_model(self) -> bool:
        """True if a model made the recorded decision, with which the policy need not agree."""
        return not self.policy.startswith(tuple(name.partition("/")[0] for name in POLICIES))


def replay(workspace: Workspace, repo: Repo, config: Config) -> list[Replayed]:
    """Replay every recorded decision of the configuration's run.

    Raises:
        LedgerError: a record is not a decision; the message has its number.
    """
    replays = []
    for record in read_records(workspace, repo, DECISIONS, branch=config.coordination_branch):
        if record.get("run") != config.run:
            continue
        try:
            inputs = PolicyInputs.model_validate(record["inputs"])
            recorded = Decision.model_validate(record["decision"])
            policy = str(record["policy"])
        except (KeyError, ValidationError) as error:
            raise LedgerError(f"record {record.get('seq')} is not a decision: {error}", where=DECISIONS) from error
        replayed = POLICIES.get(policy, decide)(inputs)
        replays.append(Replayed(int(record["seq"]), str(record["at"]), policy, recorded, replayed, inputs))
    return replays
