"""Fixtures of the cluster's tests."""

from __future__ import annotations

from tests.workspace.conftest import problem

__all__ = ["problem"]
