"""The commands of the tutorial, in order, with the stub judge and with the real judge."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.commands import FILE
from tests.site import STUB, clean_environment

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PROGRAMS = ("harness ", "git ", "cd ")


def steps() -> Iterator[tuple[str, list[str]]]:
    """Yield each command of the tutorial with the lines of its output that the tutorial shows."""
    text = (FILE.parent / "tutorial.md").read_text()
    for block in _BLOCK.findall(text):
        command: str | None = None
        shown: list[str] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command, shown
                command, shown = line[2:], []
            else:
                shown.append(line)
        assert command is not None
        yield command, shown


def pattern(shown: str) -> str:
    """Return a shown line as a pattern: `…` matches any text, and spaces match any spaces."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("…")]
    return ".*".join(parts)


def run_commands(directory: Path, extra: dict[str, str]) -> int:
    """Run every command as in one shell, and return the number of commands."""
    current_directory, command_count = directory, 0
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment({"PATH": path, "HOME": str(directory), "COLUMNS": "160", **extra})
    for command, shown in steps():
        assert command.startswith(_PROGRAMS), command
        words = shlex.split(command)
        command_count += 1
        if words[0] == "cd":
            current_directory = current_directory / words[1]
            continue
        completed = subprocess.run(
            words, cwd=current_directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=1200,
        )  # fmt: skip
        assert completed.returncode == 0, f"{command}\n{completed.stdout}"
        for line in shown:
            assert re.search(pattern(line), completed.stdout), f"{command}\nshould show: {line}\n{completed.stdout}"
    return command_count


@pytest.mark.slow
def test_the_tutorial_works_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "locks").mkdir()
    stub = shlex.join([sys.executable, str(STUB)])
    command_count = run_commands(tmp_path, {"HARNESS_JUDGE_COMMAND": stub, "HARNESS_LOCK_DIR": str(tmp_path / "locks")})
    assert command_count >= 18
    assert (tmp_path / "kernels/report.html").stat().st_size > 20_000


@pytest.mark.slow
def test_the_tutorial_works_with_the_real_judge(tmp_path: Path) -> None:
    run_commands(tmp_path, {})
