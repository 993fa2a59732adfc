"""Expressions over axes: sizes of `expr` axes, launch plans and constraints. They are parsed with `ast`, never `eval`.

Division is exact (fractions), so `hidden / heads * 2` is correct where `heads` does not divide `hidden`. Only the
result must be an integer. Every intermediate value is bounded; an exponent is bounded before the power is computed,
so `9**9**9` is refused at once.
"""

from __future__ import annotations

import ast
import functools
import operator
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import FormatError
from harness.model.base_models import LenientModel

MAX_VALUE = 2**63 - 1
"""Upper bound of sizes and of the intermediate values of expressions: sizes are int64 wherever they are used."""
MAX_LENGTH = 500
"""Upper bound of an expression's characters; those of published problems have fewer than 100."""
MAX_DEPTH = 60
"""Upper bound of nesting levels: evaluating and printing an expression recurse."""

_CACHED_TREES = 4096
"""Size of the cache of parsed expressions: the axes of a problem are evaluated for each workload."""
_Number = int | Fraction

_BINARY: dict[type[ast.operator], Callable[[_Number, _Number], _Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: lambda a, b: Fraction(a) / Fraction(b),
}
_COMPARE: dict[type[ast.cmpop], Callable[[_Number, _Number], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ALLOWED = "expected names, integers, + - * / // % **, unary signs and parentheses"
_parsing = threading.Lock()


class UncheckableError(FormatError):
    """A constraint needs more than the sizes of axes, so it cannot be checked before inputs exist."""


class UnknownNameError(FormatError):
    """An expression uses a name that has no size, such as the name of an input."""


def parse_python(source: str, mode: str = "exec") -> ast.Module | ast.Expression:
    """Parse Python source without warnings; every parser failure is raised as a `SyntaxError`.

    Args:
        source: text that is parsed and not run.
        mode: as of `ast.parse`: `exec` for a module, `eval` for an expression.

    Raises:
        SyntaxError: with `lineno` where the parser gives it.
    """
    try:
        # The parser warns of invalid escape sequences in a reference; without the filter each load would print the
        # warnings to the user's terminal. The lock prevents two threads from restoring each other's filters.
        with _parsing, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source, mode=mode)  # type: ignore[return-value] # depends on the mode
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error) or "nested too deeply") from error


@functools.lru_cache(maxsize=_CACHED_TREES)
def parse_expression(text: str) -> ast.expr:
    """Return the syntax tree of an expression, which may contain only arithmetic over names and integers.

    Raises:
        FormatError: the text is not an expression, or contains another construct, which the message names.
    """
    tree = _parse(text)
    for node, _ in _walk(tree):
        _check_allowed(node)
    return tree


def evaluate(text: str, sizes: Mapping[str, int]) -> int:
    """Return the integer value of an expression over named sizes.

    Args:
        text: an expression such as `2 * hidden / heads`.
        sizes: value of each name that the expression may use.

    Raises:
        FormatError: the text is not an expression, a name is unknown, a value is out of bounds, or the result is not
            an integer.
    """
    value = _value(parse_expression(text), sizes)
    if isinstance(value, Fraction):
        if value.denominator != 1:
            raise FormatError(f"`{text}` gives {float(value):g}; expected an integer")
        value = value.numerator
    return value


def evaluate_axes(axes: Mapping[str, Axis], var_sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the size of every axis, in declaration order.

    Args:
        axes: the definition's axes by name; an `expr` axis may use those declared before it.
        var_sizes: sizes of the `var` axes: the workload's `axes`.

    Raises:
        FormatError: the size of an axis, which the message names, is missing or negative, or its expression cannot be
            evaluated.
    """
    sizes: dict[str, int] = {}
    for name, axis in axes.items():
        match axis:
            case ConstAxis():
                sizes[name] = axis.value
            case VarAxis():
                if name not in var_sizes:
                    raise FormatError(f"axis `{name}` has no size; expected one in the workload's `axes`")
                sizes[name] = var_sizes[name]
            case ExprAxis():
                try:
                    sizes[name] = evaluate(axis.expression, sizes)
                except FormatError as error:
                    raise FormatError(f"axis `{name}`: {error.message}") from error
                if sizes[name] < 0:
                    raise FormatError(
                        f"axis `{name}`: `{axis.expression}` gives {sizes[name]}; expected an integer of at least 0"
                    )
    return sizes


def names_in(text: str) -> tuple[str, ...]:
    """Return the names in an expression or constraint without repetition, in the order of a breadth-first walk.

    Raises:
        FormatError: the text is not an expression.
    """
    return tuple(dict.fromkeys(node.id for node in ast.walk(_parse(text)) if isinstance(node, ast.Name)))


def holds(constraint: str, sizes: Mapping[str, int]) -> bool:
    """Return whether a constraint over axes holds.

    Args:
        constraint: comparisons of expressions, joined by `and`, `or` and `not`.

    Raises:
        UncheckableError: the constraint needs more than sizes; some published ones index into inputs.
        FormatError: the constraint is not an expression, or an intermediate value is out of bounds.
    """
    return _truth(_parse(constraint), sizes)


@functools.lru_cache(maxsize=_CACHED_TREES)
def _parse(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise FormatError(f"an expression of {len(text)} characters; expected at most {MAX_LENGTH}")
    if not text.strip():
        raise FormatError("an empty expression; " + _ALLOWED)
    try:
        tree = parse_python(text.strip(), "eval")
    except SyntaxError as error:
        raise FormatError(f"`{text}` is not an expression ({error.msg}); {_ALLOWED}") from error
    assert isinstance(tree, ast.Expression)  # noqa: S101 - mode "eval" returns this type
    if max(depth for _, depth in _walk(tree.body)) > MAX_DEPTH:
        raise FormatError(f"`{text}` is nested too deeply; expected at most {MAX_DEPTH} levels")
    return tree.body


def _walk(tree: ast.expr) -> Iterator[tuple[ast.AST, int]]:
    """Yield nodes with their depth in source order, so that an error names the first violation in the text."""
    stack: list[tuple[ast.AST, int]] = [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in reversed(list(ast.iter_child_nodes(node))))


def _check_allowed(node: ast.AST) -> None:
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        if not isinstance(node.op, (*_BINARY, ast.Pow, ast.UAdd, ast.USub)):
            raise FormatError(f"`{ast.unparse(node)}`: this operator is not allowed; {_ALLOWED}")
    elif isinstance(node, ast.Constant):
        if type(node.value) is not int:
            raise FormatError(f"`{node.value!r}` is not an integer; {_ALLOWED}")
    elif isinstance(node, ast.expr) and not isinstance(node, ast.Name):
        raise FormatError(f"`{ast.unparse(node)}` is not allowed; {_ALLOWED}")


def _value(node: ast.AST, sizes: Mapping[str, int]) -> _Number:
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return _bounded(value, node)
        case ast.Name(id=name):
            if name not in sizes:
                raise UnknownNameError(f"`{name}` is not known here; expected one of {_name_list(sizes)}")
            return sizes[name]
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            operand_value = _value(operand, sizes)
            return -operand_value if isinstance(sign, ast.USub) else operand_value
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _bounded(_power(_value(left, sizes), _value(right, sizes), node), node)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            a, b = _value(left, sizes), _value(right, sizes)
            if b == 0 and isinstance(op, ast.Div | ast.FloorDiv | ast.Mod):
                raise FormatError(f"`{ast.unparse(node)}` divides by zero")
            apply = _BINARY[type(op)]
            return _bounded(apply(a, b), node)
        case _:
            raise UncheckableError(f"`{ast.unparse(node)}` is not arithmetic over axes")


def _power(base: _Number, exponent: _Number, node: ast.AST) -> _Number:
    if exponent != int(exponent):
        raise FormatError(f"`{ast.unparse(node)}`: the exponent is {float(exponent):g}; expected an integer")
    power = int(exponent)
    if base == 0 and power < 0:
        raise FormatError(f"`{ast.unparse(node)}` divides by zero")
    if abs(power) > 64 and base not in {0, 1, -1}:
        raise FormatError(f"`{ast.unparse(node)}` is too large; expected at most {MAX_VALUE}")
    return Fraction(base) ** power


def _bounded(value: _Number, node: ast.AST) -> _Number:
    largest = max(abs(value.numerator), value.denominator)
    if largest > MAX_VALUE:
        raise FormatError(f"`{ast.unparse(node)}` is too large; expected at most {MAX_VALUE}")
    return value


def _truth(node: ast.AST, sizes: Mapping[str, int]) -> bool:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return all([_truth(value, sizes) for value in values])  # noqa: C419 - every part must be checkable
        case ast.BoolOp(values=values):
            return any([_truth(value, sizes) for value in values])  # noqa: C419 - as above
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _truth(operand, sizes)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _COMPARE for op in ops):
            sides = [_value(part, sizes) for part in (left, *comparators)]
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, sides, sides[1:], strict=False))
        case ast.Constant(value=bool(value)):
            return value
        case _:
            raise UncheckableError(f"`{ast.unparse(node)}` is not a comparison over axes")


def _name_list(names: Mapping[str, int]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing (no axis is declared before it)"


NonEmpty = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]


class ConstAxis(LenientModel):
    """An axis with one size."""

    type: Literal["const"]
    value: Size


class VarAxis(LenientModel):
    """An axis whose size each workload gives."""

    type: Literal["var"]


class ExprAxis(LenientModel):
    """An axis computed from axes declared before it."""

    type: Literal["expr"]
    expression: NonEmpty


Axis = Annotated[ConstAxis | VarAxis | ExprAxis, Field(discriminator="type")]
