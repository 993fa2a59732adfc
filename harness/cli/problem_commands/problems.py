"""`harness problems`: check, import, export and sol. Other modules have `list`, `suites`, `show` and `extract`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.cli.completion_values import complete_glob, complete_problem
from harness.cli.display.output import echo, echo_document, echo_lines, emit, json_option
from harness.cli.options import COUNT
from harness.cli.problem_commands.extract import extract
from harness.cli.problem_commands.importing import import_
from harness.cli.problem_commands.problem_lists import inspected, list_, one_problem, show, suites
from harness.formats.problem_exchange import export_problem
from harness.formats.problems import Findings, inspect_problem, list_problems
from harness.formats.solutions import check_all_solutions
from harness.model.printable import count_of
from harness.model.problem import Problem
from harness.sol.targets import hardware
from harness.workspace.directories import Workspace

_BOUND_KEYS = (
    "sol_us", "floor_us", "flops", "bytes", "limited_by", "products", "elementwise", "times_us", "rates", "reason"
)  # fmt: skip


@click.group()
def problems() -> None:
    """List, show, check and import problems, and compute their bounds."""


for command in (list_, suites, show, import_, extract):
    problems.add_command(command)


@problems.command()
@click.argument("globs", nargs=-1, metavar="[GLOB|DIRECTORY]...", shell_complete=complete_glob)
@click.option("--deep", is_flag=True, help="Run each reference and mutants of it on the CPU, at small sizes.")
@click.option("--jobs", type=COUNT, default=1, show_default=True, help="Processes of --deep.")
@click.option("--modules/--no-modules", default=True, help="With --deep: build the models of the problems' origin.")
@json_option
def check(globs: tuple[str, ...], *, deep: bool, jobs: int, modules: bool, as_json: bool) -> int:
    """Check problems and their solutions. The exit code is 1 if a problem has an error, or if there is no problem.

    --deep runs the code of the problems without a sandbox. It compares extracted problems with the module of their
    origin, and reports which wrong implementations (mutants) the judge's checks refuse. docs/how-to/deep-check.md
    explains each result.
    """
    if deep:
        return _check_deep(inspected(globs), jobs=jobs, modules=modules, as_json=as_json)
    rows = []
    for findings in inspected(globs):
        errors = [*findings.errors, *check_all_solutions(findings)]
        rows.append({
            "problem": findings.key,
            "ok": not errors,
            "workloads": len(findings.problem.workloads) if findings.problem else 0,
            "errors": [{"where": error.where, "what": error.message, "remedy": error.remedy} for error in errors],
            "warnings": list(findings.warnings),
        })  # fmt: skip
    if as_json:
        echo_document(rows)
    else:
        _print_checked(rows)
    return 0 if rows and all(row["ok"] for row in rows) else 1


@problems.command("export")
@click.argument("globs", nargs=-1, metavar="[GLOB|DIRECTORY]...", shell_complete=complete_glob)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Directory of the exported suites.",
)
@click.option("--replace", is_flag=True, help="Overwrite existing problems.")
def export_(globs: tuple[str, ...], *, output: Path, replace: bool) -> int:
    """Write problems in the format of SOL-ExecBench, which `harness problems import` reads without a change.

    Solutions are not exported: `harness export` writes a champion as solution.json.
    """
    findings = inspected(globs)
    for item in findings:
        if item.problem is not None:
            export_problem(item.problem, output, replace=replace)
        else:
            echo(f"not exported: {item.errors[0]}", err=True)
    exported = sum(item.problem is not None for item in findings)
    echo(f"{exported} of {count_of(len(findings), 'problem')} exported to {output}")
    return 0 if findings and exported == len(findings) else 1


@problems.command()
@click.argument("problem", shell_complete=complete_problem)
@click.option("--target", default="cpu", show_default=True, help="cpu, h200, b200 ...")
@json_option
def sol(problem: str, *, target: str, as_json: bool) -> None:
    """Compute the bounds of each workload: speed of light for the target, and the provable floor.

    The row of a workload without a bound has the reason.
    """
    from harness.sol.roofline import NoBoundError, bounds

    loaded = one_problem(problem)
    machine = hardware(target, cache_dir=Workspace.find().cache)
    rows: list[dict[str, Any]] = []
    for workload in loaded.workloads:
        row: dict[str, Any] = {"workload": workload.uuid, **dict.fromkeys(_BOUND_KEYS)}
        try:
            bound = bounds(loaded, workload, machine)
        except NoBoundError as error:
            row["reason"] = str(error)
        else:
            row |= {name: getattr(bound, name) for name in _BOUND_KEYS[:5]} | {"times_us": dict(bound.times_us)}
            row["products"] = {" x ".join(pair): count for pair, count in bound.products.items()}
            row["elementwise"] = dict(bound.elementwise)
            row["rates"] = "measured" if bound.is_measured else "listed"
        rows.append(row)
    columns: dict[str, Any] = {
        "workload": lambda row: row["workload"],
        "sol us": lambda row: _number(row["sol_us"]),
        "floor us": lambda row: _number(row["floor_us"]),
        "flops": lambda row: _number(row["flops"]),
        "bytes": lambda row: _number(row["bytes"]),
        "rates": lambda row: row["rates"] or "-",
        "limited by": lambda row: row["limited_by"] or row["reason"],
    }
    emit(rows, as_json=as_json, columns=columns)


def _print_checked(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        echo(f"{'ok ' if row['ok'] else 'BAD'}  {row['problem']}  {count_of(row['workloads'], 'workload')}")
        for error in row["errors"]:
            echo(f"     {error['where']}: {error['what']}" + (f"; {error['remedy']}" if error["remedy"] else ""))
        for warning in row["warnings"]:
            echo(f"     warning: {warning}")
    bad = sum(not row["ok"] for row in rows)
    echo(f"{count_of(len(rows), 'problem')}, {bad} with errors" if rows else "there are no problems")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1e4 else f"{value:.3e}"


def _check_deep(findings: Sequence[Findings], *, jobs: int, modules: bool, as_json: bool) -> int:
    """Check problems with mutants and honest implementations, print a line for each, and return the exit code."""
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
        echo_document([report.as_data() for report in reports])
    else:
        for item in unreadable:
            echo(f"BAD  {item.key}  cannot be read; see `harness problems check {item.key}`")
        echo_lines(summary(reports, wall_s))
    return 0 if reports and not unreadable and not any(report.failures for report in reports) else 1


def _neighbours(roots: Mapping[str, Path]) -> Iterator[Problem]:
    """Yield the other problems of the same directories, none of which may compute the same graph."""
    for root in dict.fromkeys(roots.values()):
        for key in list_problems(root):
            problem = inspect_problem(root / key, key=key).problem if key not in roots else None
            if problem is not None:
                yield problem
