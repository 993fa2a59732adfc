"""Description of a device and of a problem's bounds on it: the message of a process with torch to one without."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.model.base_models import StrictModel

Limit = Literal["products", "elementwise", "memory"]
"""The resource that determines a bound: matrix products, other arithmetic, or memory traffic."""


class BoundDescription(StrictModel):
    """Bound of one workload, or the reason why it has none."""

    sol_us: float | None = None
    """Latency of an ideal kernel in microseconds, with the vendor's rates."""
    attainable_us: float | None = None
    """Latency of an ideal kernel in microseconds, with the rates measured on such a device; null without them."""
    limited_by: Limit | None = None
    bytes: int | None = None
    flops: int | None = None
    reason: str | None = None
    """Reason for a missing bound."""


class DeviceDescription(StrictModel):
    """Figures of a device, and the bounds of a problem's workloads on it."""

    target: str
    device: tuple[str, ...] = ()
    """Figures of the device, one sentence each."""
    bounds: dict[str, BoundDescription] = Field(default_factory=dict)
    """By workload uuid."""
