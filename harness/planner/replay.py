"""Recorded decisions, decided again from their recorded inputs: without a device, and without a worker."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.model.config import Config
from harness.planner.planner import DECISIONS
from harness.planner.policy import NAME, Decision, PolicyInputs, decide
from harness.store.ledger import read_records
from harness.store.repo import Repo
from harness.store.workspace import Workspace


@dataclass(frozen=True)
class Replayed:
    """One recorded decision and what the policy says today."""

    seq: int
    at: str
    policy: str
    """The policy that decided then."""
    recorded: Decision
    now: Decision

    @property
    def same(self) -> bool:
        """Whether it comes out the same."""
        return self.recorded == self.now


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
        found.append(Replayed(int(record["seq"]), str(record["at"]), str(record["policy"]), recorded, decide(inputs)))
    return found


__all__ = ["NAME", "Replayed", "replay"]
