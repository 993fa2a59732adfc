"""Honest solutions of every kind: all must pass."""

from __future__ import annotations

from tests.gpu.controls_device import SEALED, TRITON
from tests.gpu.controls_host import JOINED, KEPT, LIBRARIES, POOLS
from tests.gpu.extensions import RIGHT

CONTROLS = (*LIBRARIES, *KEPT, *JOINED, *POOLS, *TRITON, *SEALED, *RIGHT)
"""`RIGHT` needs a CUDA compiler."""
