"""All attacks: PyTorch, Triton, native and device code."""

from __future__ import annotations

from tests.gpu.attacks_code import DEVICE, IMPRECISE, TRITON
from tests.gpu.attacks_memory import CACHED, STOLEN
from tests.gpu.attacks_order import CACHE_LINES, ORDER
from tests.gpu.attacks_reach import FORGED_RECORD, REACH
from tests.gpu.attacks_time import CLOCKS, MISSING
from tests.gpu.attacks_turn import TURNS
from tests.gpu.attacks_watch import WATCHERS

ATTACKS = (
    *CLOCKS, *MISSING, *CACHED, *STOLEN, *IMPRECISE, *TRITON, *DEVICE,
    *TURNS, *WATCHERS, *ORDER, *CACHE_LINES, *REACH, FORGED_RECORD,
)  # fmt: skip
