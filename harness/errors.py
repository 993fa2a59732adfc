"""The root of every error that a person can fix, and the exit codes of the program."""

from __future__ import annotations

from harness.model.printable import printable

EXIT_NO = 1
"""The command worked and its answer is no. Nothing else ends with this code."""
EXIT_ERROR = 2
"""Usage, configuration, or anything else that a person can fix."""
EXIT_INTERNAL_ERROR = 70
"""An unexpected exception: a defect of the harness (EX_SOFTWARE of sysexits.h)."""
EXIT_OUT_OF_MEMORY = 71
"""A judge ends so that found no memory or process on this machine (EX_OSERR of sysexits.h)."""
EXIT_HOST_FAULT = 75
"""A judge ends so that cannot work on this machine now: try again later (EX_TEMPFAIL of sysexits.h)."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT."""
EXIT_OUTPUT_CLOSED = 141
"""The reader of the output has ended, as in `harness log | head`: 128 + SIGPIPE, as for any Unix filter."""


class HarnessError(Exception):
    """Something is wrong that a person can fix.

    Args:
        what: what went wrong.
        where: the file (with line), command or key, if there is one.
        remedy: the fix, as a command where there is one.
    """

    exit_code = EXIT_ERROR

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
    """harness.yaml, the command line or the machine cannot be used as it is."""


class HostFaultError(HarnessError):
    """This machine does not let a judge work now (no compiler, full disk, lost driver): no fault of what it judges."""

    exit_code = EXIT_HOST_FAULT


class OutOfHostMemoryError(HostFaultError):
    """This machine has no memory or process left. A candidate may have taken it, where it is not limited."""

    exit_code = EXIT_OUT_OF_MEMORY


class FormatError(HarnessError):
    """A file people or agents wrote does not follow its format."""


class RepositoryError(HarnessError):
    """A git command failed, or the repository is not in the state that the harness needs."""


class LedgerError(HarnessError):
    """The ledger or its spool cannot be read or written as it stands."""


class AnswerIsNo(HarnessError):  # noqa: N818 - not an error: the command worked and its answer is no
    """The command did its work and the answer is no: not passed, ledger broken, nothing found."""

    exit_code = EXIT_NO
