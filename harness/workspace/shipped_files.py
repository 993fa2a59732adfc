"""Files that ship with the harness for workspaces: the starter problems, and the workflow that checks pull requests."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationError

SUITE = "starter"
_PACKAGE = Path(__file__).resolve().parent.parent


def starter_problems() -> dict[str, bytes]:
    """Every file of the shipped starter problems, by its path below `problems/starter/`.

    Raises:
        ConfigurationError: this installation has none.
    """
    root = _shipped("_starter", f"problems/{SUITE}")
    paths = sorted(path.relative_to(root) for path in root.rglob("*") if path.is_file())
    kept = (path for path in paths if not any(part == "__pycache__" or part.startswith(".") for part in path.parts))
    return {path.as_posix(): (root / path).read_bytes() for path in kept}


def proof_workflow() -> bytes:
    """The workflow proof.yml.

    Raises:
        ConfigurationError: this installation has none.
    """
    return _shipped("_proof.yml", ".github/workflows/proof.yml").read_bytes()


def _shipped(in_wheel: str, in_checkout: str) -> Path:
    """In the package when installed from a wheel, beside it in a checkout."""
    for candidate in (_PACKAGE / in_wheel, _PACKAGE.parent / in_checkout):
        if candidate.exists():
            return candidate
    raise ConfigurationError(f"this installation lacks {in_checkout}", remedy="install kernel-harness again")
