"""A requirement of a run and the result of its check, for `harness start` and `harness doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from harness.cli.devices import DeviceChoice
from harness.errors import HarnessError
from harness.model.config import AgentKind, Config
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class Check:
    """The result of the check of one requirement."""

    name: str
    state: Literal["ok", "missing", "note"]
    """A run fails without a `missing` requirement; a `note` does not prevent a run."""
    result: str
    fix: str = ""
    """A command."""

    @classmethod
    def of_error(cls, name: str, error: HarnessError, fix: str | None = None) -> Self:
        """Return the check of a missing requirement.

        Args:
            error: describes what is missing.
            fix: a command; None for the error's remedy.
        """
        where = f"{error.where}: " if error.where else ""
        return cls(name, "missing", f"{where}{error.message}", error.remedy or "" if fix is None else fix)

    def row(self) -> dict[str, str]:
        """Return the row that `harness doctor` prints, also as JSON."""
        return {"what": self.name, "state": self.state, "found": self.result, "fix": self.fix}


@dataclass(frozen=True)
class RunPlan:
    """Workspace, configuration and devices that a run would use."""

    workspace: Workspace | None
    """None if `harness doctor` runs outside of a workspace."""
    config: Config
    chosen: DeviceChoice
    kind: AgentKind
    cache: Path
    """Stores the results of trials that take seconds."""
    thorough: bool = False
    """Repeat a trial that has succeeded before, with a timeout of minutes."""
    show: Callable[[str], None] = lambda _: None
    """Show a line before a check that takes seconds."""

    @property
    def uses_claude(self) -> bool:
        """Return True if a worker or the planner uses kind `claude`."""
        return self.kind == "claude" or self.config.planner.kind == "claude"


@dataclass(frozen=True)
class Requirement:
    """A requirement of a run.

    Its check returns a description of a met requirement, a `Check` for a note, or None if the check does not apply. It
    raises a HarnessError with the fix if the run would fail.
    """

    name: str
    check: Callable[[RunPlan], Check | str | None]
    applies: Callable[[RunPlan], bool] = lambda _: True
    """If it returns False, `harness start` skips the check, and `harness doctor` reports a failure as a note."""
