"""`harness completion`: the script with which a shell completes commands, options and problems."""

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
    """  # noqa: D301 - \b is click's marker for a paragraph that keeps its lines
    from click.shell_completion import get_completion_class

    from harness.cli import cli

    completion_class = get_completion_class(shell)
    assert completion_class is not None  # noqa: S101 - click supports the three shells
    # `source()` would start the shell to read its version, and the script is the same without it.
    completion_of_shell = completion_class(cli, {}, "harness", "_HARNESS_COMPLETE")
    click.echo(completion_of_shell.source_template % completion_of_shell.source_vars())
