"""Crash reports: a file about an unexpected exception for the developers, and one line for the user."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import harness
from harness.errors import HarnessError
from harness.workspace.directories import Workspace
from harness.workspace.files import atomic_write

_MAX_REPORTS = 100
"""Reports in a workspace: a child process that crashes for days must not fill the disk."""
_SECRET_NAME = re.compile(r"(_KEY|_TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_SHORTEST_SECRET = 6
"""A shorter value is not hidden: ordinary words contain it."""
_LONGEST_REASON = 300


def report_crash(error: BaseException) -> str:
    """Write a crash report and return the line for stderr, without a newline.

    The report is written to `.harness/crashes/` of the workspace around the current directory, otherwise to the
    system's directory for temporary files. Neither the report nor the line contains the values of environment variables
    that hold secrets.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
    try:
        where = f"crash report: {_write(_text(error))}"
    except Exception as failure:  # noqa: BLE001 - the line about the crash is printed after any failure
        where = f"no crash report could be written: {type(failure).__name__}: {failure}"
    return _without_secrets(f"internal error: {reason}; {where}")


def crash_report_of(workspace: Workspace, pid: int) -> Path | None:
    """Return the last crash report of a process in a workspace; None without one."""
    return max(workspace.crashes.glob(f"crash-*-{pid}.txt"), default=None)


def _text(error: BaseException) -> str:
    facts = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "harness": harness.__version__,
        "command": sys.argv,
        "python": sys.version,
        "platform": platform.platform(),
        "directory": Path.cwd(),
        "process": os.getpid(),
    }
    head = "".join(f"{name}: {value}\n" for name, value in facts.items())
    return _without_secrets(f"{head}\n{''.join(traceback.format_exception(error))}")


def _write(text: str) -> Path:
    name = f"crash-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}-{os.getpid()}.txt"
    with suppress(HarnessError, OSError):
        directory = Workspace.find().crashes
        atomic_write(directory / name, text)
        for obsolete in sorted(directory.glob("crash-*.txt"))[:-_MAX_REPORTS]:
            obsolete.unlink(missing_ok=True)
        return directory / name
    file = Path(tempfile.gettempdir()) / f"harness-{name}"
    atomic_write(file, text)
    return file


def _without_secrets(text: str) -> str:
    secrets = {name: value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"[{name}]")
    return text
