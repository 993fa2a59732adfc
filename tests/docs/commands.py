"""Write docs/commands.md from the help of the program: `python -m tests.docs.commands`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from harness.cli import cli

FILE = Path(__file__).parent.parent.parent / "docs" / "commands.md"
_HEAD = r"""# Commands

Generated from the program by `make docs`; do not edit. Every command that prints a table takes `--json`.

| exit code | meaning |
| --- | --- |
| 0 | done |
| 1 | the command worked and its answer is no: not passed, ledger broken, nothing found |
| 2 | an error with a fix: usage, configuration, repository, ledger; `harness start`: a failure prevented all work |
| 70 | internal error: a defect of the harness; stderr names the crash report |
| 130 | interrupted by Ctrl-C |
| 141 | the reader of the output ended, as in `harness log \| head` (128 + SIGPIPE) |

`harness --debug COMMAND` also prints the traceback of an error. Crash reports are written to `.harness/crashes/`;
outside a workspace, to the system's directory for temporary files. A report holds the time, versions, command line and
traceback. Values of environment variables whose names end in `_KEY`, `_TOKEN`, `SECRET`, `PASSWORD` or `CREDENTIALS`
are replaced by the name of the variable.
"""


def reference() -> str:
    """Return the text of docs/commands.md."""
    context = cli.make_context("harness", [], resilient_parsing=True)  # has the program's context settings
    return "\n".join([_HEAD, *_pages(context, cli)]).rstrip() + "\n"


def _pages(context: click.Context, group: click.Group) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, terminal_width=118, max_content_width=118)
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"## {inner.command_path}\n\n```\n{command.get_help(inner).rstrip()}\n```\n"
        if isinstance(command, click.Group):
            yield from _pages(inner, command)


if __name__ == "__main__":
    FILE.write_text(reference())
