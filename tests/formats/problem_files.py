"""A small problem and a small solution on disk, for tests to break."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFINITION: Mapping[str, Any] = {
    "name": "scaled_rows",
    "op_type": "elementwise",
    "axes": {
        "rows": {"type": "var"},
        "width": {"type": "const", "value": 64},
        "cells": {"type": "expr", "expression": "rows * width"},
    },
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "float32"},
        "index": {"shape": ["cells"], "dtype": "int32"},
        "scale": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "float32"}},
    "reference": "import torch\n\n\ndef run(x, index, scale):\n    return x * scale\n",
    "constraints": ["rows % 2 == 0"],
}
WORKLOAD: Mapping[str, Any] = {
    "uuid": "w0",
    "axes": {"rows": 8},
    "inputs": {"x": {"type": "random"}, "index": {"type": "random"}, "scale": {"type": "scalar", "value": 0.5}},
}
SOLUTION = """\
language: cpp
entry: kernel.cpp::scaled
params: {BLOCK: 4, MODE: "a"}  # how it is cut
tune:
  BLOCK: [2, 4]
"""
SOURCE = 'extern "C" void scaled(const float* x, float* y) {}\n'


def definition(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(DEFINITION)), **changes}


def workload(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(WORKLOAD)), **changes}


def write_problem(
    directory: Path, definition: Mapping[str, Any] | str = DEFINITION, *workloads: Mapping[str, Any] | str
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    text = definition if isinstance(definition, str) else json.dumps(definition, indent=1)
    (directory / "definition.json").write_text(text)
    lines = [line if isinstance(line, str) else json.dumps(line) for line in workloads or (WORKLOAD,)]
    (directory / "workload.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return directory


def write_solution(directory: Path, text: str = SOLUTION, **sources: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "solution.yaml").write_text(text)
    for name, content in (sources or {"kernel.cpp": SOURCE}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return directory


def write_safetensors(path: Path, tensors: Mapping[str, tuple[str, list[int]]]) -> None:
    """Write a file with a valid header and no data; the check reads only the header."""
    header = json.dumps({name: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for name, (d, s) in tensors.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
