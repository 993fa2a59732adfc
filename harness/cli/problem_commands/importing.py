"""Confirmation before an import of problems, and the summary of the import."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.cli.display.output import echo, emit
from harness.errors import ConfigurationError
from harness.formats.import_problems import ImportResult
from harness.formats.problems import load_problem
from harness.formats.requirements import count_causes, target_memory_bytes, unmet_requirements
from harness.sol.hardware import table
from harness.workspace.directories import Workspace

_MAX_LISTED = 40
"""A larger number of problems is counted by suite instead of listed."""
_MAX_WARNINGS = 20


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


def import_rows(
    results: Sequence[ImportResult], workspace: Workspace, target: str, data_root: Path | None
) -> list[dict[str, Any]]:
    """Return a row for each problem: `imported` if it was written, `usable` if the target can judge it.

    Args:
        results: the results of the import.
        workspace: has the imported problems.
        target: such as `cpu` or `h200`.
        data_root: directory of the tensors that workloads name; None without one.
    """
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


def print_imported(rows: Sequence[Mapping[str, Any]], target: str) -> None:
    """Print the summary of an import: up to 40 problems one by one, more problems as counts by suite and cause.

    Args:
        rows: the result of `import_rows`.
        target: such as `cpu` or `h200`.
    """
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
        _print_suites(rows, target)
        if unusable:
            echo("\nwhy not")
            for cause, number in count_causes(row["cause"] for row in unusable):
                examples = [row["problem"] for row in unusable if count_causes([row["cause"]])[0][0] == cause]
                echo(f"  {number:4}  {cause} ({', '.join(examples[:3])}{' …' if number > 3 else ''})")
    warnings = [warning for row in rows for warning in row["warnings"]]
    for warning in warnings[:_MAX_WARNINGS]:
        echo(f"warning: {warning}")
    if len(warnings) > _MAX_WARNINGS:
        echo(f"and {len(warnings) - _MAX_WARNINGS} more warnings: `harness problems check` prints them all")
    imported = sum(row["imported"] for row in rows)
    echo(f"{imported} of {len(rows)} problems imported, {len(rows) - len(unusable)} usable on {target}")


def _print_suites(rows: Sequence[Mapping[str, Any]], target: str) -> None:
    suites = Counter(row["problem"].partition("/")[0] for row in rows)

    def counted(suite: str, key: str) -> int:
        return sum(bool(row[key]) for row in rows if row["problem"].startswith(f"{suite}/"))

    shown = [
        {
            "suite": suite,
            "problems": str(number),
            "workloads": str(sum(row["workloads"] for row in rows if row["problem"].startswith(f"{suite}/"))),
            "imported": str(counted(suite, "imported")),
            f"usable on {target}": str(counted(suite, "usable")),
        }
        for suite, number in sorted(suites.items())
    ]
    emit(shown, as_json=False)
