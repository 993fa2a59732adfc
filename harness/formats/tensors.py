"""safetensors files: paths, checks of the header, and single tensors.

The format: the header's length as eight bytes, little-endian, then the header as JSON,
tensor name -> {dtype, shape, data_offsets}, then the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from harness.errors import FormatError
from harness.formats.bounded import TENSOR_HEADER_BYTES, load_json
from harness.model.problem import DTYPE_BYTES

_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F4": "float4_e2m1fn_x2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "BOOL": "bool",
}  # fmt: skip


def find_tensor_file(path: str, roots: Sequence[Path]) -> Path:
    """Return the file of a workload's relative path, in the first root that contains it.

    Args:
        path: `path` of an input in workload.jsonl.
        roots: the problem directory, then the data root if one is configured.

    Raises:
        FormatError: the path is absolute, contains `..`, leaves its root through a link, or no file exists.
    """
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise FormatError(f"path `{path}` leaves its directory; expected one relative to the problem or the data root")
    for root in roots:
        file = root / pure
        if not file.is_file():
            continue
        if not file.resolve().is_relative_to(root.resolve()):
            raise FormatError(f"path `{path}` leads out of {root.name}/ through a link; expected a file inside it")
        return file
    where = "the problem directory" if len(roots) == 1 else "the problem directory or the data root"
    raise FormatError(
        f"no file `{path}` in {where}",
        remedy=None if len(roots) > 1 else "if the data is in another directory, set `data_root` in harness.yaml",
    )


def check_tensor(file: Path, key: str, dtype: str, shape: tuple[int, ...] | None) -> None:
    """Check by its header that a safetensors file contains a tensor.

    Args:
        dtype: required dtype, as in definition.json.
        shape: required shape; None for any.

    Raises:
        FormatError: the tensor is missing, or has another dtype or shape.
    """
    header = _header(file)
    entry = header.get(key)
    if not isinstance(entry, dict) or key == "__metadata__":
        names = ", ".join(f"`{name}`" for name in header if name != "__metadata__")
        raise FormatError(f"{file.name} holds no tensor `{key}`; it has {names or 'none'}")
    stored_dtype = _DTYPES.get(str(entry.get("dtype")), str(entry.get("dtype")))
    if stored_dtype != dtype:
        raise FormatError(f"tensor `{key}` of {file.name} is {stored_dtype}; expected {dtype}")
    if shape is not None and entry.get("shape") != list(shape):
        raise FormatError(f"tensor `{key}` of {file.name} has shape {entry.get('shape')}; expected {list(shape)}")


def read_tensor(file: Path, key: str) -> tuple[bytes, str, tuple[int, ...]]:
    """Return the bytes, the dtype and the shape of one tensor of a safetensors file without reading other tensors.

    Raises:
        FormatError: the file has no such tensor, has another number of bytes for it than its shape, or ends before the
            end of the tensor.
    """
    entry = _header(file).get(key)
    try:
        begin, end = (int(offset) for offset in entry["data_offsets"])  # type: ignore[index]
        dtype, shape = _DTYPES[str(entry["dtype"])], tuple(int(size) for size in entry["shape"])  # type: ignore[index]
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file.name} holds no well-formed tensor `{key}`") from error
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != nbytes:
        raise FormatError(f"tensor `{key}` of {file.name} has {end - begin} bytes; its dtype and shape need {nbytes}")
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        stream.seek(8 + header_bytes + begin)
        data = stream.read(nbytes)
    if len(data) != nbytes:
        raise FormatError(f"{file.name} ends within tensor `{key}`")
    return data, dtype, shape


def _header(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 2 <= size <= TENSOR_HEADER_BYTES:
                raise FormatError(f"{file.name} is not a safetensors file; expected a header of sensible length")
            raw = stream.read(size)
    except OSError as error:
        raise FormatError(f"{file.name} is not a safetensors file: its header cannot be read") from error
    try:
        header = load_json(raw, where=file.name, max_bytes=TENSOR_HEADER_BYTES)
    except FormatError as error:
        message = f"{file.name} is not a safetensors file: its header cannot be read: {error.message}"
        raise FormatError(message) from error
    if not isinstance(header, dict):
        raise FormatError(f"{file.name} is not a safetensors file; expected an object as its header")
    return header
