"""Steps at the start of a CUDA device's judge: reserve memory, and the layout of the calibration calls."""

from __future__ import annotations

import torch

from harness.judge.input_data.layout import Field, Layout

_RESERVED_SHARE = 8
"""1 / this share of the device's memory is reserved for the judge, so that no candidate can exhaust it."""


def reserve_memory() -> None:
    """Allocate and free memory, which torch's caching allocator keeps for this process."""
    free, total = torch.cuda.mem_get_info()
    reserved = torch.empty(min(free // 2, total // _RESERVED_SHARE), dtype=torch.uint8, device="cuda")
    del reserved


def calibration_layout(inputs: int, size: int) -> Layout:
    """Return the layout of calibration calls.

    Args:
        inputs: number of inputs.
        size: bytes of each input and of the output.
    """
    fields = tuple(Field(f"a{number}", "uint8", (size,), number * size, size, None) for number in range(inputs))
    stride = -(-inputs * size // 4096) * 4096
    return Layout(fields, (Field("out", "uint8", (size,), 0, size, None),), stride, stride, ())
