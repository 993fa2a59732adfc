"""Tensors of a problem: dtypes by name, and tensors of safetensors files."""

from __future__ import annotations

import torch

from harness.formats.tensors import find_tensor_file, read_tensor
from harness.model.problem import Problem, SafetensorsInput


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype of a dtype in a definition, which has the same name."""
    return getattr(torch, name)  # type: ignore[no-any-return]


def tensor_of_file(problem: Problem, source: SafetensorsInput) -> torch.Tensor:
    """Return a tensor of a file, of which only the tensor's bytes are read.

    Args:
        problem: its directory and its data root are searched for the file.
        source: names the file and the tensor.

    Raises:
        FormatError: there is no such file or tensor, or the file is malformed.
    """
    roots = [root for root in (problem.directory, problem.data_root) if root is not None]
    data, dtype, shape = read_tensor(find_tensor_file(source.path, roots), source.tensor_key)
    if not data:
        return torch.empty(shape, dtype=torch_dtype(dtype))
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(torch_dtype(dtype)).view(shape)
