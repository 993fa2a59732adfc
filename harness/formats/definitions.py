"""Checks of one definition.json beyond its structure: relations between axes, tensors, reference and constraints."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.errors import FormatError
from harness.formats.schema import did_you_mean, located
from harness.formats.source_lines import Path
from harness.model.axes import UncheckableError, holds, names_in, parse_expression, parse_python
from harness.model.axis_types import ExprAxis
from harness.model.problem import Definition, TensorSpec

_Function = ast.FunctionDef


@dataclass
class _DefinitionReport:
    where: str
    find_lines: Callable[[], Mapping[Path, int]]
    errors: list[FormatError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add_error(self, message: str, *path: str | int) -> None:
        self.errors.append(located(message, path, where=self.where, lines=self.find_lines()))


def check_definition(
    definition: Definition, *, where: str, lines: Callable[[], Mapping[Path, int]]
) -> tuple[list[FormatError], list[str]]:
    """Return the errors and warnings about a definition whose structure is valid.

    Args:
        definition: the parsed file.
        where: the file, for messages.
        lines: returns the line of each field; called only for an error.
    """
    report = _DefinitionReport(where, lines)
    _check_axes(definition, report)
    _check_tensors(definition, report)
    _check_reference(definition, report)
    _check_constraints(definition, report)
    return report.errors, report.warnings


def _check_axes(definition: Definition, report: _DefinitionReport) -> None:
    before: dict[str, int] = {}
    for name, axis in definition.axes.items():
        if not name.isidentifier():
            report.add_error(f"axis `{name}` is not an identifier; expected letters, digits and `_`", "axes", name)
        if isinstance(axis, ExprAxis):
            _check_expression(name, axis, before, definition, report)
        before[name] = 1


def _check_expression(
    name: str, axis: ExprAxis, before: Mapping[str, int], definition: Definition, report: _DefinitionReport
) -> None:
    path = ("axes", name, "expression")
    try:
        parse_expression(axis.expression)
        mentioned = names_in(axis.expression)
    except FormatError as error:
        report.add_error(f"`axes.{name}.expression`: {error.message}", *path)
        return
    for used in mentioned:
        if used in before:
            continue
        if used in definition.axes:
            message = f"`axes.{name}.expression` uses `{used}`, which is not declared before it"
        else:
            message = f"`axes.{name}.expression` uses `{used}`, which is no axis; {did_you_mean(used, before)}"
        report.add_error(message, *path)


def _check_tensors(definition: Definition, report: _DefinitionReport) -> None:
    if not definition.outputs:
        report.add_error("`outputs` is empty; expected at least one output", "outputs")
    for name in definition.inputs:
        for used in ("axes", "outputs"):
            if name in getattr(definition, used):
                message = f"input `{name}` is also in `{used}`; expected a name of its own"
                report.add_error(message, "inputs", name)
    for section, tensors in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in tensors.items():
            if not name.isidentifier():
                message = f"`{section}.{name}` is not an identifier; expected letters, digits and `_`"
                report.add_error(message, section, name)
            _check_shape(section, name, spec, definition, report)
    _check_updates(definition, report)


def _check_updates(definition: Definition, report: _DefinitionReport) -> None:
    """Check that each output that is updated in place names one input of its shape and dtype."""
    for name, spec in definition.inputs.items():
        if spec.x_updates is not None:
            message = f"`inputs.{name}.x_updates` is at an input; expected it at the output with the updated content"
            report.add_error(message, "inputs", name, "x_updates")
    by_input: dict[str, str] = {}
    for name, updated in definition.updates.items():
        source, path = definition.inputs.get(updated), ("outputs", name, "x_updates")
        if source is None:
            message = f"`outputs.{name}.x_updates` is `{updated}`, which is no input; "
            report.add_error(message + did_you_mean(updated, definition.inputs), *path)
        elif source.shape is None or (source.shape, source.dtype) != (
            definition.outputs[name].shape,
            definition.outputs[name].dtype,
        ):
            message = f"`outputs.{name}.x_updates`: expected a tensor of the shape and dtype of the input `{updated}`"
            report.add_error(message, *path)
        elif updated in by_input:
            message = f"`outputs.{name}.x_updates`: the input `{updated}` is updated to `{by_input[updated]}` already"
            report.add_error(message, *path)
        by_input.setdefault(updated, name)


def _check_shape(section: str, name: str, spec: TensorSpec, definition: Definition, report: _DefinitionReport) -> None:
    for index, axis in enumerate(spec.shape or ()):
        if axis in definition.axes or (axis.isascii() and axis.isdigit() and len(axis) <= 18):
            continue
        message = f"`{section}.{name}.shape[{index}]` is `{axis}`, neither an axis nor digits; "
        report.add_error(message + did_you_mean(axis, definition.axes), section, name, "shape", index)


def _check_reference(definition: Definition, report: _DefinitionReport) -> None:
    try:
        tree = parse_python(definition.reference)
    except SyntaxError as error:
        place = f" at its line {error.lineno}" if error.lineno else ""
        report.add_error(f"`reference` is not Python: {error.msg}{place}", "reference")
        return
    functions = {node.name: node for node in getattr(tree, "body", ()) if isinstance(node, _Function)}
    run = functions.get("run")
    if run is None:
        report.add_error("`reference` has no top-level function `run`", "reference")
    else:
        _check_run(run, list(definition.inputs), report)
    _check_entrypoint(definition, functions, report)


def _check_run(run: _Function, inputs: list[str], report: _DefinitionReport) -> None:
    parameters = [argument.arg for argument in (*run.args.posonlyargs, *run.args.args)]
    if parameters != inputs:
        takes = f"run({', '.join(parameters)})"
        message = f"`reference` defines `{takes}`; expected the inputs in order: `run({', '.join(inputs)})`"
        report.add_error(message, "reference")
    required = [arg.arg for arg, default in zip(run.args.kwonlyargs, run.args.kw_defaults, strict=True) if not default]
    if required:
        message = f"`reference`: `run` needs the keyword `{required[0]}`; expected no required keyword arguments"
        report.add_error(message, "reference")


def _check_entrypoint(definition: Definition, functions: Mapping[str, _Function], report: _DefinitionReport) -> None:
    name = definition.custom_inputs_entrypoint
    if name is None:
        return
    function = functions.get(name)
    if function is None:
        message = f"`custom_inputs_entrypoint` is `{name}`; expected a top-level function of `reference`"
        report.add_error(message, "custom_inputs_entrypoint")
        return
    arguments = function.args
    takes = len(arguments.posonlyargs) + len(arguments.args)
    required = takes - len(arguments.defaults)
    if required > 2 or (takes < 2 and arguments.vararg is None):
        message = f"`{name}` takes {takes} positional arguments; expected `{name}(axes_and_scalars, device)`"
        report.add_error(message, "custom_inputs_entrypoint")


def _check_constraints(definition: Definition, report: _DefinitionReport) -> None:
    for index, constraint in enumerate(definition.constraints):
        path = ("constraints", index)
        try:
            parse_python(constraint.strip(), "eval")
        except SyntaxError as error:
            report.add_error(f"`constraints[{index}]` is not an expression: {error.msg}", *path)
            continue
        if not _over_axes(constraint, definition):
            report.warnings.append(
                f"{report.where}: `constraints[{index}]` (`{constraint}`) needs more than sizes; kept, not checked"
            )


def _over_axes(constraint: str, definition: Definition) -> bool:
    """Return whether a constraint needs only sizes of axes; evaluates it with sizes of 1, whose result is ignored."""
    try:
        holds(constraint, dict.fromkeys(definition.axes, 1))
    except UncheckableError:
        return False
    except FormatError:
        return all(name in definition.axes for name in names_in(constraint))
    return True
