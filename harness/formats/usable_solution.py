"""The one check that decides, before anything is built, whether a directory holds a solution that can be judged."""

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
    """A candidate that is not built, because it is not a solution of its problem, run or device."""

    verdict: ClassVar[Verdict] = Verdict.COMPILE_ERROR
    """Of every such candidate, whether the daemon or the judge finds out first."""

    def __init__(self, what: str, *, where: str | None = None, language: str = "") -> None:
        super().__init__(what, where=where)
        self.language = language
        """Empty where solution.yaml cannot be read."""

    @property
    def reason(self) -> str:
        """The entry's reason, in one line."""
        return " ".join(str(self).split())


def usable_solution(directory: Path, definition: Definition, languages: Collection[str], only_in: str) -> Solution:
    """Return the solution in a directory, checked against its problem.

    Args:
        directory: a snapshot of the candidate.
        definition: the problem's.
        languages: those allowed; empty for all.
        only_in: what allows them, for the message: "this run allows".

    Raises:
        UnusableSolutionError: it is malformed, does not fit the problem, or is in a language that is not allowed.
            Places in the message are relative to the directory.
    """
    try:
        solution = load_solution(directory)
    except FormatError as error:
        raise _unusable(error, directory) from error
    language = solution.spec.language
    for misfit in check_solution(solution, definition):
        raise _unusable(misfit, directory, language)
    if languages and language not in languages:
        what = f"`language` is {language}; {only_in} {', '.join(languages)}"
        raise UnusableSolutionError(what, where=SOLUTION_NAME, language=language)
    return solution


def _unusable(error: FormatError, directory: Path, language: str = "") -> UnusableSolutionError:
    """The error with its place relative to the solution's directory instead of the snapshot in a cache."""
    where = (error.where or "").rpartition(directory.name)[2].lstrip("/")
    return UnusableSolutionError(error.message, where=where or None, language=language)
