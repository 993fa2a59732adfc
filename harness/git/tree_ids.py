"""Git's id of a directory's tree, computed without git: the id that a solution would have in a commit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_BYTECODE = "__pycache__"


@dataclass(frozen=True)
class TreeFile:
    """Mode and blob id of one file of a tree."""

    mode: bytes
    blob: bytes
    """The raw object id."""


def blob_id(data: bytes) -> bytes:
    """Return the raw SHA-1 object id of a blob."""
    return _object_id(b"blob", data)


def tree_files(directory: Path) -> dict[str, TreeFile]:
    """Return relative path -> file of each plain file below a directory, without Python's bytecode."""
    files: dict[str, TreeFile] = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.is_symlink() and _BYTECODE not in path.parts:
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            files[path.relative_to(directory).as_posix()] = TreeFile(mode, blob_id(path.read_bytes()))
    return files


def tree_id(files: Mapping[str, TreeFile], replaced: Mapping[str, bytes] | None = None) -> str:
    """Return the tree's object id in hex.

    Args:
        files: relative path -> file of the tree.
        replaced: relative path -> content of files to replace or add.
    """
    nested: dict[str, TreeFile] = dict(files)
    for name, data in (replaced or {}).items():
        mode = nested[name].mode if name in nested else b"100644"
        nested[name] = TreeFile(mode, blob_id(data))
    return _tree_id(nested).hex()


def _tree_id(files: Mapping[str, TreeFile]) -> bytes:
    subtrees: dict[str, dict[str, TreeFile]] = {}
    rows: list[tuple[bytes, bytes]] = []  # (sort key of git, row)
    for path, file in files.items():
        first_part, slash, subpath = path.partition("/")
        if slash:
            subtrees.setdefault(first_part, {})[subpath] = file
        else:
            name = first_part.encode()
            rows.append((name, file.mode + b" " + name + b"\0" + file.blob))
    for first_part, inside in subtrees.items():
        name = first_part.encode()
        rows.append((name + b"/", b"40000 " + name + b"\0" + _tree_id(inside)))
    return _object_id(b"tree", b"".join(row for _, row in sorted(rows)))


def _object_id(kind: bytes, data: bytes) -> bytes:
    return hashlib.sha1(kind + b" " + str(len(data)).encode() + b"\0" + data, usedforsecurity=False).digest()
