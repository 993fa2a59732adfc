"""docs/commands.md, from the program itself: `python -m tests.docs.commands` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from harness.cli import cli

FILE = Path(__file__).parent.parent.parent / "docs" / "commands.md"
_HEAD = """# Commands

Generated from the program by `make docs`; do not edit. Every command that prints a table takes `--json`. Exit codes:
0 done; 1 the answer is no (not passed, ledger broken, nothing found); 2 usage or configuration error; 130 interrupted.
`harness --debug COMMAND` prints a traceback when something goes wrong.
"""


def reference() -> str:
    """The whole page."""
    context = cli.make_context("harness", [], resilient_parsing=True)  # with the settings that people meet
    return "\n".join([_HEAD, *_pages(context, cli)]).rstrip() + "\n"


def _pages(context: click.Context, group: click.Group) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, terminal_width=118, max_content_width=118)
        if isinstance(command, click.Group):
            yield from _pages(inner, command)
        else:
            yield f"## {inner.command_path}\n\n```\n{command.get_help(inner).rstrip()}\n```\n"


if __name__ == "__main__":
    FILE.write_text(reference())
