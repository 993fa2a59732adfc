"""What the cluster's tests share."""

from __future__ import annotations

from tests.workspace.conftest import problem

__all__ = ["problem"]
