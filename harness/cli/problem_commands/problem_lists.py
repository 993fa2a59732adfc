"""`harness problems list`, `suites` and `show`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from harness.cli.completion_values import complete_glob, complete_problem, complete_suite
from harness.cli.display.output import echo, echo_json, emit, json_option
from harness.cli.problem_commands.problem_text import as_data, as_text
from harness.cli.problem_commands.reading_problems import count_of, inspected, one_problem, solution_targets
from harness.formats.problem_tags import ProblemFilter, ProblemTags, tags_of
from harness.formats.problems import Findings, inspect_problem, list_problems
from harness.workspace.shipped_files import problems_root


@click.command("list")
@click.argument("globs", nargs=-1, metavar="[GLOB]...", shell_complete=complete_glob)
@click.option("--family", help="Problems of this family, their first tag: llm, moe, vision ...")
@click.option("--suite", shell_complete=complete_suite, help="Problems of this suite, the first part of the key.")
@click.option("--direction", type=click.Choice(["forward", "backward"]), help="Problems of this direction.")
@click.option("--dtype", help="Problems with an input, output or tag of this dtype: bfloat16, float8_e4m3fn, nvfp4 ...")
@click.option("--tag", "tags", multiple=True, help="Problems with this tag; may be given often, for several tags.")
@json_option
def list_(
    globs: tuple[str, ...],
    family: str | None,
    suite: str | None,
    direction: str | None,
    dtype: str | None,
    tags: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """List the workspace's problems that match a GLOB and meet all conditions."""
    conditions = ProblemFilter(family, direction, dtype, tags, suite)
    rows = [_row(findings, facts) for findings, facts in _with_tags(inspected(globs)) if conditions.admits(facts)]
    emit(
        rows,
        as_json=as_json,
        columns={
            "problem": lambda row: row["problem"],
            "operation": lambda row: row["op_type"] or "-",
            "direction": lambda row: row["direction"],
            "workloads": lambda row: str(row["workloads"]),
            "solutions": lambda row: ", ".join(row["solutions"]) or "-",
            "state": lambda row: count_of(row["errors"], "error") if row["errors"] else row["profile"] or "ok",
        },
        empty="no problem meets all conditions; `harness problems list` shows all"
        if globs or conditions != ProblemFilter()
        else "no problems; `harness init --problems SUITE` or `harness problems import PATH` adds some",
    )


@click.command()
@click.option(
    "--shipped", is_flag=True, help="List the suites shipped with the harness, for `harness init --problems`."
)
@json_option
def suites(*, shipped: bool, as_json: bool) -> None:
    """List the suites of the workspace with their numbers of problems, families and dtypes."""
    rows = _shipped_suites() if shipped else _suite_rows(_with_tags(inspected(())))
    emit(
        rows,
        as_json=as_json,
        columns={
            "suite": lambda row: row["suite"],
            "problems": lambda row: str(row["problems"]),
            "backward": lambda row: str(row["backward"]),
            "workloads": lambda row: str(row["workloads"]),
            "families": lambda row: _most_frequent(row["families"]),
            "dtypes": lambda row: _most_frequent(row["dtypes"]),
        },
        empty="no problems; `harness problems suites --shipped` shows what `harness init --problems SUITE` copies",
    )


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@json_option
def show(problem: str, *, as_json: bool) -> None:
    """Show a problem: its origin, axes, inputs and outputs, and the shapes and bytes of each workload."""
    loaded = one_problem(problem)
    if as_json:
        echo_json(json.dumps(as_data(loaded), indent=2))
    else:
        echo(as_text(loaded))


def _with_tags(findings: Iterable[Findings]) -> list[tuple[Findings, ProblemTags]]:
    """Return findings with their tags; a problem with errors has only the family of its key."""
    return [
        (item, tags_of(item.key, item.problem.definition))
        if item.problem
        else (item, ProblemTags(item.key.partition("/")[0], "-", "-", frozenset(), (), None, None))
        for item in findings
    ]


def _row(findings: Findings, facts: ProblemTags) -> dict[str, Any]:
    return {
        "problem": findings.key,
        "op_type": findings.problem.definition.op_type if findings.problem else None,
        "family": facts.family,
        "direction": facts.direction,
        "dtypes": sorted(facts.dtypes),
        "tags": list(facts.tags),
        "model": facts.model,
        "profile": facts.profile,
        "workloads": len(findings.problem.workloads) if findings.problem else 0,
        "errors": len(findings.errors),
        "solutions": solution_targets(findings.directory),
    }


def _suite_rows(findings: Sequence[tuple[Findings, ProblemTags]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for item, facts in findings:
        empty = {"suite": facts.suite, "problems": 0, "backward": 0, "workloads": 0, "families": {}, "dtypes": {}}
        row = rows.setdefault(facts.suite, empty)
        row["problems"] += 1
        row["backward"] += facts.direction == "backward"
        row["workloads"] += len(item.problem.workloads) if item.problem else 0
        for heading, names in (("families", (facts.family,)), ("dtypes", facts.dtypes)):
            for name in names:
                row[heading][name] = row[heading].get(name, 0) + 1
    return list(rows.values())


def _shipped_suites() -> list[dict[str, Any]]:
    root = problems_root()
    return _suite_rows(_with_tags(inspect_problem(root / key, key=key) for key in list_problems(root)))


def _most_frequent(counts: Mapping[str, int]) -> str:
    """Return the four most frequent names, the most frequent first."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "") or "-"
