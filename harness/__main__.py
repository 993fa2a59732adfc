"""The `harness` command: prints all errors and chooses all exit codes (`harness.errors`)."""

from __future__ import annotations

import errno
import logging
import os
import select
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import click

from harness.errors import EXIT_ERROR, EXIT_INTERNAL_ERROR, EXIT_INTERRUPTED, EXIT_OUTPUT_CLOSED, HarnessError
from harness.failpoints import failpoint

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


def main() -> None:
    """Run the command line and exit with one of the codes of `harness.errors`, or with 0."""
    code = _exit_code()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        code = code or EXIT_OUTPUT_CLOSED
    sys.exit(code)


def _exit_code() -> int:
    """Run the command line, print its error and return the exit code."""
    try:
        return _run()
    except (click.exceptions.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        _print_usage_error(error)
        return EXIT_ERROR
    except HarnessError as error:
        logging.getLogger("harness").debug("the command failed", exc_info=True)
        _print_error(f"harness: {error}")
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the top of the process: a defect gets a crash report
        return _unexpected(error)


def _run() -> int:
    from harness.cli import cli  # noqa: PLC0415 - an error while importing a command gets a crash report too

    if "_HARNESS_COMPLETE" in os.environ:  # a shell requests completions; the call never returns
        cli.main(prog_name="harness")
    try:
        # `cli.main` would exit with 1 on a closed output, and treat any EOFError as Ctrl-C.
        with cli.make_context("harness", sys.argv[1:]) as context:
            failpoint("main.before_command")
            code = cli.invoke(context)
    except click.exceptions.Exit as done:
        code = done.exit_code
    return code if isinstance(code, int) else 0


def _unexpected(error: Exception) -> int:
    """Handle an exception that no command handles: a closed output, a full or read-only disk, otherwise a defect."""
    if isinstance(error, BrokenPipeError) and _output_is_closed():
        _discard_output()
        return EXIT_OUTPUT_CLOSED
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        from harness.workspace.files import unwritable  # noqa: PLC0415 - `harness --help` does not need it

        path = error.filename if isinstance(error.filename, str) else Path.cwd()
        _print_error(f"harness: {unwritable(Path(path), error)}")
        return EXIT_ERROR
    return _crash(error)


def _crash(error: Exception) -> int:
    """Write a crash report, print one line about it, and return the exit code."""
    try:
        from harness.workspace.crash_report import report_crash  # noqa: PLC0415 - `harness --help` does not need it

        line = report_crash(error)
    except Exception:  # noqa: BLE001 - no memory is left, for example
        line = f"internal error: {type(error).__name__}"
    _print_error(f"harness: {line}")
    return EXIT_INTERNAL_ERROR


def _print_error(line: str) -> None:
    """Print a line on stderr; with `--debug`, print the traceback of the present exception first."""
    with suppress(BrokenPipeError):
        if "--debug" in sys.argv:
            traceback.print_exc()
        click.echo(line, err=True)


def _print_usage_error(error: click.ClickException) -> None:
    """Print click's message in the form of every other error; `harness` without a command prints its help."""
    message = error.format_message()
    if "\n" in message:
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "harness"
    subject = "" if command == "harness" else f"{command.removeprefix('harness ')}: "
    is_group = context is None or isinstance(context.command, click.Group)
    listed = "the commands" if is_group else "its arguments"
    _print_error(f"harness: {subject}{message}\n  {command} --help    # lists {listed}")


def _output_is_closed() -> bool:
    """Return whether the reader of stdout has ended. A BrokenPipeError from any other pipe is a defect."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _discard_output() -> None:
    """Prevent Python from flushing the closed stdout again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
