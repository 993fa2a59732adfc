"""Checks of a problem's two files beyond their structure: the relations within a definition, and its workloads."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import FormatError
from harness.formats.library_baselines import run_signature_error, top_level_functions
from harness.formats.schema import FieldError, did_you_mean, quoted
from harness.formats.tensors import check_tensor, find_tensor_file
from harness.model.axes import (
    ExprAxis,
    UncheckableError,
    UnknownNameError,
    VarAxis,
    evaluate_axes,
    holds,
    names_in,
    parse_expression,
    parse_python,
)
from harness.model.problem import CustomInput, Definition, Problem, SafetensorsInput, ScalarInput, TensorSpec, Workload

_INTEGER_BITS = {"int64": 64, "int32": 32, "int16": 16, "int8": 8}


def definition_errors(definition: Definition) -> Iterator[FieldError]:
    """Yield the errors in a definition whose structure is valid, each with the path of its field."""
    yield from _axes(definition)
    yield from _tensors(definition)
    yield from _updates(definition)
    yield from _reference(definition)
    for index, constraint in enumerate(definition.constraints):
        try:
            parse_python(constraint.strip(), "eval")
        except SyntaxError as error:
            yield ("constraints", index), f"`constraints[{index}]` is not an expression: {error.msg}"


def unchecked_constraints(definition: Definition) -> Iterator[str]:
    """Yield a warning for each constraint that needs more than sizes of axes, so that it is not checked."""
    for index, constraint in enumerate(definition.constraints):
        with suppress(SyntaxError):  # an error of the definition
            parse_python(constraint.strip(), "eval")
            if not _over_axes(constraint, definition):
                yield f"`constraints[{index}]` (`{constraint}`) needs more than sizes; kept, not checked"


def _over_axes(constraint: str, definition: Definition) -> bool:
    """Return whether a constraint needs only sizes of axes; evaluates it with sizes of 1, whose result is ignored."""
    try:
        holds(constraint, dict.fromkeys(definition.axes, 1))
    except UncheckableError:
        return False
    except FormatError:
        return all(name in definition.axes for name in names_in(constraint))
    return True


def _axes(definition: Definition) -> Iterator[FieldError]:
    before: list[str] = []
    for name, axis in definition.axes.items():
        if not name.isidentifier():
            yield ("axes", name), f"axis `{name}` is not an identifier; expected letters, digits and `_`"
        if isinstance(axis, ExprAxis):
            for problem in _expression(axis.expression, before, definition):
                yield ("axes", name, "expression"), f"`axes.{name}.expression`{problem}"
        before.append(name)


def _expression(expression: str, before: list[str], definition: Definition) -> Iterator[str]:
    """Yield the errors in the expression of an axis, as predicates; `before` has the axes declared before it."""
    try:
        parse_expression(expression)
    except FormatError as error:
        yield f": {error.message}"
        return
    for used in names_in(expression):
        if used not in before:
            is_axis = used in definition.axes
            hint = "not declared before it" if is_axis else f"no axis; {did_you_mean(used, before)}"
            yield f" uses `{used}`, which is {hint}"


def _tensors(definition: Definition) -> Iterator[FieldError]:
    if not definition.outputs:
        yield ("outputs",), "`outputs` is empty; expected at least one output"
    for name in definition.inputs:
        for section in ("axes", "outputs"):
            if name in getattr(definition, section):
                yield ("inputs", name), f"input `{name}` is also in `{section}`; expected a name of its own"
    for section, tensors in (("inputs", definition.inputs), ("outputs", definition.outputs)):
        for name, spec in tensors.items():
            if not name.isidentifier():
                message = f"`{section}.{name}` is not an identifier; expected letters, digits and `_`"
                yield (section, name), message
            for index, axis in enumerate(spec.shape or ()):
                if axis not in definition.axes and not (axis.isascii() and axis.isdigit() and len(axis) <= 18):
                    message = f"`{section}.{name}.shape[{index}]` is `{axis}`, neither an axis nor digits; "
                    yield (section, name, "shape", index), message + did_you_mean(axis, definition.axes)


def _updates(definition: Definition) -> Iterator[FieldError]:
    """Check that each output that is updated in place names one input of its shape and dtype."""
    for name, spec in definition.inputs.items():
        if spec.x_updates is not None:
            message = f"`inputs.{name}.x_updates` is at an input; expected it at the output with the updated content"
            yield ("inputs", name, "x_updates"), message
    by_input: dict[str, str] = {}
    for name, updated in definition.updates.items():
        source, output, field = definition.inputs.get(updated), definition.outputs[name], f"`outputs.{name}.x_updates`"
        message = ""
        if source is None:
            message = f"{field} is `{updated}`, which is no input; {did_you_mean(updated, definition.inputs)}"
        elif source.shape is None or (source.shape, source.dtype) != (output.shape, output.dtype):
            message = f"{field}: expected a tensor of the shape and dtype of the input `{updated}`"
        elif updated in by_input:
            message = f"{field}: the input `{updated}` is updated to `{by_input[updated]}` already"
        if message:
            yield ("outputs", name, "x_updates"), message
        by_input.setdefault(updated, name)


def _reference(definition: Definition) -> Iterator[FieldError]:
    try:
        functions = top_level_functions(parse_python(definition.reference))
    except SyntaxError as error:
        place = f" at its line {error.lineno}" if error.lineno else ""
        yield ("reference",), f"`reference` is not Python: {error.msg}{place}"
        return
    run = functions.get("run")
    if run is None:
        yield ("reference",), "`reference` has no top-level function `run`"
    else:
        signature_error = run_signature_error(run, definition)
        if signature_error is not None:
            yield ("reference",), f"`reference` {signature_error}"
        defaults = zip(run.args.kwonlyargs, run.args.kw_defaults, strict=True)
        required = [argument.arg for argument, default in defaults if not default]
        if required:
            message = f"`reference`: `run` needs the keyword `{required[0]}`; expected no required keyword arguments"
            yield ("reference",), message
    name = definition.custom_inputs_entrypoint
    if name is not None:
        for message in _entrypoint(name, functions.get(name)):
            yield ("custom_inputs_entrypoint",), message


def _entrypoint(name: str, function: ast.FunctionDef | None) -> Iterator[str]:
    if function is None:
        yield f"`custom_inputs_entrypoint` is `{name}`; expected a top-level function of `reference`"
        return
    arguments = function.args
    takes = len(arguments.posonlyargs) + len(arguments.args)
    if takes - len(arguments.defaults) > 2 or (takes < 2 and arguments.vararg is None):
        yield f"`{name}` takes {takes} positional arguments; expected `{name}(axes_and_scalars, device)`"


def workload_errors(definition: Definition, workload: Workload, roots: Sequence[Path]) -> Iterator[FormatError]:
    """Yield the errors in one workload, without its place.

    Args:
        definition: a definition without errors.
        workload: a line of workload.jsonl whose structure is valid.
        roots: directories of safetensors files: the problem's own, then the data root if one is configured.
    """
    sizes = yield from _sizes(definition, workload)
    for name in definition.inputs:
        if name not in workload.inputs:
            yield FormatError(f"`inputs.{name}` is missing; expected a source for every input")
    custom = [name for name, source in workload.inputs.items() if isinstance(source, CustomInput)]
    for name, source in workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is None:
            yield FormatError(f"`inputs.{name}` is no input of the definition; {did_you_mean(name, definition.inputs)}")
        elif custom and name not in custom:
            message = f"`inputs.{name}` is {source.type} while `{custom[0]}` is custom; expected all custom or none"
            yield FormatError(message)
        elif isinstance(source, ScalarInput):
            yield from _scalar(name, source.value, spec)
        elif isinstance(source, SafetensorsInput):
            yield from _tensor_file(name, source, spec, sizes, roots)
    if custom and definition.custom_inputs_entrypoint is None:
        yield FormatError(f"`inputs.{custom[0]}` is custom; expected `custom_inputs_entrypoint` in the definition")


def _sizes(definition: Definition, workload: Workload) -> Generator[FormatError, None, dict[str, int] | None]:
    """Check the axes of a workload, and return the sizes of all axes; None if the workload does not determine them."""
    var_axes = [name for name, axis in definition.axes.items() if isinstance(axis, VarAxis)]
    missing = [name for name in var_axes if name not in workload.axes]
    for name in missing:
        yield FormatError(f"`axes.{name}` is missing; expected the size of every var axis")
    for name in workload.axes:
        if name not in definition.axes:
            yield FormatError(f"`axes.{name}` is no axis of the definition; {did_you_mean(name, var_axes)}")
        elif name not in var_axes:
            kind = definition.axes[name].type
            yield FormatError(f"`axes.{name}` is a {kind} axis; expected sizes of var axes only")
    if missing:
        return None
    try:
        sizes = evaluate_axes(definition.axes, workload.axes)
    except FormatError as error:
        yield error
        return None
    for constraint in definition.constraints:
        yield from _constraint(constraint, sizes)
    return sizes


def _constraint(constraint: str, sizes: dict[str, int]) -> Iterator[FormatError]:
    try:
        if not holds(constraint, sizes):
            axis_values = ", ".join(f"{name}={size}" for name, size in sizes.items() if name in constraint)
            yield FormatError(f"`axes` break the definition's constraint `{constraint}` ({axis_values})")
    except (UncheckableError, UnknownNameError):
        return  # `unchecked_constraints` warns of both
    except FormatError as error:
        yield FormatError(f"constraint `{constraint}`: {error.message}")


def _scalar(name: str, value: float, spec: TensorSpec) -> Iterator[FormatError]:
    if spec.shape is not None:
        yield FormatError(f"`inputs.{name}` is a scalar; expected a tensor's source, as its shape is not null")
        return
    expected = None
    if spec.dtype == "bool":
        expected = None if isinstance(value, bool) else "true or false"
    elif spec.dtype in _INTEGER_BITS:
        limit = 2 ** (_INTEGER_BITS[spec.dtype] - 1)
        fits = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        expected = None if fits else f"an integer from {-limit} to {limit - 1}"
    elif isinstance(value, bool):
        expected = "a number"
    if expected is not None:
        yield FormatError(f"`inputs.{name}.value` is {quoted(value)}; expected {expected} ({spec.dtype})")


def _tensor_file(
    name: str, source: SafetensorsInput, spec: TensorSpec, sizes: dict[str, int] | None, roots: Sequence[Path]
) -> Iterator[FormatError]:
    if spec.shape is None:
        yield FormatError(f"`inputs.{name}` is a tensor's file; expected a scalar, as its shape is null")
        return
    try:
        shape = None if sizes is None else Problem.shape(spec, sizes)
        check_tensor(find_tensor_file(source.path, roots), source.tensor_key, spec.dtype, shape)
    except FormatError as error:
        yield FormatError(f"`inputs.{name}`: {error.message}", remedy=error.remedy)
