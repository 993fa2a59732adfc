"""Honest solutions of every kind: none may be accused, and none may fail."""

from __future__ import annotations

from tests.gpu.controls_device import SEALED, TRITON
from tests.gpu.controls_host import JOINED, KEPT, LIBRARIES, POOLS
from tests.gpu.extensions import RIGHT

CONTROLS = (*LIBRARIES, *KEPT, *JOINED, *POOLS, *TRITON, *SEALED, *RIGHT)
"""`RIGHT` needs a CUDA compiler."""
