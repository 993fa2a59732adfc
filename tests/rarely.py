"""Cases that only `make test-long` runs: others of the same kind take their path in `make test`."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def rarely(*cases: object) -> list[ParameterSet]:
    """Mark the cases of a parameter as slow."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]
