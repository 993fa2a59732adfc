"""The attacks: over PyTorch, Triton, native and device code."""

from __future__ import annotations

from tests.gpu.attacks_code import DEVICE, IMPRECISE, TRITON
from tests.gpu.attacks_memory import CACHED, STOLEN
from tests.gpu.attacks_time import CLOCKS, MISSING

ATTACKS = (*CLOCKS, *MISSING, *CACHED, *STOLEN, *IMPRECISE, *TRITON, *DEVICE)
