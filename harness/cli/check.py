"""The result of one check of `harness doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    what: str
    state: Literal["ok", "missing", "note"]
    """`missing` is needed for what this version does; a `note` is not."""
    found: str
    fix: str = ""
