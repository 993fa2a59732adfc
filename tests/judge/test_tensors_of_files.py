"""Inputs from safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.errors import FormatError
from harness.judge.input_data.inputs import InputSource
from harness.model.problem import Problem, SafetensorsInput
from harness.sol.problem_tensors import tensor_of_file
from tests.judge.problem_in_memory import SIZES, problem, tensor


def _tensor_of_file(sample_problem: Problem, path: str, key: str) -> torch.Tensor:
    return tensor_of_file(sample_problem, SafetensorsInput(type="safetensors", path=path, tensor_key=key))


def _write_safetensors(path: Path, name: str, value: torch.Tensor, dtype: str) -> None:
    raw = bytes(value.view(torch.uint8).flatten().tolist())
    header = json.dumps({name: {"dtype": dtype, "shape": list(value.shape), "data_offsets": [0, len(raw)]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + raw)


def test_safetensors_are_read_from_the_problem_and_the_data_root_only(tmp_path: Path) -> None:
    root, data = tmp_path / "problem", tmp_path / "data"
    root.mkdir()
    data.mkdir()
    value = torch.randn(64).bfloat16()
    _write_safetensors(data / "t.safetensors", "key", value, "BF16")
    sample_problem = problem(
        {"x": tensor("bfloat16", "B")},
        {"y": tensor("bfloat16", "B")},
        "def run(x):\n    return x\n",
        SIZES,
        input_sources={"x": {"type": "safetensors", "path": "t.safetensors", "tensor_key": "key"}},
        directory=root,
    ).model_copy(update={"data_root": data})
    drawn = InputSource(sample_problem).draw(sample_problem.workloads[0])["x"]
    assert isinstance(drawn, torch.Tensor)
    assert torch.equal(drawn, value)
    with pytest.raises(FormatError, match=r"path `\.\./data/t.safetensors` leaves its directory"):
        _tensor_of_file(sample_problem, "../data/t.safetensors", "key")
    with pytest.raises(FormatError, match=r"t\.safetensors holds no well-formed tensor `other`"):
        _tensor_of_file(sample_problem, "t.safetensors", "other")
    (data / "bad.safetensors").write_bytes(b"\x05\0\0\0\0\0\0\0hello")
    with pytest.raises(FormatError, match="not a safetensors file"):
        _tensor_of_file(sample_problem, "bad.safetensors", "key")
    header = json.dumps({"key": {"dtype": "BF16", "shape": [64], "data_offsets": [0, 126]}}).encode()
    (data / "short.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(126))
    with pytest.raises(FormatError, match="has 126 bytes; its dtype and shape need 128"):
        _tensor_of_file(sample_problem, "short.safetensors", "key")


def test_a_tensor_of_a_file_may_be_empty(tmp_path: Path) -> None:
    value = torch.empty(0, 4, dtype=torch.bfloat16)
    _write_safetensors(tmp_path / "t.safetensors", "key", value, "BF16")
    sample_problem = problem({}, {}, "def run():\n    return ()\n", SIZES, directory=tmp_path)
    read = _tensor_of_file(sample_problem, "t.safetensors", "key")
    assert read.shape == value.shape
    assert read.dtype == value.dtype
