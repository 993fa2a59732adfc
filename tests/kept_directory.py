"""A directory for files that a test process makes once and copies often."""

from __future__ import annotations

import tempfile
from pathlib import Path

_base: list[Path] = []


def keep_below(directory: Path) -> None:
    """Make the directories below this one, which is removed with all other directories of the tests."""
    _base[:] = [directory]


def kept_directory(name: str) -> Path:
    """Return an empty directory that exists as long as this process."""
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=_base[0] if _base else None))
