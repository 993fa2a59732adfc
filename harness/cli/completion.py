"""`harness completion`: what a shell needs to complete commands, options and problems."""

from __future__ import annotations

import click

_SHELLS = ("bash", "fish", "zsh")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a SHELL: bash, zsh or fish.

    \b
    eval "$(harness completion bash)"     # in ~/.bashrc
    eval "$(harness completion zsh)"      # in ~/.zshrc
    harness completion fish | source      # in ~/.config/fish/config.fish
    """  # noqa: D301 - \b is click's mark for text that keeps its lines
    from click.shell_completion import get_completion_class

    from harness.cli import cli

    made = get_completion_class(shell)
    assert made is not None  # noqa: S101 - click knows its own three
    # Not `source()`, which starts the shell to ask its version: the script is the same.
    complete = made(cli, {}, "harness", "_HARNESS_COMPLETE")
    click.echo(complete.source_template % complete.source_vars())
