"""Comparison of an output with the expected one: SOL-ExecBench's tolerance, and stricter rules of this project.

SOL-ExecBench's rules, in float32:
- |actual - expected| <= max_atol + max_rtol * |expected| for at least `required_matched_ratio` of the elements;
- no error above `max_error_cap`;
- every value is finite, except -inf where the expected value is -inf and `allow_negative_inf` is set;
- the output is not all zero unless the expected output is.
Relative errors have the divisor max(|expected|, max_atol).

This project's rules, which a reason calls "our rule":
- integers and booleans are exact;
- the root mean square of all errors is within the tolerance of the root mean square of the expected values, so that the
  elements outside the matched ratio are near, too. An output in which every element matches always passes this rule.

Outputs are compared in pieces that fit the cache. A device may have a faster function that compares all elements
(`Summed`); `harness.judge.native` has one for the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from harness.judge.failure_pattern import describe_failure
from harness.model.problem import Tolerance
from harness.model.verdict import Verdict

_PIECE = 1 << 16
"""Elements of a piece: four float32 buffers of it fit a core's second-level cache."""
_TINY = 1e-30
"""Smallest divisor of relative errors where `max_atol` is zero."""
_EXACT = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_FOUR_BIT = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


@dataclass(frozen=True)
class Comparison:
    """Result of comparing one output with the expected one. Errors are infinite where a value is not finite."""

    verdict: Verdict = Verdict.PASSED
    reason: str | None = None
    matched: float = 1.0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    rms_error: float = 0.0
    """Root mean square of the errors divided by that of the expected values; infinite where the latter is zero."""

    @property
    def passed(self) -> bool:
        """True if the output is correct."""
        return self.verdict is Verdict.PASSED


@dataclass(frozen=True)
class Sums:
    """Largest errors and sums over all elements of one output. They are complete only where `within` is true."""

    max_abs: float
    max_rel: float
    squared_error: float
    """Sum of the squared errors."""
    squares: float
    """Sum of the squares of the expected values."""
    within: bool
    """True if |actual - expected| <= atol + rtol * |expected| for every element, and none is NaN."""
    some_nonzero: bool
    """True if an actual value is not zero."""


Summed = Callable[[torch.Tensor, torch.Tensor, Tolerance], Sums]
"""(actual, expected, tolerance): contiguous floats of one shape and dtype."""


def summed(actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Sums:
    """Return the errors of all elements, computed with torch in pieces; stop at the first piece outside the tolerance.

    Args:
        actual: contiguous floats of any shape.
        expected: of the same shape and dtype.
        tolerance: of the workload.
    """
    actual, expected = actual.reshape(-1), expected.reshape(-1)
    max_abs = max_rel = squared_error = squares = 0.0
    some_nonzero = False
    buffers = torch.empty(3, min(_PIECE, expected.numel()))
    for begin in range(0, expected.numel(), _PIECE):
        x, y = actual[begin : begin + _PIECE], expected[begin : begin + _PIECE]
        difference, bound, scratch = (buffer[: x.numel()] for buffer in buffers)
        if x.dtype is not torch.float32:
            x, y = difference.copy_(x), scratch.copy_(y)
        some_nonzero = some_nonzero or bool(x[0]) or bool(x.any())
        torch.abs(y, out=bound)
        torch.sub(x, y, out=difference).abs_()
        worst = float(difference.amax())
        squared_error += float(torch.dot(difference, difference))
        squares += float(torch.dot(bound, bound))
        torch.clamp(bound, min=least_scale(tolerance), out=scratch)
        relative = float(torch.div(difference, scratch, out=scratch).amax())
        bound.mul_(tolerance.max_rtol).add_(tolerance.max_atol)
        max_abs, max_rel = max(max_abs, worst), max(max_rel, relative)
        # A NaN in any element, or inf - inf, makes this maximum NaN and the comparison false.
        if not float(difference.sub_(bound).amax()) <= 0.0:
            return Sums(max_abs, max_rel, squared_error, squares, within=False, some_nonzero=some_nonzero)
    return Sums(max_abs, max_rel, squared_error, squares, within=True, some_nonzero=some_nonzero)


def least_scale(tolerance: Tolerance) -> float:
    """Return the smallest divisor of relative errors."""
    return max(tolerance.max_atol, _TINY)


def compare_all(
    expected: Mapping[str, torch.Tensor],
    actual: Mapping[str, torch.Tensor],
    tolerance: Tolerance,
    *,
    rms_limits: Mapping[str, float] | None = None,
    sums: Summed = summed,
) -> Comparison:
    """Compare every output of one call. Return the comparison of the first wrong one, else the largest errors of all.

    Args:
        expected: the reference's outputs by name.
        actual: the candidate's outputs by name.
        tolerance: of the workload.
        rms_limits: largest relative root mean square difference that the rule on precision allows, by output.
        sums: function that compares all elements of an output.
    """
    results = []
    for name, right in expected.items():
        if name not in actual:
            return Comparison(Verdict.INCORRECT_SHAPE, f"output `{name}` is missing", 0.0, math.inf, math.inf)
        result = compare(right, actual[name], tolerance, name=name, sums=sums)
        if not result.passed:
            return result
        limit = (rms_limits or {}).get(name, math.inf)
        if result.rms_error > limit:
            reason = (
                f"output `{name}` is less precise than an honest implementation (our rule): its relative root mean "
                f"square difference from the reference is {result.rms_error:.2e}; {limit:.2e} is allowed; "
                f"{largest_error(right, actual[name])}"
            )
            return replace(result, verdict=Verdict.INCORRECT_NUMERICAL, reason=reason)
        results.append(result)
    return Comparison(
        matched=min((result.matched for result in results), default=1.0),
        max_abs_error=max((result.max_abs_error for result in results), default=0.0),
        max_rel_error=max((result.max_rel_error for result in results), default=0.0),
        rms_error=max((result.rms_error for result in results), default=0.0),
    )


def compare(
    expected: torch.Tensor,
    actual: torch.Tensor,
    tolerance: Tolerance,
    *,
    name: str = "output",
    zero_is_wrong: bool = True,
    sums: Summed = summed,
) -> Comparison:
    """Compare one output with the expected one.

    Args:
        expected: the reference's output.
        actual: the candidate's output. A bool output may have dtype uint8, its bytes in memory: only 0 and 1 are right.
        tolerance: of the workload.
        name: of the output, for the reason.
        zero_is_wrong: reject an output that is all zero while the expected one is not. False for stress inputs, whose
            right values may round to zero.
        sums: function that compares all elements.
    """
    if expected.dtype == torch.bool and actual.dtype == torch.uint8:
        expected = expected.view(torch.uint8)
    if actual.shape != expected.shape:
        reason = f"output `{name}` has the shape {tuple(actual.shape)}; expected {tuple(expected.shape)}"
        return Comparison(Verdict.INCORRECT_SHAPE, reason, 0.0, math.inf, math.inf)
    if actual.dtype != expected.dtype:
        reason = f"output `{name}` is {actual.dtype}; expected {expected.dtype}"
        return Comparison(Verdict.INCORRECT_DTYPE, reason, 0.0, math.inf, math.inf)
    if expected.numel() == 0:
        return Comparison()
    if expected.dtype in _EXACT:
        return _compare_exact(expected, actual, name)
    if expected.dtype == torch.float4_e2m1fn_x2:
        expected, actual = _unpacked(expected), _unpacked(actual)
    errors = sums(actual.reshape(-1), expected.reshape(-1), tolerance)
    all_zero = zero_is_wrong and not errors.some_nonzero
    over_cap = tolerance.max_error_cap is not None and errors.max_abs > tolerance.max_error_cap
    if all_zero or over_cap or not errors.within:
        return _compare_in_full(expected, actual, tolerance, name, zero_is_wrong)
    rms = _relative(errors.squared_error, errors.squares)
    return Comparison(max_abs_error=errors.max_abs, max_rel_error=errors.max_rel, rms_error=rms)


def all_finite(outputs: Mapping[str, torch.Tensor], tolerance: Tolerance) -> bool:
    """Return true if a reference's outputs can be compared with.

    Args:
        outputs: the reference's, by name.
        tolerance: of the workload, which may allow -inf; other values must be finite.
    """
    for value in outputs.values():
        if not value.dtype.is_floating_point or value.dtype == torch.float4_e2m1fn_x2:
            continue
        floats = value.float()
        if tolerance.allow_negative_inf:
            floats = floats.masked_fill(floats == -math.inf, 0.0)
        if not is_finite(floats):
            return False
    return True


def is_finite(values: torch.Tensor) -> bool:
    """Return true if no float is infinite or NaN. The extremes are 20 times as fast as `isfinite` on a CPU."""
    return values.numel() == 0 or all(math.isfinite(float(extreme)) for extreme in torch.aminmax(values))


def largest_error(expected: torch.Tensor, actual: torch.Tensor) -> str:
    """Describe an output's largest error: its index and both values.

    Args:
        expected: the reference's output.
        actual: the candidate's output, of the same shape and dtype.
    """
    if expected.dtype == torch.float4_e2m1fn_x2:
        expected, actual = _unpacked(expected), _unpacked(actual)
    x, y = actual.reshape(-1).float(), expected.reshape(-1).float()
    worst = int((x - y).abs().nan_to_num(0.0).argmax())
    return (
        f"the largest error is at {_index(worst, expected.shape)}: {float(x[worst]):.9g}, expected "
        f"{float(y[worst]):.9g}"
    )


def _compare_exact(expected: torch.Tensor, actual: torch.Tensor, name: str) -> Comparison:
    if torch.equal(expected, actual):
        return Comparison()
    wrong = expected != actual
    index = wrong.nonzero()[0].tolist()
    values = f"{actual[tuple(index)].item()}, expected {expected[tuple(index)].item()}"
    error = (expected.double() - actual.double()).abs()
    return Comparison(
        Verdict.INCORRECT_NUMERICAL,
        f"output `{name}` must be exact (our rule for integers and booleans): {int(wrong.sum())} of {wrong.numel()} "
        f"differ, first at {index}: {values}; pattern: {describe_failure(actual, expected, wrong)}",
        1.0 - int(wrong.sum()) / wrong.numel(),
        float(error.max()),
        float((error / expected.double().abs().clamp_min(1.0)).max()),
    )


def _compare_in_full(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance, name: str, zero_is_wrong: bool
) -> Comparison:
    """Compare a whole output at once, after an element was outside the tolerance or all were zero."""
    x, y = actual.reshape(-1).float(), expected.reshape(-1).float()
    if tolerance.allow_negative_inf:
        both_negative_inf = (x == -math.inf) & (y == -math.inf)
        x, y = x.masked_fill(both_negative_inf, 0.0), y.masked_fill(both_negative_inf, 0.0)
    if not is_finite(y):
        first = int((~y.isfinite()).nonzero()[0])
        reason = f"the reference returns {float(y[first])} in output `{name}` at {_index(first, expected.shape)}"
        return Comparison(Verdict.INVALID_REFERENCE, reason, 0.0, math.inf, math.inf)
    error = (x - y).abs()
    bound = tolerance.max_atol + tolerance.max_rtol * y.abs()
    wrong = ~(error <= bound)
    count = int(wrong.sum())
    matched = 1.0 - count / wrong.numel()
    finite = is_finite(x)
    max_abs = float(error.amax()) if finite else math.inf
    max_rel = float((error / y.abs().clamp_min(least_scale(tolerance))).amax()) if finite else math.inf
    norms = _norm(error), _norm(y)
    rule, first = _broken_rule(x, error, wrong, norms, tolerance) if finite else _not_finite(x)
    if rule is None and zero_is_wrong and not bool(x.any()) and bool(y.any()):
        rule = "all zero; the expected output is not"
    if rule is None:
        rms = _relative(norms[0] ** 2, norms[1] ** 2)
        return Comparison(matched=matched, max_abs_error=max_abs, max_rel_error=max_rel, rms_error=rms)
    shape = expected.shape
    pattern = describe_failure(x.reshape(shape), y.reshape(shape), wrong.reshape(shape))
    reason = (
        f"output `{name}`: {rule}; at {_index(first, shape)}: {float(x[first]):.9g}, expected {float(y[first]):.9g}; "
        f"pattern: {pattern}"
    )
    return Comparison(Verdict.INCORRECT_NUMERICAL, reason, matched, max_abs, max_rel)


def _norm(values: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _not_finite(x: torch.Tensor) -> tuple[str, int]:
    """The rule that values are finite, in words, and the first element that breaks it."""
    bad = ~x.isfinite()
    return f"{int(bad.sum())} values are not finite (or were not written)", int(bad.nonzero()[0])


def _broken_rule(
    x: torch.Tensor, error: torch.Tensor, wrong: torch.Tensor, norms: tuple[float, float], tolerance: Tolerance
) -> tuple[str | None, int]:
    """The first rule that is broken by finite values, in words, and the element to show.

    Args:
        x: the values.
        error: their absolute errors.
        wrong: true where an error is above the tolerance.
        norms: of the errors, and of the expected values.
        tolerance: the workload's.
    """
    count, worst = int(wrong.sum()), int(error.argmax())
    matched, required = 1.0 - count / wrong.numel(), tolerance.required_matched_ratio
    if matched < required:
        within = f"{tolerance.max_atol:g} + {tolerance.max_rtol:g} * |expected|"
        return f"{matched:.4%} of elements are within {within}, {required:.4%} required", int(wrong.nonzero()[0])
    if tolerance.max_error_cap is not None and float(error[worst]) > tolerance.max_error_cap:
        return f"error {float(error[worst]):.3g} is above the cap {tolerance.max_error_cap:g}", worst
    rms, expected_rms = (norm / math.sqrt(x.numel()) for norm in norms)
    allowed = tolerance.max_atol + tolerance.max_rtol * expected_rms
    if rms > allowed:
        return (
            f"{count} elements are outside the tolerance, and the root mean square error of the output, {rms:.3g}, is "
            f"above {allowed:.3g} (our rule: elements that `required_matched_ratio` exempts must still be near)"
        ), worst
    return None, worst


def _relative(squared_error: float, squares: float) -> float:
    if squared_error == 0.0:
        return 0.0
    return math.sqrt(squared_error / squares) if squares > 0.0 else math.inf


def _unpacked(packed: torch.Tensor) -> torch.Tensor:
    bits, values = packed.view(torch.uint8).long(), _FOUR_BIT.to(packed.device)
    return torch.stack((values[bits & 15], values[bits >> 4]), dim=-1).flatten(-2)


def _index(flat: int, shape: torch.Size) -> list[int]:
    return [int(position) for position in torch.unravel_index(torch.tensor(flat), shape)]
