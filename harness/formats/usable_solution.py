"""The check before a build of whether a directory contains a solution that can be judged."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import ClassVar

from harness.errors import FormatError
from harness.formats.solutions import SOLUTION_NAME, check_solution, load_solution
from harness.model.problem import Definition
from harness.model.solution import Solution
from harness.model.verdict import Verdict


class UnusableSolutionError(FormatError):
    """A candidate is not built, because it is not a valid solution of its problem, run or device."""

    verdict: ClassVar[Verdict] = Verdict.COMPILE_ERROR
    """Verdict of every such candidate, from the daemon and from the judge."""

    def __init__(self, message: str, *, where: str | None = None, language: str = "") -> None:
        super().__init__(message, where=where)
        self.language = language
        """Language of the solution; empty where solution.yaml cannot be read."""

    @property
    def reason(self) -> str:
        """The reason for the ledger entry, in one line."""
        return " ".join(str(self).split())


def usable_solution(directory: Path, definition: Definition, languages: Collection[str], only_in: str) -> Solution:
    """Return the solution of a directory after checking it against its problem.

    Args:
        directory: a snapshot of the candidate.
        definition: the problem's definition.
        languages: allowed languages; empty for all.
        only_in: subject and verb of the message about other languages, such as "this run allows".

    Raises:
        UnusableSolutionError: the solution is malformed, does not fit the problem, or its language is not allowed.
            Paths in the message are relative to the directory.
    """
    try:
        solution = load_solution(directory)
    except FormatError as error:
        raise _unusable(error, directory) from error
    language = solution.spec.language
    for misfit in check_solution(solution, definition):
        raise _unusable(misfit, directory, language)
    if languages and language not in languages:
        message = f"`language` is {language}; {only_in} {', '.join(languages)}"
        raise UnusableSolutionError(message, where=SOLUTION_NAME, language=language)
    return solution


def _unusable(error: FormatError, directory: Path, language: str = "") -> UnusableSolutionError:
    """Return the error with a path relative to the solution's directory instead of the snapshot's path in a cache."""
    where = (error.where or "").rpartition(directory.name)[2].lstrip("/")
    return UnusableSolutionError(error.message, where=where or None, language=language)
