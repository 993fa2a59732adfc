"""`harness problems`: check, import, export and sol. Other modules have `list`, `suites`, `show` and `extract`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.cli.completion_values import complete_glob, complete_problem
from harness.cli.devices import choose_devices
from harness.cli.display.output import echo, echo_json, emit, json_option
from harness.cli.options import COUNT
from harness.cli.problem_commands.extract import extract
from harness.cli.problem_commands.importing import ask_for_trust, import_rows, print_imported
from harness.cli.problem_commands.problem_lists import list_, show, suites
from harness.cli.problem_commands.reading_problems import count_of, inspected, one_problem
from harness.formats.export_problems import export_problem
from harness.formats.import_problems import import_problems, problem_named
from harness.formats.import_solutions import read_solution_json, solution_from_json
from harness.formats.problems import list_problems, load_problem
from harness.formats.solutions import check_all_solutions, check_solution, load_solution
from harness.model.paths import SOLUTIONS, is_target
from harness.sol.targets import hardware
from harness.workspace.configuration import data_root_of, load_config
from harness.workspace.directories import Workspace


@click.group()
def problems() -> None:
    """List, show, check and import problems, and compute their bounds."""


for command in (list_, suites, show, extract):
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
        from harness.cli.problem_commands.deep_check import check_deep

        return check_deep(inspected(globs), jobs=jobs, modules=modules, as_json=as_json)
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
        echo_json(json.dumps(rows, indent=2))
    else:
        _print_checked(rows)
    return 0 if rows and all(row["ok"] for row in rows) else 1


@problems.command("import")
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
        names = (
            "sol_us",
            "floor_us",
            "flops",
            "bytes",
            "limited_by",
            "products",
            "elementwise",
            "times_us",
            "rates",
            "reason",
        )
        row: dict[str, Any] = {"workload": workload.uuid, **dict.fromkeys(names)}
        try:
            bound = bounds(loaded, workload, machine)
        except NoBoundError as error:
            row["reason"] = str(error)
        else:
            row |= {name: getattr(bound, name) for name in names[:5]} | {"times_us": dict(bound.times_us)}
            row["products"] = {" x ".join(pair): count for pair, count in bound.products.items()}
            row["elementwise"] = dict(bound.elementwise)
            row["rates"] = "measured" if bound.is_measured else "listed"
        rows.append(row)
    emit(
        rows,
        as_json=as_json,
        columns={
            "workload": lambda row: row["workload"],
            "sol us": lambda row: _number(row["sol_us"]),
            "floor us": lambda row: _number(row["floor_us"]),
            "flops": lambda row: _number(row["flops"]),
            "bytes": lambda row: _number(row["bytes"]),
            "rates": lambda row: row["rates"] or "-",
            "limited by": lambda row: row["limited_by"] or row["reason"],
        },
    )


def _import_all(
    workspace: Workspace, path: Path, *, suite: str | None, target: str | None, replace: bool, as_json: bool
) -> int:
    """Import all problems below a directory, print a summary, and return the exit code."""
    data_root = data_root_of(workspace)
    results = import_problems(path, workspace.problems, suite=suite, data_root=data_root, replace=replace)
    target = target or choose_devices(load_config(workspace)).target
    rows = import_rows(results, workspace, target, data_root)
    if as_json:
        echo_json(json.dumps(rows, indent=2))
    else:
        print_imported(rows, target)
    return 0 if all(row["usable"] for row in rows) else 1


def _import_solution(
    workspace: Workspace, path: Path, *, key: str | None, target: str | None, replace: bool, as_json: bool
) -> None:
    document = read_solution_json(path)
    key = key or problem_named(document.definition, workspace.problems, list_problems(workspace.problems))
    problem = load_problem(workspace.problems / key, key=key, data_root=data_root_of(workspace))
    target = (target or document.spec.target_hardware[0]).lower()
    directory = workspace.problems / key / SOLUTIONS / _safe_target(target)
    solution = load_solution(solution_from_json(path, directory, replace=replace))
    warnings = [str(error) for error in check_solution(solution, problem.definition)]
    if document.spec.dependencies:
        warnings.append(f"its dependencies are not installed: {', '.join(document.spec.dependencies)}")
    row = {"problem": key, "target": target, "directory": str(directory), "warnings": warnings}
    if as_json:
        echo_json(json.dumps([row], indent=2))
        return
    echo(f"{document.name}: written to {directory}")
    for warning in warnings:
        echo(f"warning: {warning}")


def _safe_target(target: str) -> str:
    if is_target(target):
        return target
    raise click.UsageError(f"`{target}` is not a target; expected letters, digits, - and _ (set it with --target)")


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
