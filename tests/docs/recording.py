"""Record docs/images/run.svg, the terminal picture of README.md, from a real run: `python -m tests.docs.recording`.

Two tuners improve a starter problem on this machine's CPU; the picture shows what the commands printed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.docs.commands import FILE
from tests.site import clean_environment

PICTURE = FILE.parent / "images/run.svg"
_COLUMNS = 118
_PREPARATION = ("init kernels",)
_SHOWN = (
    "start --workers 2 --agent tuner --device cpu --problem starter/rmsnorm_h4096 --max-evaluations 6",
    "status",
    "audit",
)
_LONGEST_OUTPUT = 18  # lines of one command in the picture
# The picture of `rich` loads its font from another host; any monospaced font of the reader does.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def output_of(directory: Path, command: str) -> str:
    """Run a harness command in a directory and return what it prints.

    Args:
        directory: the working directory.
        command: the arguments after `harness`.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    search_path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = clean_environment({"PATH": search_path, "COLUMNS": str(_COLUMNS)})
    words = ["harness", *shlex.split(command)]
    completed = subprocess.run(
        words, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    return completed.stdout


def main() -> None:
    """Run the commands in a new workspace and write the picture."""
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"), color_system=None)  # noqa: SIM115, PTH123
    with tempfile.TemporaryDirectory() as scratch:
        for command in _PREPARATION:
            output_of(Path(scratch), command)
        for command in _SHOWN:
            lines = output_of(Path(scratch, "kernels"), command).rstrip().splitlines()
            omitted = len(lines) - _LONGEST_OUTPUT
            shown = lines if omitted <= 0 else [*lines[:_LONGEST_OUTPUT], f"... {omitted} more lines"]
            console.print(Text(f"$ harness {command}", style="bold"))
            for line in [*shown, ""]:
                console.print(Text(line), soft_wrap=True)
    PICTURE.write_text(_FONTS.sub("", console.export_svg(title="harness on two CPU cores")))


if __name__ == "__main__":
    main()
