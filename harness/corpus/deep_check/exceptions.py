"""Exceptions from the deep check: justified survivals of mutants and justified failures of honest implementations."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from harness.formats.problems import read_text
from harness.formats.schema import shown, validated
from harness.formats.source_lines import parse_yaml
from harness.model.base_models import StrictModel

FILE = "deep-check.yaml"
"""Name of the file in the directory of problems."""


class DeepException(StrictModel):
    """One reason, and the problems and results that it covers."""

    result: str = Field(min_length=1)
    """Pattern of the result's title, such as `wrong epsilon: 10 times *`."""
    problems: tuple[str, ...] = Field(min_length=1)
    """Keys of problems."""
    reason: str = Field(min_length=20)


class ExceptionFile(StrictModel):
    """deep-check.yaml."""

    exceptions: tuple[DeepException, ...] = ()

    def reason(self, key: str, title: str) -> str | None:
        """Return the reason of the exception that covers a result; None without such an exception."""
        return next((item.reason for item in self.exceptions if key in item.problems and _covers(item, title)), None)

    def stale(self, key: str, titles: Sequence[str]) -> list[str]:
        """Return the patterns of a problem's exceptions that cover none of its results."""
        return [
            item.result
            for item in self.exceptions
            if key in item.problems and not any(_covers(item, title) for title in titles)
        ]


def _covers(item: DeepException, title: str) -> bool:
    return fnmatch.fnmatchcase(title, item.result)


def read_exceptions(problems_dir: Path) -> ExceptionFile:
    """Return the exceptions of a directory of problems; none if it has no such file.

    Raises:
        FormatError: the file does not follow the format.
    """
    file = problems_dir / FILE
    if not file.exists():
        return ExceptionFile()
    where = shown(file)
    value, lines = parse_yaml(read_text(file), where=where)
    exceptions, errors = validated(ExceptionFile, value, where=where, lines=lines)
    if exceptions is None:
        raise errors[0]
    return exceptions
