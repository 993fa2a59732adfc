"""Assignments of workers to problems: the rows of COORDINATION.md's table."""

from __future__ import annotations

from typing import Literal

from harness.model.base_models import StrictModel


class Assignment(StrictModel):
    """A worker, its problem and the planner's instruction."""

    worker: str
    problem: str
    """The problem's key, `suite/name`."""
    wanted: str = ""
    """Instruction to the agent in one line: the approach to try, and the current bottleneck of the kernel."""
    state: Literal["active", "pinned", "paused"] = "active"
    """`pinned`: the planner never moves the row. `paused`: the problem gets no worker."""
