"""Preparation of Triton in a standby runner, so that a candidate does not wait for it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.backends.nvidia.driver import CudaUtils


@triton.jit  # type: ignore[untyped-decorator]
def _masked_copy(pointer, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    offsets = tl.arange(0, BLOCK)
    tl.store(pointer + offsets, tl.load(pointer + offsets, mask=offsets < count), mask=offsets < count)


def build_utilities() -> None:
    """Compile and load the C code that Triton calls the driver with. It does not use the device."""
    CudaUtils()


def compile_and_launch(tensor: torch.Tensor) -> None:
    """Compile and launch the kernel on at least 128 elements, of which it copies none."""
    _masked_copy[(1,)](tensor, 0, BLOCK=128)
