"""Export of problems for SOL-ExecBench: a directory with definition.json and workload.jsonl for each problem."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import FormatError
from harness.formats.problems import problem_files
from harness.formats.schema import shown
from harness.model.problem import Problem


def export_problem(problem: Problem, into: Path, *, replace: bool = False) -> Path:
    """Copy the files of a problem to `into/<suite>/<name>`, without its solutions and notes.

    The schema is that of SOL-ExecBench, whose tools keep and ignore the keys `x_distribution`, `x_updates` and
    `x_provenance`. All other files that affect judging are copied too, so that an import gives the same digest.

    Args:
        problem: the problem.
        into: directory of the exported suites.
        replace: overwrite an existing directory.

    Returns:
        Directory of the exported problem.

    Raises:
        FormatError: the directory exists and `replace` is false.
    """
    target = into / problem.key
    if target.exists():
        if not replace:
            raise FormatError(
                f"`{problem.key}` is there already", where=shown(target), remedy="overwrite it with --replace"
            )
        shutil.rmtree(target)
    for file in problem_files(problem.directory):
        copy = target / file.relative_to(problem.directory)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    return target
