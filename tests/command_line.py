"""The command line in the test's own process, without starting an interpreter.

A new interpreter costs half a second of processor time, and the suite runs hundreds of commands. Tests whose subject
is the process itself (signals, kills, locks between processes) start real ones, and tests/docs/test_tutorial.py types
every command into real processes.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

from harness.__main__ import main

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def call_harness(
    *arguments: str, cwd: Path, environment: Mapping[str, str] | None = None, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run `harness ARGUMENTS` in this process, with another directory and environment.

    Args:
        arguments: the arguments after `harness`.
        cwd: the working directory.
        environment: the whole environment; by default this process' own.
        merged: write stderr to stdout, in the order of writing.

    Returns:
        The exit code and the output, as of a process.
    """
    assert "HARNESS_FAILPOINT" not in (environment or {}), "a failpoint would kill the test's process"
    stdout = io.StringIO()
    stderr = stdout if merged else io.StringIO()
    with (
        mock.patch.dict(os.environ, environment or os.environ, clear=True),
        mock.patch.object(sys, "argv", ["harness", *arguments]),
        contextlib.chdir(cwd),
        _process_state_restored(),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(
        ["harness", *arguments], code, stdout.getvalue(), "" if merged else stderr.getvalue()
    )


@contextlib.contextmanager
def _process_state_restored() -> Iterator[None]:
    """Restore the state that a command changes in its process: signal handlers and handlers of its logger."""
    signal_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    logger = logging.getLogger("harness")
    log_handlers, level = logger.handlers[:], logger.level
    try:
        yield
    finally:
        for number, handler in signal_handlers.items():
            signal.signal(number, handler)
        for added in logger.handlers[:]:
            if added not in log_handlers:
                logger.removeHandler(added)
                added.close()
        logger.setLevel(level)
