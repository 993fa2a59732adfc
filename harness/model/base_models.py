"""Base classes of the models: frozen data that refuses or keeps unknown keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """Base of this project's own formats and messages: unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class LenientModel(BaseModel):
    """Base of file formats of other projects, and of records with further fields: unknown keys are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")
