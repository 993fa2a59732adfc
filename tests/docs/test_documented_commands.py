"""The commands of README.md and of the how-to pages: their options exist, and those that can run here succeed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from harness.cli import cli
from tests.docs.commands import FILE
from tests.site import STUB, clean_environment

ROOT = FILE.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```[a-z]*\n(.*?)^```|((?:^ {4}\S.*\n)+)", re.DOTALL | re.MULTILINE)
PROBLEM = "starter/rmsnorm_h4096"
# Commands of the executed pages that cannot run in this test: a word of the command, and the reason.
NOT_RUN = {
    "claude": "needs the key of a model's provider",
    "--deep": "minutes long; tests/corpus runs it",
    "problems suites --shipped": "prints the shipped corpus; tests/cli runs it",
    "--profile": "copies the whole corpus; tests/cli runs it",
    "problems all": "copies the whole corpus; tests/cli runs it",
    "moe": "needs a suite that is not in the workspace",
    "attention": "needs a suite that is not in the workspace",
    "rope/": "needs a suite that is not in the workspace",
    "init --problems": "makes a workspace in the current one",
}
EXECUTED = ("README.md", "docs/how-to/audit.md", "docs/how-to/review-and-merge.md", "docs/how-to/own-problems.md")


@dataclass(frozen=True)
class DocumentedCommand:
    """A harness command in a code block of a page, without its comment."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def documented_commands(page: Path) -> Iterator[DocumentedCommand]:
    """Yield the harness commands in the code blocks of a page, in order, without the brackets of optional parts."""
    for fenced, indented in _BLOCK.findall(page.read_text()):
        for line in (fenced or indented).splitlines():
            command = line.strip().removeprefix("$ ")
            if not command.startswith("harness ") or "…" in command:
                continue
            words = shlex.split(re.sub(r"[][]", "", command), comments=True)  # brackets: an optional part
            ends = [index for index, word in enumerate(words) if word in {"&&", "|", ">", "||", "&"}]
            yield DocumentedCommand(page.relative_to(ROOT).as_posix(), tuple(words[: min(ends, default=len(words))]))


COMMANDS = [command for page in PAGES for command in documented_commands(page)]


def parse(words: tuple[str, ...]) -> None:
    """Parse a command line without running it.

    Raises:
        click.UsageError: the command or one of its options does not exist, or an argument is left over.
    """
    command: click.Command = cli
    context = click.Context(cli)
    remaining = list(words[1:])
    while isinstance(command, click.Group):
        name, subcommand, remaining = command.resolve_command(context, remaining)
        assert subcommand is not None
        command, context = subcommand, click.Context(subcommand, info_name=name, parent=context)
    # Values are not converted: an example names files that do not exist here.
    _, left_over, _ = command.make_parser(context).parse_args(remaining)
    assert not left_over, f"unexpected argument {left_over[0]}"


def test_pages_contain_many_commands() -> None:
    assert len(COMMANDS) > 60


@pytest.mark.parametrize("command", sorted(set(COMMANDS), key=str), ids=str)
def test_a_documented_command_has_only_known_options(command: DocumentedCommand) -> None:
    parse(command.words)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(("harness", "start", "--no-such-option"))


@pytest.mark.slow
def test_commands_of_readme_and_how_to_pages_run(tmp_path: Path) -> None:
    """Each command exits with 0, in one workspace and in the order of the pages, with the stub judge."""
    (tmp_path / "locks").mkdir()
    environment = clean_environment(
        {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "HARNESS_JUDGE_COMMAND": shlex.join([sys.executable, str(STUB)]),
            "HARNESS_LOCK_DIR": str(tmp_path / "locks"),
        }
    )
    workspace = tmp_path / "kernels"
    ran = 0
    for command in COMMANDS:
        line = shlex.join(command.words)
        if command.page not in EXECUTED or any(words in line for words in NOT_RUN):
            continue
        words = [PROBLEM if word == "suite/name" else word for word in command.words]
        if "agents/main/w03/suite/name" in words:
            words[-1] = f"agents/main/w01/{PROBLEM}"
        if words[1] == "start":
            words += ["--device", "cpu", "--max-evaluations", "8"]
        done = subprocess.run(
            words, cwd=workspace if workspace.exists() else tmp_path, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        ran += 1
    assert ran >= 15
