"""One requirement of a run, and what came of checking it: shared by `harness start` and `harness doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.cli.devices import Chosen
from harness.model.config import AgentKind, Config
from harness.workspace.directories import Workspace


@dataclass(frozen=True)
class Check:
    """Result of checking one requirement."""

    what: str
    state: Literal["ok", "missing", "note"]
    """`missing` is needed for what this version does; a `note` is not."""
    found: str
    fix: str = ""


@dataclass(frozen=True)
class RunPlan:
    """Workspace, configuration and devices that a run would use."""

    workspace: Workspace | None
    """None where `harness doctor` runs outside of any."""
    config: Config
    chosen: Chosen
    kind: AgentKind
    cache: Path
    """Remembers the trials that take seconds."""
    thorough: bool = False
    """Make such a trial even if it has succeeded before, and give it minutes."""
    say: Callable[[str], None] = lambda _: None
    """Shows a line before a check that takes seconds."""

    @property
    def uses_claude(self) -> bool:
        """True if a worker or the planner uses a model of Anthropic's."""
        return self.kind == "claude" or self.config.planner.kind == "claude"


@dataclass(frozen=True)
class Requirement:
    """One thing that a run needs.

    Its check returns what it found, a `Check` where that is worth more than `ok`, and None where it does not apply.
    It raises a HarnessError with the fix when the run would fail.
    """

    what: str
    check: Callable[[RunPlan], Check | str | None]
    needed: Callable[[RunPlan], bool] = lambda _: True
    """Where this returns False, `harness start` does not check it, and to `harness doctor` a failure is a note."""
