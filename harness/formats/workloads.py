"""Checks of the lines of a workload.jsonl against their definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import FormatError
from harness.formats.schema import did_you_mean, quoted
from harness.formats.tensors import check_tensor, find_tensor_file
from harness.model.axes import UncheckableError, evaluate_axes, holds
from harness.model.axis_types import VarAxis
from harness.model.problem import (
    CustomInput,
    Definition,
    InputSource,
    RandomInput,
    SafetensorsInput,
    ScalarInput,
    TensorSpec,
    Workload,
)

_INTEGER_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}


@dataclass
class _WorkloadReport:
    where: str
    line: int = 0
    errors: list[FormatError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_error(self, message: str, remedy: str | None = None) -> None:
        self.errors.append(FormatError(message, where=f"{self.where}:{self.line}", remedy=remedy))


def check_workloads(
    definition: Definition,
    workloads: Iterable[tuple[int, Workload]],
    *,
    where: str,
    directory: Path,
    data_root: Path | None,
) -> tuple[list[FormatError], list[str]]:
    """Return the errors and warnings about workloads.

    Args:
        definition: a definition without errors.
        workloads: line number and content of each workload.
        where: workload.jsonl, for messages.
        directory: the problem directory.
        data_root: directory of safetensors files besides the problem's own.
    """
    report = _WorkloadReport(where)
    line_by_uuid: dict[str, int] = {}
    for report.line, workload in workloads:
        if workload.uuid in line_by_uuid:
            first_line = line_by_uuid[workload.uuid]
            report.add_error(
                f"`uuid` {quoted(workload.uuid)} is also that of line {first_line}; expected one of its own"
            )
        line_by_uuid.setdefault(workload.uuid, report.line)
        sizes = _check_axes(definition, workload, report)
        _check_inputs(definition, workload, sizes, report, [directory, *([data_root] if data_root else [])])
    return report.errors, list(dict.fromkeys(report.warnings))


def _check_axes(definition: Definition, workload: Workload, report: _WorkloadReport) -> dict[str, int] | None:
    """Return the sizes of all axes; None if the workload's axes do not determine them."""
    var_axes = [name for name, axis in definition.axes.items() if isinstance(axis, VarAxis)]
    missing = [name for name in var_axes if name not in workload.axes]
    for name in missing:
        report.add_error(f"`axes.{name}` is missing; expected the size of every var axis")
    for name in workload.axes:
        if name in definition.axes and name not in var_axes:
            kind = definition.axes[name].type
            report.add_error(f"`axes.{name}` is a {kind} axis; expected sizes of var axes only")
        elif name not in definition.axes:
            report.add_error(f"`axes.{name}` is no axis of the definition; {did_you_mean(name, var_axes)}")
    if missing:
        return None
    try:
        sizes = evaluate_axes(definition.axes, workload.axes)
    except FormatError as error:
        report.add_error(error.message)
        return None
    for constraint in definition.constraints:
        _check_constraint(constraint, sizes, report)
    return sizes


def _check_constraint(constraint: str, sizes: Mapping[str, int], report: _WorkloadReport) -> None:
    try:
        if not holds(constraint, sizes):
            axis_values = ", ".join(f"{name}={size}" for name, size in sizes.items() if name in constraint)
            report.add_error(f"`axes` break the definition's constraint `{constraint}` ({axis_values})")
    except UncheckableError:
        return  # `check_definition` warns of this constraint
    except FormatError as error:
        if "is not known here" not in error.message:  # the name of an input: `check_definition` warns of it too
            report.add_error(f"constraint `{constraint}`: {error.message}")


def _check_inputs(
    definition: Definition, workload: Workload, sizes: dict[str, int] | None, report: _WorkloadReport, roots: list[Path]
) -> None:
    for name in definition.inputs:
        if name not in workload.inputs:
            report.add_error(f"`inputs.{name}` is missing; expected a source for every input")
    custom = [name for name, source in workload.inputs.items() if isinstance(source, CustomInput)]
    for name, source in workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is None:
            report.add_error(f"`inputs.{name}` is no input of the definition; {did_you_mean(name, definition.inputs)}")
        elif custom and name not in custom:
            report.add_error(
                f"`inputs.{name}` is {source.type} while `{custom[0]}` is custom; expected all custom or none"
            )
        else:
            _check_source(name, source, spec, sizes, report, roots)
    if custom and definition.custom_inputs_entrypoint is None:
        report.add_error(f"`inputs.{custom[0]}` is custom; expected `custom_inputs_entrypoint` in the definition")
    if not custom and definition.custom_inputs_entrypoint is not None:
        report.warnings.append(
            f"{report.where}: `custom_inputs_entrypoint` makes no input of the workloads without custom inputs"
        )


def _check_source(
    name: str,
    source: InputSource,
    spec: TensorSpec,
    sizes: dict[str, int] | None,
    report: _WorkloadReport,
    roots: list[Path],
) -> None:
    match source:
        case ScalarInput(value=value):
            if spec.shape is not None:
                report.add_error(f"`inputs.{name}` is a scalar; expected a tensor's source, as its shape is not null")
            elif (expected := _scalar_expectation(value, spec.dtype)) is not None:
                report.add_error(f"`inputs.{name}.value` is {quoted(value)}; expected {expected} ({spec.dtype})")
        case SafetensorsInput(path=path, tensor_key=key):
            if spec.shape is None:
                report.add_error(f"`inputs.{name}` is a tensor's file; expected a scalar, as its shape is null")
                return
            try:
                file = find_tensor_file(path, roots)
                shape = (
                    None if sizes is None else tuple(sizes[axis] if axis in sizes else int(axis) for axis in spec.shape)
                )
                check_tensor(file, key, spec.dtype, shape)
            except FormatError as error:
                report.add_error(f"`inputs.{name}`: {error.message}", error.remedy)
        case RandomInput() | CustomInput():
            pass


def _scalar_expectation(value: object, dtype: str) -> str | None:
    """Return the expected value of a scalar of this dtype; None if the value is valid."""
    if dtype == "bool":
        return None if isinstance(value, bool) else "true or false"
    if dtype in _INTEGER_BITS:
        limit = 2 ** (_INTEGER_BITS[dtype] - 1)
        fits = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        return None if fits else f"an integer from {-limit} to {limit - 1}"
    return "a number" if isinstance(value, bool) else None
