"""Read a tensor of a safetensors file, without the library safetensors, which nothing else would need."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.errors import FormatError
from harness.formats.bounded import TENSOR_HEADER_BYTES, load_json


def read_safetensors(path: str, key: str, roots: list[Path]) -> torch.Tensor:
    """Return a tensor of a safetensors file.

    Source: safetensors format: eight bytes of header length, a JSON header, then the data.

    Args:
        path: path of the file, relative to one of the roots.
        key: name of the tensor.
        roots: directories that are searched in order.

    Raises:
        FormatError: the path is outside of the roots, the file or tensor does not exist, or the file is malformed.
    """
    below = [(root / path).resolve() for root in roots if (root / path).resolve().is_relative_to(root.resolve())]
    file = next(filter(Path.is_file, below), None)
    if file is None:
        raise FormatError(f"`{path}` is not a file below {' or '.join(map(str, roots))}")
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    try:
        header = load_json(data[8 : 8 + length], where=str(file), max_bytes=TENSOR_HEADER_BYTES)
    except FormatError as error:
        raise FormatError(f"not a safetensors file: {error.message}", where=str(file)) from error
    if not isinstance(header, dict):
        raise FormatError("not a safetensors file; expected an object as its header", where=str(file))
    if key not in header:
        raise FormatError(f"no tensor `{key}`; expected one of {', '.join(sorted(header))}", where=str(file))
    entry = header[key]
    try:
        begin, end = entry["data_offsets"]
        raw = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.uint8)
        return raw.view(_FILE_DTYPES[entry["dtype"]]).view(entry["shape"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FormatError(f"tensor `{key}` is malformed: {error}", where=str(file)) from error


_FILE_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F4": torch.float4_e2m1fn_x2,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
