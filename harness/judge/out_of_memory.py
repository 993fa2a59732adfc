"""Exceptions that mean that memory is exhausted: a condition of the machine, and not a failure of the code that ran."""

from __future__ import annotations

import re
import traceback

import torch

# Messages of torch's CPU allocator, the CUDA runtime, and the workspaces of cuBLAS and cuDNN.
_MESSAGES = re.compile(r"(?i)can't allocate memory|out of memory|std::bad_alloc|_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Return true if an exception means that the memory of the device or of the host is exhausted."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _MESSAGES.search(str(error)) is not None


def as_out_of_memory(error: BaseException) -> BaseException:
    """Return an exception of a library for exhausted memory as the type that torch's own allocator raises.

    Args:
        error: an exception for which `is_out_of_memory` returns true.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return error
    return torch.OutOfMemoryError(str(error))


def release_frames(error: BaseException) -> None:
    """Clear the local variables of the finished calls of an exception, which keep tensors alive while it is handled."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
