"""`harness problems check --deep`: mutants, honest implementations and the original modules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.cli.display.output import echo, echo_json

if TYPE_CHECKING:
    from pathlib import Path

    from harness.formats.problems import Findings
    from harness.model.problem import Problem


def check_deep(findings: Sequence[Findings], *, jobs: int, modules: bool, as_json: bool) -> int:
    """Check problems with mutants and honest implementations, print a line for each, and return the exit code.

    Args:
        findings: the problems as they were read.
        jobs: number of processes.
        modules: compare extracted problems with the modules of their origin.
        as_json: print one JSON document; progress is then on stderr.
    """
    from harness.corpus.deep_check.check_problem import check_all
    from harness.corpus.deep_check.duplicates import duplicates
    from harness.corpus.deep_check.exceptions import read_exceptions
    from harness.corpus.deep_check.report import line_of, report_on, summary

    unreadable = [item for item in findings if item.problem is None]
    problems = [item.problem for item in findings if item.problem is not None]
    roots = {problem.key: problem.directory.parent.parent for problem in problems}
    exceptions = {root: read_exceptions(root) for root in dict.fromkeys(roots.values())}
    duplicates_of = duplicates([*problems, *_neighbours(roots)])
    began = time.monotonic()
    reports = []
    for number, result in enumerate(check_all(problems, jobs, modules=modules), start=1):
        report = report_on(result, exceptions[roots[result.key]], duplicates_of.get(result.key, ()))
        reports.append(report)
        echo(f"[{number}/{len(problems)}] {line_of(report)}", err=as_json)
        for failure in report.failures:
            echo(f"     {failure}", err=as_json)
        for stale in report.stale:
            echo(f"     warning: the exception `{stale}` has no effect", err=as_json)
    wall_s = time.monotonic() - began
    if as_json:
        echo_json(json.dumps([report.as_data() for report in reports], indent=2))
    else:
        for item in unreadable:
            echo(f"BAD  {item.key}  cannot be read; see `harness problems check {item.key}`")
        for line in summary(reports, wall_s):
            echo(line)
    return 0 if reports and not unreadable and not any(report.failures for report in reports) else 1


def _neighbours(roots: Mapping[str, Path]) -> Iterator[Problem]:
    """Yield the other problems of the same directories, none of which may compute the same graph."""
    from harness.formats.problems import inspect_problem, list_problems

    for root in dict.fromkeys(roots.values()):
        for key in list_problems(root):
            problem = inspect_problem(root / key, key=key).problem if key not in roots else None
            if problem is not None:
                yield problem
