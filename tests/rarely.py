"""Cases that only `make test-long` runs; `make test` covers their code with other cases."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def rarely(*cases: object) -> list[ParameterSet]:
    """Mark the cases of a parameter as slow."""
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]
