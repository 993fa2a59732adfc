"""`harness problems import`: confirmation, import and summary."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.cli.devices import choose_devices
from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.errors import ConfigurationError
from harness.formats.problem_exchange import ImportResult, import_problems, problem_named
from harness.formats.problems import list_problems, load_problem
from harness.formats.requirements import count_causes, target_memory_bytes, unmet_requirements
from harness.formats.solution_json import read_solution_json, solution_from_json
from harness.formats.solutions import check_solution, load_solution
from harness.model.paths import SOLUTIONS, is_target
from harness.model.printable import count_of, first_names
from harness.sol.hardware import table
from harness.workspace.configuration import data_root_of, load_config
from harness.workspace.directories import Workspace

_MAX_LISTED = 40
"""A larger number of problems is counted by suite instead of listed."""
_MAX_WARNINGS = 20


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--suite", help="Suite to put problems in (default: the name of their directory).")
@click.option("--problem", "key", help="For a solution.json: its problem (default: the problem with its name).")
@click.option("--target", help="The target that must be able to judge the problems; for a solution.json: its target.")
@click.option("--replace", is_flag=True, help="Overwrite existing problems and solutions.")
@click.option("--trust", is_flag=True, help="Trust the code of the problems without confirmation.")
@json_option
def import_(
    path: Path, *, suite: str | None, key: str | None, target: str | None, replace: bool, trust: bool, as_json: bool
) -> int:
    """Import SOL-ExecBench problems, a FlashInfer-Bench trace set, or a solution.json.

    The reference of a problem and its input function run in the judge with your rights and without a sandbox: read
    them first. They do not run during the import. A solution.json needs no trust, because solutions run in a sandbox.
    A summary counts the problems that are usable on the target, and the reasons why others are not.
    """
    workspace = Workspace.find()
    if path.is_file():
        _import_solution(workspace, path, key=key, target=target, replace=replace, as_json=as_json)
        return 0
    if not trust:
        ask_for_trust(path)
    return _import_all(workspace, path, suite=suite, target=target, replace=replace, as_json=as_json)


def _import_all(
    workspace: Workspace, path: Path, *, suite: str | None, target: str | None, replace: bool, as_json: bool
) -> int:
    """Import all problems below a directory, print a summary, and return the exit code."""
    data_root = data_root_of(workspace)
    results = import_problems(path, workspace.problems, suite=suite, data_root=data_root, replace=replace)
    target = target or choose_devices(load_config(workspace)).target
    rows = _import_rows(results, workspace, target, data_root)
    if as_json:
        echo_document(rows)
    else:
        _print_imported(rows, target)
    return 0 if all(row["usable"] for row in rows) else 1


def _import_solution(
    workspace: Workspace, path: Path, *, key: str | None, target: str | None, replace: bool, as_json: bool
) -> None:
    document = read_solution_json(path)
    key = key or problem_named(document.definition, workspace.problems, list_problems(workspace.problems))
    problem = load_problem(workspace.problems / key, key=key, data_root=data_root_of(workspace))
    target = (target or document.spec.target_hardware[0]).lower()
    if not is_target(target):
        message = f"`{target}` is not a target; expected letters, digits, - and _ (set it with --target)"
        raise click.UsageError(message)
    directory = workspace.problems / key / SOLUTIONS / target
    solution = load_solution(solution_from_json(path, directory, replace=replace))
    warnings = [str(error) for error in check_solution(solution, problem.definition)]
    if document.spec.dependencies:
        warnings.append(f"its dependencies are not installed: {', '.join(document.spec.dependencies)}")
    row = {"problem": key, "target": target, "directory": str(directory), "warnings": warnings}
    if as_json:
        echo_document([row])
        return
    echo(f"{document.name}: written to {directory}")
    for warning in warnings:
        echo(f"warning: {warning}")


def ask_for_trust(path: Path) -> None:
    """Ask for confirmation that the code of the problems below a path is trusted.

    Raises:
        ConfigurationError: the code is not trusted, or there is no terminal.
    """
    risk = "the judge runs references and input functions of problems with your rights, without a sandbox"
    remedy = "read the references, then import with --trust"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(f"not imported: {risk}", where=str(path), remedy=remedy)
    if not click.confirm(f"{risk[0].upper()}{risk[1:]}. Import the problems of {path}?", err=True):
        raise ConfigurationError("not imported: their code is not trusted", where=str(path), remedy=remedy)


def _import_rows(
    results: Sequence[ImportResult], workspace: Workspace, target: str, data_root: Path | None
) -> list[dict[str, Any]]:
    """Return a row for each problem: `imported` if it was written, `usable` if the target can judge it."""
    figures = table().get(target)
    memory = target_memory_bytes(target, figures.memory_gb if figures else None)
    rows = []
    for item in results:
        reasons = [str(error).replace("\n  ", "; ") for error in item.errors]
        causes = [error.message for error in item.errors]
        if item.usable:
            problem = load_problem(workspace.problems / item.key, key=item.key, data_root=data_root)
            reasons = causes = unmet_requirements(problem, target, memory_bytes=memory)
        rows.append(
            {
                "problem": item.key,
                "imported": item.usable,
                "usable": item.usable and not reasons,
                "workloads": item.workloads,
                "why_not": reasons[0] if reasons else None,
                "cause": causes[0] if causes else None,
                "errors": [str(error) for error in item.errors],
                "warnings": list(item.warnings),
            }
        )
    return rows


def _print_imported(rows: Sequence[Mapping[str, Any]], target: str) -> None:
    """Print the summary of an import: up to 40 problems one by one, more problems as counts by suite and cause."""
    unusable = [row for row in rows if not row["usable"]]
    if len(rows) <= _MAX_LISTED:
        columns = {
            "problem": lambda row: row["problem"],
            "usable": lambda row: "yes" if row["usable"] else "no",
            "workloads": lambda row: str(row["workloads"]),
            "why not": lambda row: row["why_not"] or "",
        }
        emit(rows, as_json=False, columns=columns)
    else:
        groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in rows:
            groups[row["problem"].partition("/")[0]].append(row)
        counts = {"workloads": "workloads", "imported": "imported", f"usable on {target}": "usable"}
        suites = [
            {"suite": suite, "problems": len(group)}
            | {heading: sum(row[key] for row in group) for heading, key in counts.items()}
            for suite, group in sorted(groups.items())
        ]
        emit(suites, as_json=False)
        if unusable:
            echo("\nwhy not")
            for cause, number in count_causes(row["cause"] for row in unusable):
                examples = [row["problem"] for row in unusable if count_causes([row["cause"]])[0][0] == cause]
                echo(f"  {number:4}  {cause} ({first_names(examples, 3)})")
    warnings = [warning for row in rows for warning in row["warnings"]]
    for warning in warnings[:_MAX_WARNINGS]:
        echo(f"warning: {warning}")
    if len(warnings) > _MAX_WARNINGS:
        omitted = count_of(len(warnings) - _MAX_WARNINGS, "more warning")
        echo(f"and {omitted}: `harness problems check` prints all warnings")
    imported = sum(row["imported"] for row in rows)
    echo(f"{imported} of {count_of(len(rows), 'problem')} imported, {len(rows) - len(unusable)} usable on {target}")
