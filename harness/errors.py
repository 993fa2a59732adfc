"""The root of every error that a user can fix, and the exit codes of the program."""

from __future__ import annotations

from harness.model.printable import printable

EXIT_NO = 1
"""The command worked and its answer is no. No other condition has this code."""
EXIT_ERROR = 2
"""Usage, configuration, or another error that a user can fix."""
EXIT_INTERNAL_ERROR = 70
"""An unexpected exception: a defect of the harness (EX_SOFTWARE of sysexits.h)."""
EXIT_OUT_OF_MEMORY = 71
"""A judge got no memory or process on this machine (EX_OSERR of sysexits.h)."""
EXIT_HOST_FAULT = 75
"""A judge cannot work on this machine now: try again later (EX_TEMPFAIL of sysexits.h)."""
EXIT_INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT."""
EXIT_OUTPUT_CLOSED = 141
"""The reader of the output has ended, as in `harness log | head`: 128 + SIGPIPE, as for any Unix filter."""


class HarnessError(Exception):
    """An error that a user can fix.

    Args:
        message: the error, without its place and its fix.
        where: the file (with line), command or key, if any.
        remedy: the fix, as a command if possible.
    """

    exit_code = EXIT_ERROR

    def __init__(self, message: str, *, where: str | None = None, remedy: str | None = None) -> None:
        # All error texts pass through here: the file names and contents in them come from agents.
        self.message = printable(message, keep_newlines=True)
        self.where = None if where is None else printable(where)
        self.remedy = None if remedy is None else printable(remedy, keep_newlines=True)
        super().__init__(self.message)

    @property
    def sentence(self) -> str:
        """The error in one line with its fix in brackets, for use inside another message."""
        head = f"{self.where}: {self.message}" if self.where else self.message
        return " ".join(f"{head} (fix: {self.remedy})".split() if self.remedy else head.split())

    def __str__(self) -> str:
        message = self.message.replace("\n", "\n  ")  # foreign text cannot forge a line at the left margin
        head = f"{self.where}: {message}" if self.where else message
        return f"{head}\n  {self.remedy}" if self.remedy else head


class ConfigurationError(HarnessError):
    """harness.yaml, the command line or the machine is not usable in its present state."""


class HostFaultError(HarnessError):
    """This machine prevents a judge's work now (no compiler, full disk, lost driver); the candidate is not at fault."""

    exit_code = EXIT_HOST_FAULT


class OutOfMachineMemoryError(HostFaultError):
    """This machine has no memory or process left. A candidate without limits may have taken it."""

    exit_code = EXIT_OUT_OF_MEMORY


class FormatError(HarnessError):
    """A file that people or agents wrote does not follow its format."""


class RepositoryError(HarnessError):
    """A git command failed, or the repository is not in the state that the harness needs."""


class LedgerError(HarnessError):
    """The ledger or its spool cannot be read or written in its present state."""


class AnswerIsNo(HarnessError):  # noqa: N818 - not an error: the command worked and its answer is no
    """The command completed and its answer is no: not passed, ledger broken, no match."""

    exit_code = EXIT_NO
