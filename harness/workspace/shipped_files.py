"""Files that ship with the harness for workspaces: problems, and the workflow that checks pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigurationError
from harness.formats.problems import DEFINITION_NAME, WORKLOADS_NAME, list_problems
from harness.formats.schema import did_you_mean
from harness.formats.small_profile import small_files

STARTER = "starter"
ALL = "all"
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class ShippedProblems:
    """Files of shipped problems by path below `problems/`, and the problems without sizes in a profile."""

    files: dict[str, bytes]
    left_out: dict[str, str]
    """Key -> reason."""


def problems_root() -> Path:
    """Return the directory of the shipped problems, in the form of `problems/` of a workspace.

    Raises:
        ConfigurationError: this installation lacks them.
    """
    return _shipped("_problems", "problems")


def shipped_suites() -> tuple[str, ...]:
    """Return the names of the shipped suites.

    Raises:
        ConfigurationError: this installation lacks them.
    """
    return tuple(dict.fromkeys(key.partition("/")[0] for key in list_problems(problems_root())))


def shipped_problems(suites: Sequence[str], *, small: bool = False) -> ShippedProblems:
    """Return every file of the problems of some shipped suites.

    Args:
        small: scale the workloads by the profile `small`.

    Raises:
        ConfigurationError: no such suite, or this installation lacks them.
    """
    suite_names = shipped_suites()
    for suite in suites:
        if suite not in {*suite_names, ALL}:
            message = f"no shipped suite `{suite}`; {did_you_mean(suite, [*suite_names, ALL])}"
            raise ConfigurationError(message, remedy="see `harness problems suites --shipped`")
    root = problems_root()
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    chosen = suite_names if ALL in suites else dict.fromkeys(suites)
    for key in (key for suite in chosen for key in list_problems(root, [f"{suite}/*"])):
        problem_files = _files_below(root / key, key)
        reason = _scale(problem_files, key) if small else None
        if reason is None:
            files |= problem_files
        else:
            left_out[key] = reason
    return ShippedProblems(files, left_out)


def proof_workflow() -> bytes:
    """Return the workflow proof.yml.

    Raises:
        ConfigurationError: this installation lacks them.
    """
    return _shipped("_proof.yml", ".github/workflows/proof.yml").read_bytes()


def _files_below(directory: Path, key: str) -> dict[str, bytes]:
    paths = sorted(path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    shipped = (path for path in paths if not any(part == "__pycache__" or part.startswith(".") for part in path.parts))
    return {f"{key}/{path.as_posix()}": (directory / path).read_bytes() for path in shipped}


def _scale(files: dict[str, bytes], key: str) -> str | None:
    """Replace a problem's two files by small ones; return the reason if there are none."""
    definition, workloads = f"{key}/{DEFINITION_NAME}", f"{key}/{WORKLOADS_NAME}"
    scaled = small_files(files[definition].decode(), files[workloads].decode())
    if isinstance(scaled, str):
        return scaled
    files[definition], files[workloads] = scaled
    return None


def _shipped(in_wheel: str, in_checkout: str) -> Path:
    """Return a path in the package of a wheel, or beside the package in a checkout."""
    for candidate in (_PACKAGE / in_wheel, _PACKAGE.parent / in_checkout):
        if candidate.exists():
            return candidate
    raise ConfigurationError(f"this installation lacks {in_checkout}", remedy="reinstall kernel-harness")
