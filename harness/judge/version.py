"""Version of the judge. Each measurement has the version that made it; another version measures again."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import harness
from harness.model.judging import JUDGE_PROTOCOL

_ROOT = Path(harness.__file__).resolve().parent
_PARTS = ("judge", "runner", "sol", "model/interval.py")
_SUFFIXES = frozenset({".py", ".cpp", ".cu", ".yaml"})


@cache
def judge_version() -> str:
    """Return `sha256:...` over the protocol version and every source that a measurement depends on.

    The sources are read and not imported.
    """
    digest = hashlib.sha256(f"protocol {JUDGE_PROTOCOL}\n".encode())
    for part in _PARTS:
        root = _ROOT / part
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.suffix in _SUFFIXES)
        for path in files:
            data = path.read_bytes()
            digest.update(f"{path.relative_to(_ROOT)}\n{len(data)}\n".encode())
            digest.update(data)
    return f"sha256:{digest.hexdigest()}"
