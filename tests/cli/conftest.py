"""A workspace whose problems a tuner can vary, and a stub judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site import Site, site_in


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, tunable=True) as created_site:
        yield created_site
