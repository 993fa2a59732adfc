"""The starter problems that ship with the harness."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import ConfigurationError
from harness.store.problems import list_problems

SUITE = "starter"


def copy_starter(destination: Path) -> list[str]:
    """Copy the shipped starter problems to `destination/starter/` and say their keys.

    Args:
        destination: the `problems` directory of a new workspace.

    Raises:
        ConfigurationError: they are there already, or this installation has none.
    """
    target = destination / SUITE
    if target.exists():
        raise ConfigurationError("starter problems are there already", where=str(target))
    shutil.copytree(_shipped(), target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc", ".*"))
    return list_problems(destination, [f"{SUITE}/*"])


def _shipped() -> Path:
    """In the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_starter", package.parent / "problems" / SUITE):
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("this installation holds no starter problems", remedy="install kernel-harness again")
