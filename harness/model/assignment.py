"""Who works on what, as COORDINATION.md's table says it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Assignment(BaseModel):
    """A worker, a problem, and what is wanted of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: str
    problem: str
    """The problem's key, `suite/name`."""
    wanted: str = ""
    """One line for the agent: what to try, what limits the kernel now."""
    state: Literal["active", "pinned", "paused"] = "active"
    """`pinned`: the planner never moves the row. `paused`: the problem gets no worker."""
