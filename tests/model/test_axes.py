from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.model.axes import (
    MAX_VALUE,
    Axis,
    ConstAxis,
    ExprAxis,
    UncheckableError,
    UnknownNameError,
    VarAxis,
    evaluate,
    evaluate_axes,
    holds,
    names_in,
)

NAMES = {"a": 7, "b": 0, "c": 4096, "d": -3}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a", 7),
        ("a*c + 1", 28673),
        ("c // a", 585),
        ("-c // a", -586),
        ("c / 2", 2048),
        ("c / 3 * 3", 4096),  # exact: floats would be rounded at larger sizes
        ("2 ** 10 % 1000", 24),
        ("-2 ** 2", -4),
        ("(-2) ** 2", 4),
        ("+a - -a", 14),
        ("2 ** -1 * 2", 1),
        ("1 ** 9223372036854775807", 1),
    ],
)
def test_expressions_mean_what_arithmetic_means(text: str, value: int) -> None:
    assert evaluate(text, NAMES) == value
    assert type(evaluate(text, NAMES)) is int


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty expression; expected names, integers, + - * / // % **, unary signs and parentheses"),
        ("a +", "`a +` is not an expression (invalid syntax); expected names"),
        ("len(a)", "`len(a)` is not allowed; expected names"),
        ("a.b", "`a.b` is not allowed; expected names"),
        ("a[0]", "`a[0]` is not allowed; expected names"),
        ("a << 2", "`a << 2`: this operator is not allowed; expected names"),
        ("~a", "`~a`: this operator is not allowed; expected names"),
        ("a if b else c", "`a if b else c` is not allowed; expected names"),
        ("1.5", "`1.5` is not an integer; expected names"),
        ("True", "`True` is not an integer; expected names"),
        ("'x'", "`'x'` is not an integer; expected names"),
        ("e", "`e` is not known here; expected one of `a`, `b`, `c`, `d`"),
        ("a / 2", "`a / 2` gives 3.5; expected an integer"),
        ("a // b", "`a // b` divides by zero"),
        ("a % b", "`a % b` divides by zero"),
        ("a / b", "`a / b` divides by zero"),
        ("b ** -1", "`b ** (-1)` divides by zero"),
        ("c ** (a / 2)", "`c ** (a / 2)`: the exponent is 3.5; expected an integer"),
        ("9**9**9", "`9 ** 9 ** 9` is too large; expected at most 9223372036854775807"),
        ("2**63", "`2 ** 63` is too large; expected at most 9223372036854775807"),
        ("c*c*c*c*c*c", "`c * c * c * c * c * c` is too large; expected at most 9223372036854775807"),
        ("1" * 501, "an expression of 501 characters; expected at most 500"),
        ("-" * 80 + "1", "is nested too deeply; expected at most 60 levels"),
        ("a\0b", "is not an expression"),
    ],
)
def test_what_is_not_arithmetic_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        evaluate(text, NAMES)
    assert message in caught.value.message


def test_an_unknown_name_has_its_own_error() -> None:
    with pytest.raises(UnknownNameError):
        holds("a > scale", NAMES)
    with pytest.raises(FormatError, match="divides by zero") as caught:
        holds("a / b > 1", NAMES)
    assert not isinstance(caught.value, UnknownNameError)


def test_a_tower_of_powers_is_refused_without_computing_it() -> None:
    for text in ("9**9**9", "2**(2**62)", "(2**62)**(2**62)", "2**-(2**62)"):
        with pytest.raises(FormatError, match="too large"):
            evaluate(text, {})


def _trees() -> st.SearchStrategy[str]:
    leaves = st.sampled_from([*NAMES, *(str(n) for n in (0, 1, 2, 3, 16, 1000))])
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(
                lambda t: f"({t[0]} {t[1]} {t[2]})"
            ),
            st.tuples(st.sampled_from("+-"), inner).map(lambda t: f"({t[0]}{t[1]})"),
            st.tuples(inner, st.integers(0, 5)).map(lambda t: f"({t[0]} ** {t[1]})"),
        ),
        max_leaves=12,
    )


@given(_trees())
def test_integer_arithmetic_agrees_with_python(text: str) -> None:
    try:
        expected: int | None = eval(text, {"__builtins__": {}}, dict(NAMES))
    except ZeroDivisionError:
        expected = None
    try:
        value: int | None = evaluate(text, NAMES)
    except FormatError as error:
        value = None
        if "too large" in error.message or "characters" in error.message:
            return  # an intermediate value is out of bounds, which is an error whatever the result
    assert value == expected


@given(st.integers(-1000, 1000), st.integers(-1000, 1000), st.integers(-50, 50))
def test_division_is_exact(a: int, b: int, c: int) -> None:
    text = "a / b * c" if b else "a * c"
    exact = Fraction(a, b) * c if b else Fraction(a * c)
    if exact.denominator == 1:
        assert evaluate(text, {"a": a, "b": b, "c": c}) == exact
    else:
        with pytest.raises(FormatError, match="expected an integer"):
            evaluate(text, {"a": a, "b": b, "c": c})


@given(st.text(max_size=60))
def test_any_text_gives_an_integer_or_a_format_error(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert abs(evaluate(text, NAMES)) <= MAX_VALUE


def test_axes_are_evaluated_in_the_order_of_declaration() -> None:
    axes: dict[str, Axis] = {
        "n": VarAxis(type="var"),
        "heads": ConstAxis(type="const", value=8),
        "width": ExprAxis(type="expr", expression="n * heads"),
        "half": ExprAxis(type="expr", expression="width // 2"),
    }
    assert evaluate_axes(axes, {"n": 3}) == {"n": 3, "heads": 8, "width": 24, "half": 12}


@pytest.mark.parametrize(
    ("expression", "given_sizes", "message"),
    [
        ("n", {}, "axis `n` has no size; expected one in the workload's `axes`"),
        ("n - 5", {"n": 3}, "axis `m`: `n - 5` gives -2; expected an integer of at least 0"),
        ("m", {"n": 3}, "axis `m`: `m` is not known here; expected one of `n`"),
    ],
)
def test_an_axis_without_a_size_is_named(expression: str, given_sizes: dict[str, int], message: str) -> None:
    axes: dict[str, Axis] = {"n": VarAxis(type="var"), "m": ExprAxis(type="expr", expression=expression)}
    with pytest.raises(FormatError) as caught:
        evaluate_axes(axes, given_sizes)
    assert caught.value.message == message


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("a == 7", True),
        ("a < c and not a > c", True),
        ("0 < a < 7", False),
        ("a == 8 or c % 2 == 0", True),
        ("c == a * 585 + 1", True),
        ("a != 7", False),
    ],
)
def test_constraints_compare_sizes(constraint: str, expected: bool) -> None:
    assert holds(constraint, NAMES) is expected


@pytest.mark.parametrize("constraint", ["a == x[-1].item()", "len(a) == 2", "a", "a in (1, 2)", "a == 7 or f(a)"])
def test_a_constraint_that_needs_more_than_sizes_is_an_error(constraint: str) -> None:
    with pytest.raises(UncheckableError):
        holds(constraint, NAMES)


def test_names_come_in_order_and_once() -> None:
    assert names_in("b * a + b") == ("b", "a")
