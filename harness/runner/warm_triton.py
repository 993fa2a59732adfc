"""Preparation of Triton in a standby runner, so that a candidate does not wait for it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.driver import CudaUtils
from triton.compiler import ASTSource

_WARP = 32


@triton.jit  # type: ignore[untyped-decorator]
def _masked_copy(pointer, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
    offsets = tl.arange(0, BLOCK)
    tl.store(pointer + offsets, tl.load(pointer + offsets, mask=offsets < count), mask=offsets < count)


def compile_without_device(capability: int) -> None:
    """Load Triton's compiler with a first kernel, and the C code with which it calls the driver.

    Args:
        capability: compute capability times ten, 90 for an H200.
    """
    CudaUtils()
    signature = {"pointer": "*bf16", "count": "i32", "BLOCK": "constexpr"}
    triton.compile(ASTSource(_masked_copy, signature, {"BLOCK": 128}), target=GPUTarget("cuda", capability, _WARP))


def compile_and_launch(tensor: torch.Tensor) -> None:
    """Compile and launch the kernel on at least 128 elements, of which it copies none."""
    _masked_copy[(1,)](tensor, 0, BLOCK=128)
