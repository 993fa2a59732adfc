"""Axes of a problem in the SOL-ExecBench schema: constant, given by a workload, or computed from other axes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.model.base_models import LenientModel

NonEmpty = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ConstAxis(LenientModel):
    """An axis with one size."""

    type: Literal["const"]
    value: Size


class VarAxis(LenientModel):
    """An axis whose size each workload gives."""

    type: Literal["var"]


class ExprAxis(LenientModel):
    """An axis computed from axes declared before it."""

    type: Literal["expr"]
    expression: NonEmpty


Axis = Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]
