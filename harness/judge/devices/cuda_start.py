"""Steps of a CUDA device's judge at its start."""

from __future__ import annotations

import torch

from harness.judge.input_data.layout import Field, Layout

_RESERVED_SHARE = 8
"""One part in so many of the device's memory is the judge's from the start: a candidate cannot starve it."""


def take_memory_and_give_it_back() -> None:
    """Torch keeps what it has had: from now on a candidate that takes all memory cannot take the judge's."""
    free, total = torch.cuda.mem_get_info()
    held = torch.empty(min(free // 2, total // _RESERVED_SHARE), dtype=torch.uint8, device="cuda")
    del held


def calibration_layout(inputs: int, size: int) -> Layout:
    """Of calibration's calls."""
    fields = tuple(Field(f"a{number}", "uint8", (size,), number * size, size, None) for number in range(inputs))
    stride = -(-inputs * size // 4096) * 4096
    return Layout(fields, (Field("out", "uint8", (size,), 0, size, None),), stride, stride, ())
