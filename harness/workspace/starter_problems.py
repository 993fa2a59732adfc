"""The starter problems that ship with the harness."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError

SUITE = "starter"


def shipped_files() -> dict[str, bytes]:
    """Every file of the shipped starter problems, by its path below `problems/starter/`.

    Raises:
        ConfigurationError: this installation has none.
    """
    root = _shipped()
    paths = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    kept = (path for path in paths if not any(part == "__pycache__" or part.startswith(".") for part in path.parts))
    return {path.as_posix(): (root / path).read_bytes() for path in kept}


def _shipped() -> Path:
    """In the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for candidate in (package / "_starter", package.parent / "problems" / SUITE):
        if candidate.is_dir():
            return candidate
    raise ConfigurationError("this installation holds no starter problems", remedy="install kernel-harness again")
