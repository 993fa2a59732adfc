"""What holds for every test."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

# A busy machine is slow, not wrong: an example's time is no reason to fail.
hypothesis.settings.register_profile("harness", deadline=None)
hypothesis.settings.load_profile("harness")


@pytest.fixture
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge at work on this machine must not hold a test up."""
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of one group first: one process makes them one after the other while others make the rest.

    The group `judge` runs real judges, which pin what they time to the same processor and so wait for each other.
    """
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
