"""Prepared sites, made once and copied by each test that kills processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.site import Site, site_in

pytest.register_assert_rewrite("tests.integration.kills")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site with three candidates: with a confirmation, without one, and one that kills the judge once."""
    with site_in(tmp_path_factory.mktemp("template")) as site:
        site.submit("w01", "t/one", "stub: speedup=1.5")
        site.submit("w02", "t/one", "stub: speedup=0.8")
        site.submit("w02", "t/two", "stub: speedup=0.9\n// stub: kill-once")
        yield site


@pytest.fixture(scope="session")
def tunable_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a site with two problems whose solutions a tuner can vary."""
    with site_in(tmp_path_factory.mktemp("tunable"), tunable=True) as site:
        yield site
