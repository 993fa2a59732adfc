"""Fixtures of the ledger's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ledger.audited_place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Yield a workspace whose ledger the test fills and changes."""
    place = Place(tmp_path / "a workspace")
    with place.repo:
        yield place
