"""`harness problems list`, `suites` and `show`, and the lookup of the problems that a command line names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from harness.cli.completion_values import complete_glob, complete_problem, complete_suite
from harness.cli.display.output import echo, echo_document, emit, json_option
from harness.errors import AnswerIsNo, ConfigurationError, FormatError
from harness.formats.problem_tags import ProblemFilter, ProblemTags, provenance_in, tags_of
from harness.formats.problems import DEFINITION_NAME, Findings, inspect_problem, list_problems, subdirectories
from harness.model.axes import Axis, ConstAxis, ExprAxis
from harness.model.paths import SOLUTIONS
from harness.model.printable import count_of, first_names
from harness.model.problem import Problem, TensorSpec, Workload
from harness.workspace.configuration import data_root_of
from harness.workspace.directories import Workspace
from harness.workspace.shipped_files import problems_root

_FEW_TENSORS = 5


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
    columns: dict[str, Any] = {
        "problem": lambda row: row["problem"],
        "operation": lambda row: row["op_type"] or "-",
        "direction": lambda row: row["direction"],
        "workloads": lambda row: str(row["workloads"]),
        "solutions": lambda row: ", ".join(row["solutions"]) or "-",
        "state": lambda row: count_of(row["errors"], "error") if row["errors"] else row["profile"] or "ok",
    }
    empty = "no problems; `harness init --problems SUITE` or `harness problems import PATH` adds some"
    if globs or conditions != ProblemFilter():
        empty = "no problem meets all conditions; `harness problems list` shows all"
    emit(rows, as_json=as_json, columns=columns, empty=empty)


@click.command()
@click.option(
    "--shipped", is_flag=True, help="List the suites shipped with the harness, for `harness init --problems`."
)
@json_option
def suites(*, shipped: bool, as_json: bool) -> None:
    """List the suites of the workspace with their numbers of problems, families and dtypes."""
    rows = _shipped_suites() if shipped else _suite_rows(_with_tags(inspected(())))
    columns: dict[str, Any] = {
        "suite": lambda row: row["suite"],
        "problems": lambda row: str(row["problems"]),
        "backward": lambda row: str(row["backward"]),
        "workloads": lambda row: str(row["workloads"]),
        "families": lambda row: _most_frequent(row["families"]),
        "dtypes": lambda row: _most_frequent(row["dtypes"]),
    }
    empty = "no problems; `harness problems suites --shipped` shows what `harness init --problems SUITE` copies"
    emit(rows, as_json=as_json, columns=columns, empty=empty)


@click.command()
@click.argument("problem", shell_complete=complete_problem)
@json_option
def show(problem: str, *, as_json: bool) -> None:
    """Show a problem: its origin, axes, inputs and outputs, and the shapes and bytes of each workload."""
    loaded = one_problem(problem)
    if as_json:
        echo_document(_as_data(loaded))
    else:
        echo(_as_text(loaded))


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
        "solutions": _solution_targets(findings.directory),
    }


def _suite_rows(findings: Sequence[tuple[Findings, ProblemTags]]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for item, facts in findings:
        counts = {"problems": 0, "backward": 0, "workloads": 0, "families": Counter(), "dtypes": Counter()}
        row = rows.setdefault(facts.suite, {"suite": facts.suite, **counts})
        row["problems"] += 1
        row["backward"] += facts.direction == "backward"
        row["workloads"] += len(item.problem.workloads) if item.problem else 0
        row["families"].update([facts.family])
        row["dtypes"].update(facts.dtypes)
    return list(rows.values())


def _shipped_suites() -> list[dict[str, Any]]:
    root = problems_root()
    return _suite_rows(_with_tags(inspect_problem(root / key, key=key) for key in list_problems(root)))


def _most_frequent(counts: Mapping[str, int]) -> str:
    """Return the four most frequent names, the most frequent first."""
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "") or "-"


def _as_data(problem: Problem) -> dict[str, Any]:
    """Return the document that `--json` prints."""
    definition, facts = problem.definition, tags_of(problem.key, problem.definition)
    return {
        "problem": problem.key,
        "digest": problem.digest,
        "name": definition.name,
        "op_type": definition.op_type,
        "description": definition.description,
        "tags": list(facts.tags),
        "model": facts.model,
        "profile": facts.profile,
        "origin": _origin(problem),
        "solutions": _solution_targets(problem.directory),
        "axes": {name: axis.model_dump(mode="json") for name, axis in definition.axes.items()},
        "inputs": {name: _spec(spec) for name, spec in definition.inputs.items()},
        "outputs": {name: _spec(spec) for name, spec in definition.outputs.items()},
        "constraints": list(definition.constraints),
        "workloads": [_workload(problem, workload) for workload in problem.workloads],
        "warnings": list(problem.warnings),
    }


def _as_text(problem: Problem) -> str:
    """Return the text that is printed without `--json`."""
    from tabulate import tabulate

    definition = problem.definition
    lines = [f"{problem.key}  {definition.op_type or ''}".rstrip(), definition.description or definition.name, ""]
    facts = _facts(problem)
    lines += [*facts, ""] if facts else []
    lines += ["axes"] + [f"  {name} {_axis(axis)}" for name, axis in definition.axes.items()]
    for title, tensors in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        lines += ["", title] + [
            f"  {name}: {_symbolic(spec)}{_start(spec)}  {spec.description or ''}".rstrip()
            for name, spec in tensors.items()
        ]
    if definition.constraints:
        lines += ["", "constraints", *(f"  {constraint}" for constraint in definition.constraints)]
    names = [*definition.inputs, *definition.outputs]
    names = names if len(names) <= _FEW_TENSORS else []  # the symbolic shapes above remain, and rows fit a line
    rows = []
    for row in (_workload(problem, workload) for workload in problem.workloads):
        sizes = " ".join(f"{name}={size}" for name, size in row["axes"].items())
        rows.append([row["uuid"], sizes, *(row["tensors"][name] for name in names), _size(row["bytes"])])
    lines += ["", tabulate(rows, headers=["workload", "axes", *names, "in + out"], tablefmt="simple")]
    lines += [f"warning: {warning}" for warning in problem.warnings]
    return "\n".join(lines)


def _facts(problem: Problem) -> list[str]:
    """Return lines on the origin of a problem and on its files; facts that are not available have no line."""
    facts = tags_of(problem.key, problem.definition)
    origin = ", ".join(f"{name} {value}" for name, value in _origin(problem).items())
    values = {
        "tags": ", ".join(facts.tags),
        "model": facts.model or "",
        "origin": origin,
        "profile": f"{facts.profile}: the workloads are scaled down" if facts.profile else "",
        "solutions": ", ".join(_solution_targets(problem.directory)),
        "baseline": "baseline/" if (problem.directory / "baseline").is_dir() else "",
        "notes": "README.md" if (problem.directory / "README.md").is_file() else "",
    }
    return [f"{name:<10}{text}" for name, text in values.items() if text]


def _origin(problem: Problem) -> dict[str, str]:
    """Return the origin that the definition records."""
    origin = provenance_in(problem.definition) or (problem.definition.model_extra or {}).get("x_origin")
    return {str(name): str(value) for name, value in origin.items()} if isinstance(origin, dict) else {}


def _workload(problem: Problem, workload: Workload) -> dict[str, Any]:
    sizes = problem.sizes(workload)
    tensors: Mapping[str, TensorSpec] = {**problem.definition.inputs, **problem.definition.outputs}
    return {
        "uuid": workload.uuid,
        "axes": dict(workload.axes),
        "tensors": {name: _concrete(problem, name, spec, workload) for name, spec in tensors.items()},
        "bytes": sum(problem.nbytes(spec, sizes) for spec in tensors.values()),
    }


def _concrete(problem: Problem, name: str, spec: TensorSpec, workload: Workload) -> str:
    if spec.shape is None:
        value = getattr(workload.inputs.get(name), "value", None)
        return "scalar" if value is None else str(value)
    return "x".join(str(size) for size in problem.shape(spec, problem.sizes(workload))) or "0-d"


def _axis(axis: Axis) -> str:
    match axis:
        case ConstAxis(value=value):
            return f"= {value}"
        case ExprAxis(expression=expression):
            return f"= {expression}"
        case _:
            return "varies"


def _symbolic(spec: TensorSpec) -> str:
    return f"{spec.dtype} scalar" if spec.shape is None else f"{spec.dtype} [{', '.join(spec.shape)}]"


def _start(spec: TensorSpec) -> str:
    return "" if spec.x_updates is None else f", begins as `{spec.x_updates}` and is updated in place"


def _spec(spec: TensorSpec) -> dict[str, Any]:
    updates = {} if spec.x_updates is None else {"x_updates": spec.x_updates}
    return {"shape": None if spec.shape is None else list(spec.shape), "dtype": spec.dtype, **updates}


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


def inspected(globs: Sequence[str]) -> list[Findings]:
    """Return the findings about each named problem; each argument is a directory or a glob over the workspace's keys.

    Raises:
        AnswerIsNo: a glob matches no problem.
    """
    findings: dict[str, Findings] = {}
    for word in globs or ("*",):
        directory = Path(word)
        if (directory / DEFINITION_NAME).exists():
            item = inspect_problem(directory.resolve())
            findings.setdefault(item.key, item)
            continue
        workspace = Workspace.find()
        keys = list_problems(workspace.problems, [word])
        if globs and not keys:
            raise AnswerIsNo(f"no problem matches `{word}`", remedy="see `harness problems list`")
        data_root = data_root_of(workspace)
        for key in keys:
            if key not in findings:
                findings[key] = inspect_problem(workspace.problems / key, key=key, data_root=data_root)
    return list(findings.values())


def one_problem(word: str) -> Problem:
    """Return the single problem that a directory or glob names.

    Raises:
        ConfigurationError: several problems match.
        FormatError: the problem has errors.
    """
    findings = inspected([word])
    if len(findings) > 1:
        names = first_names([item.key for item in findings], 5)
        raise ConfigurationError(f"`{word}` matches {len(findings)} problems: {names}", remedy="name one")
    (item,) = findings
    if item.problem is None:
        first, remedy = item.errors[0], f"see all with `harness problems check {item.key}`"
        raise FormatError(first.message, where=first.where, remedy=remedy)
    return item.problem


def _solution_targets(directory: Path) -> list[str]:
    """Return the targets for which a problem directory has a solution."""
    return [path.name for path in subdirectories(directory / SOLUTIONS)]
