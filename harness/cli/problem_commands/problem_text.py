"""The output of `harness problems show`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.cli.problem_commands.reading_problems import solution_targets
from harness.formats.problem_tags import provenance_in, tags_of
from harness.model.axes import Axis, ConstAxis, ExprAxis
from harness.model.problem import Problem, TensorSpec

_FEW_TENSORS = 5


def as_data(problem: Problem) -> dict[str, Any]:
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
        "solutions": solution_targets(problem.directory),
        "axes": {name: axis.model_dump(mode="json") for name, axis in definition.axes.items()},
        "inputs": {name: _spec(spec) for name, spec in definition.inputs.items()},
        "outputs": {name: _spec(spec) for name, spec in definition.outputs.items()},
        "constraints": list(definition.constraints),
        "workloads": [_workload(problem, index) for index in range(len(problem.workloads))],
        "warnings": list(problem.warnings),
    }


def as_text(problem: Problem) -> str:
    """Return the text that is printed without `--json`."""
    from tabulate import tabulate

    definition = problem.definition
    lines = [f"{problem.key}  {definition.op_type or ''}".rstrip(), definition.description or definition.name, ""]
    facts = _facts(problem)
    lines += [*facts, ""] if facts else []
    lines += ["axes"] + [f"  {name} {_axis(axis)}" for name, axis in definition.axes.items()]
    for title, tensors in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        lines += ["", title] + [
            f"  {name}: {_symbolic(spec)}{_start(spec)}{_note(spec)}" for name, spec in tensors.items()
        ]
    if definition.constraints:
        lines += ["", "constraints", *(f"  {constraint}" for constraint in definition.constraints)]
    table = [_workload(problem, index) for index in range(len(problem.workloads))]
    names = [*definition.inputs, *definition.outputs]
    names = names if len(names) <= _FEW_TENSORS else []  # the symbolic shapes above remain, and rows fit a line
    rows = []
    for row in table:
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
        "solutions": ", ".join(solution_targets(problem.directory)),
        "baseline": "baseline/" if (problem.directory / "baseline").is_dir() else "",
        "notes": "README.md" if (problem.directory / "README.md").is_file() else "",
    }
    return [f"{name:<10}{text}" for name, text in values.items() if text]


def _origin(problem: Problem) -> dict[str, str]:
    """Return the origin that the definition records."""
    origin = provenance_in(problem.definition) or (problem.definition.model_extra or {}).get("x_origin")
    return {str(name): str(value) for name, value in origin.items()} if isinstance(origin, dict) else {}


def _note(spec: TensorSpec) -> str:
    return f"  {spec.description}" if spec.description else ""


def _workload(problem: Problem, index: int) -> dict[str, Any]:
    workload, definition = problem.workloads[index], problem.definition
    sizes = problem.sizes(workload)
    tensors: Mapping[str, TensorSpec] = {**definition.inputs, **definition.outputs}
    return {
        "uuid": workload.uuid,
        "axes": dict(workload.axes),
        "tensors": {name: _concrete(problem, name, spec, index) for name, spec in tensors.items()},
        "bytes": sum(problem.nbytes(spec, sizes) for spec in tensors.values()),
    }


def _concrete(problem: Problem, name: str, spec: TensorSpec, index: int) -> str:
    workload = problem.workloads[index]
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
