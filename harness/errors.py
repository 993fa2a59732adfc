"""The one root of every error that a person can mend."""

from __future__ import annotations

from harness.model.printable import printable


class HarnessError(Exception):
    """Something is wrong that a person can mend.

    Args:
        what: what is wrong, naming the thing.
        where: the file (with line), command or field it is about, if there is one.
        remedy: what to do about it, as a command where there is one.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str | None = None, remedy: str | None = None) -> None:
        # The only place that all error texts pass: file names and contents in them come from agents.
        self.what = printable(what, keep_newlines=True)
        self.where = None if where is None else printable(where)
        self.remedy = None if remedy is None else printable(remedy, keep_newlines=True)
        super().__init__(self.what)

    def __str__(self) -> str:
        what = self.what.replace("\n", "\n  ")  # a line break in foreign text begins no line of ours
        head = f"{self.where}: {what}" if self.where else what
        return f"{head}\n  {self.remedy}" if self.remedy else head


class ConfigurationError(HarnessError):
    """harness.yaml, the command line or the machine is not as it must be."""


class FormatError(HarnessError):
    """A file people or agents wrote does not follow its format."""


class RepositoryError(HarnessError):
    """Git said no, or the repository is not in the state the harness needs."""


class LedgerError(HarnessError):
    """The ledger or its spool cannot be read or written as it stands."""


class AnswerIsNo(HarnessError):  # noqa: N818 - not an error: the command worked and its answer is no
    """The command did its work and the answer is no: not passed, ledger broken, nothing found."""

    exit_code = 1
