"""Description of a device and of a problem's bounds on it, as a process that needs torch hands it to one without."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Limit = Literal["products", "elementwise", "memory"]
"""The resource that a bound is made of: matrix products, other arithmetic, or bytes moved."""


class BoundDescription(BaseModel):
    """Bound of one workload; without one the reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sol_us: float | None = None
    """Microseconds that an ideal kernel takes."""
    attainable_us: float | None = None
    """The same with rates that were measured on such a device, where they were."""
    limited_by: Limit | None = None
    bytes: int | None = None
    flops: int | None = None
    reason: str | None = None
    """Why there is no bound."""


class DeviceDescription(BaseModel):
    """Device and bounds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str
    device: tuple[str, ...] = ()
    """Its figures, one sentence each."""
    bounds: dict[str, BoundDescription] = Field(default_factory=dict)
    """By workload uuid."""
