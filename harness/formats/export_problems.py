"""Problems written out as SOL-ExecBench reads them: a directory with definition.json and workload.jsonl each."""

from __future__ import annotations

import shutil
from pathlib import Path

from harness.errors import FormatError
from harness.formats.problems import problem_files
from harness.formats.schema import shown
from harness.model.problem import Problem


def export_problem(problem: Problem, into: Path, *, replace: bool = False) -> Path:
    """Copy the files of a problem to `into/<suite>/<name>`; solutions and notes stay behind.

    The schema is SOL-ExecBench's own. Its tools keep the keys `x_distribution`, `x_updates` and `x_provenance`, and
    ignore them. Every other file that takes part in judging comes along, so that an import gives the same digest.

    Args:
        problem: the problem.
        into: directory of the exported suites.
        replace: overwrite a problem that is there.

    Returns:
        Directory of the exported problem.

    Raises:
        FormatError: it is there already.
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
