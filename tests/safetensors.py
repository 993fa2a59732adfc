"""Small safetensors files."""

from __future__ import annotations

import json
from pathlib import Path


def write_safetensors(path: Path, key: str, dtype: str, shape: list[int], data: bytes) -> None:
    """Write a file with one tensor; `data` may be shorter than the size in the header."""
    size = {"F32": 4, "I32": 4, "I64": 8, "BF16": 2}[dtype]
    for length in shape:
        size *= length
    header = json.dumps({key: {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
