"""Inputs of one workload, and the check of one call's outputs; `harness.judge.rounds` uses both."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from harness.judge.correctness import Comparison, Summed, all_finite, compare, compare_all, largest_error, summed
from harness.judge.input_data import stress_inputs
from harness.judge.input_data.inputs import InputSource
from harness.judge.precision import Truth, find_truth
from harness.judge.reference import InvalidReferenceError, Outputs, Reference, Value
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage
from harness.model.problem import Definition, Problem, Tolerance, Workload
from harness.model.verdict import Verdict
from harness.sol.problem_tensors import torch_dtype

_FLOAT64_CHECKS = 2
_FLOAT64_CHECK_INTERVAL = 128
"""The first `_FLOAT64_CHECKS` ordinary calls of a workload are compared with float64, and a secret random choice of one
in `_FLOAT64_CHECK_INTERVAL` later calls. All others are compared with the reference."""
_ERROR_SPREAD = 1.5
"""Factor by which the error of an honest implementation may differ between two draws of the inputs."""
Views = Mapping[str, torch.Tensor]
"""Inputs of one set by name, which are written in place."""
ForEachSet = Callable[[Callable[[int], None], Sequence[int]], object]
"""Calls a function for each of several set numbers, possibly in parallel threads."""
TruthSearch = Callable[[Reference, Sequence[Value], Outputs], Truth | str]
StressTolerances = Callable[
    [str, Tolerance, Outputs, Callable[[], Mapping[str, float]]], Mapping[str, Tolerance] | None
]
_FirstFailure = Callable[[Outputs, Outputs], Comparison | None]
"""(right, actual outputs) -> comparison of the first wrong one; None if all are right."""


def stress_tolerances(
    kind: str, tolerance: Tolerance, expected: Outputs, usual_rms: Callable[[], Mapping[str, float]]
) -> Mapping[str, Tolerance] | None:
    """Return the tolerance of each output of a stress case; None if an output of the reference is not finite.

    Args:
        kind: the stress case.
        tolerance: of the workload.
        expected: the reference's outputs by name.
        usual_rms: returns the root mean square of each output for ordinary inputs.
    """
    if not all_finite(expected, tolerance):
        return None
    return stress_inputs.tolerance_for(kind, tolerance, expected, usual_rms())


@dataclass
class Tally:
    """Number of checked calls, and their largest errors."""

    checked: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    matched: float = 1.0

    def add(self, outcome: Comparison) -> None:
        """Add the result of one checked call."""
        self.checked += 1
        self.max_abs_error = max(self.max_abs_error, outcome.max_abs_error)
        self.max_rel_error = max(self.max_rel_error, outcome.max_rel_error)
        self.matched = min(self.matched, outcome.matched)


@dataclass(frozen=True)
class WorkloadSets:
    """Writes inputs of one workload, never the same twice."""

    problem: Problem
    source: InputSource
    workload: Workload

    @timed_as(JudgeStage.FILL)
    def fill(self, sets: Sequence[Views], kinds: Sequence[str] = (), for_each_set: ForEachSet | None = None) -> None:
        """Overwrite sets with fresh inputs.

        Args:
            sets: the sets to overwrite, as views by input name.
            kinds: name of a stress case for each set, or "" for ordinary inputs; empty: all are ordinary.
            for_each_set: fills several sets in parallel; None: one after the other.
        """

        def refill(number: int) -> None:
            self.source.refill(self.workload, sets[number])
            apply_stress(number)

        def apply_stress(number: int) -> None:
            if kinds and kinds[number]:
                stress_inputs.make(kinds[number], self.problem, self.workload, sets[number], self.source.random)

        if self.source.fills_at_once(self.workload):
            self.source.refill_all(self.workload, sets)
            stressed = [number for number, kind in enumerate(kinds) if kind]
            if for_each_set is not None:
                for_each_set(apply_stress, stressed)
            else:
                for number in stressed:
                    apply_stress(number)
            return
        # One thread makes all custom inputs. Otherwise the first set is filled alone: it creates data that the other
        # sets share.
        serial_sets = len(sets) if for_each_set is None or self.workload.is_custom else 1
        for number in range(serial_sets):
            refill(number)
        if for_each_set is not None:
            for_each_set(refill, range(serial_sets, len(sets)))

    def stress(self) -> tuple[str, ...]:
        """Return the names of the stress cases that change an input of this workload."""
        return stress_inputs.stress_cases(self.problem, self.workload)


@dataclass
class WorkloadCheck:
    """Checks outputs of one workload by the reference, the tolerance and the project's own rules."""

    reference: Reference
    sets: WorkloadSets
    summed: Summed = summed
    truth_of: TruthSearch = find_truth
    """`find_truth`, or a function that caches its results for inputs that several outputs are checked on."""
    tolerances_of: StressTolerances = stress_tolerances
    """The same for the tolerances of stress cases."""
    note: str | None = None
    """Reason for which the rule on precision could not be applied."""
    _ordinary_checks: int = 0
    _limits: dict[str, float] = field(default_factory=dict)
    _usual_rms: dict[str, float] = field(default_factory=dict)

    def for_another_candidate(self) -> WorkloadCheck:
        """Return a check for another candidate, whose first ordinary calls are compared with float64 again."""
        return replace(self, _ordinary_checks=0)

    def skip_float64(self) -> None:
        """Compare no further call with float64, except a secret random choice."""
        self._ordinary_checks = max(self._ordinary_checks, _FLOAT64_CHECKS)

    @timed_as(JudgeStage.REFERENCE)
    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """Return the reference's outputs by name.

        Raises:
            InvalidReferenceError: an output has another shape or dtype than declared.
        """
        outputs = self.reference.outputs(inputs)
        problem, sizes = self.sets.problem, self.sets.problem.sizes(self.sets.workload)
        for name, spec in problem.definition.outputs.items():
            shape, dtype, value = problem.shape(spec, sizes), torch_dtype(spec.dtype), outputs[name]
            if tuple(value.shape) != shape or value.dtype != dtype:
                raise InvalidReferenceError(
                    f"the reference returns `{name}` as {value.dtype} {tuple(value.shape)}; "
                    f"declared is {dtype} {shape}",
                    where=problem.key,
                )
        return outputs

    @timed_as(JudgeStage.COMPARISON)
    def check(self, inputs: Sequence[Value], expected: Outputs, outputs: Outputs, kind: str = "") -> Comparison:
        """Compare every element of a call's outputs.

        Args:
            inputs: of the call, in declaration order.
            expected: the reference's outputs by name.
            outputs: the candidate's outputs by name.
            kind: stress case of the inputs; "" for ordinary ones.
        """
        tolerance = self.sets.workload.tolerance
        if kind:
            return self._check_stressed(inputs, expected, outputs, kind)
        limits = {name: _ERROR_SPREAD * limit for name, limit in self._limits.items()}
        comparison = compare_all(expected, outputs, tolerance, rms_limits=limits, sums=self.summed)
        if comparison.passed and self.reference.definition.updates:
            expected_updates, actual_updates = _updated_elements(self.reference.definition, inputs, expected, outputs)
            of_updates = compare_all(expected_updates, actual_updates, tolerance, sums=self.summed)
            comparison = comparison if of_updates.passed else of_updates
        if comparison.passed and self._is_compared_with_float64():
            reason = self._compare_with_float64(inputs, expected, outputs)
            if reason is not None:
                reason = f"{reason}; {_largest_error(reason, expected, outputs)}"
                return replace(comparison, verdict=Verdict.INCORRECT_NUMERICAL, reason=reason)
        return comparison

    def _is_compared_with_float64(self) -> bool:
        """Return true for the first calls and for an unpredictable choice of later ones."""
        if self.note is not None:
            return False
        self._ordinary_checks += 1
        return self._ordinary_checks <= _FLOAT64_CHECKS or not secrets.randbelow(_FLOAT64_CHECK_INTERVAL)

    @timed_as(JudgeStage.TRUTH)
    def _compare_with_float64(self, inputs: Sequence[Value], expected: Outputs, outputs: Outputs) -> str | None:
        truth = self.truth_of(self.reference, inputs, expected)
        if not isinstance(truth, Truth):
            self.note = f"the rule on precision was not applied: {truth}"
            return None
        reason = truth.broken_by(outputs)
        for name, limit in truth.limits_to_reference().items():
            self._limits[name] = max(limit, self._limits.get(name, 0.0))
        return reason

    def _check_stressed(self, inputs: Sequence[Value], expected: Outputs, outputs: Outputs, kind: str) -> Comparison:
        """Check outputs for stress inputs. A pass reports no errors, because these have another scale."""
        tolerances = self.tolerances_of(kind, self.sets.workload.tolerance, expected, self._usual)
        if tolerances is None:
            return Comparison()

        def first_failure(right: Outputs, actual: Outputs) -> Comparison | None:
            zero_is_wrong = stress_inputs.CASES[kind].zero_is_wrong
            for name, limits in tolerances.items():
                comparison = compare(
                    right[name], actual[name], limits, name=name, zero_is_wrong=zero_is_wrong, sums=self.summed
                )
                if not comparison.passed:
                    return comparison
            return None

        failure = first_failure(expected, outputs)
        if failure is None or self._is_ill_posed(inputs, expected, outputs, first_failure):
            return Comparison()
        return failure

    @timed_as(JudgeStage.TRUTH)
    def _is_ill_posed(
        self, inputs: Sequence[Value], expected: Outputs, outputs: Outputs, first_failure: _FirstFailure
    ) -> bool:
        """Return true if the stress inputs cannot show an error of the candidate.

        By the tolerance, one of these holds: the candidate agrees with float64; the reference does not; or float64
        itself does not agree with its own outputs for inputs that differ in their last places.
        """
        truth = self.truth_of(self.reference, inputs, expected)
        if not isinstance(truth, Truth):
            return False

        def rounded(values: Outputs) -> dict[str, torch.Tensor]:
            return {name: values[name].to(value.dtype) if name in values else value for name, value in expected.items()}

        true = rounded(truth.outputs)
        return (
            first_failure(true, outputs) is None
            or first_failure(true, expected) is not None
            or first_failure(true, rounded(truth.moved())) is not None
        )

    @timed_as(JudgeStage.REFERENCE)
    def _usual(self) -> dict[str, float]:
        """Return the root mean square of each output for ordinary inputs."""
        if not self._usual_rms:
            ordinary = self.reference.outputs(list(self.sets.source.draw(self.sets.workload).values()))
            self._usual_rms.update({name: stress_inputs.rms(value) for name, value in ordinary.items()})
        return self._usual_rms


def _updated_elements(
    definition: Definition, inputs: Sequence[Value], expected: Outputs, outputs: Outputs
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the elements of updated outputs that the reference changes: the expected and the actual values, by label.

    They are compared separately because an update may change few elements: the matched ratio would accept an output
    that lacks the update.
    """
    before = dict(zip(definition.inputs, inputs, strict=True))
    expected_updates, actual_updates = {}, {}
    for name, source in definition.updates.items():
        dtype, start = expected[name].dtype, before[source]
        assert isinstance(start, torch.Tensor)  # noqa: S101 - the definition was checked
        if dtype == torch.float4_e2m1fn_x2:
            continue  # a byte holds two elements, so only the whole output is compared
        comparable = torch.uint8 if dtype.itemsize == 1 else dtype  # torch cannot index or compare every 8-bit float
        right, actual, start = (value.view(comparable) for value in (expected[name].contiguous(), outputs[name], start))
        changed = right != start
        if bool(changed.any()):
            label = f"{name}, where the reference changes {source}"
            expected_updates[label] = right[changed].view(dtype)
            actual_updates[label] = actual[changed].view(outputs[name].dtype)
    return expected_updates, actual_updates


def _largest_error(reason: str, expected: Outputs, outputs: Outputs) -> str:
    """Describe the largest error of the output that a reason names: its index and both values."""
    names = [name for name in expected if f"`{name}`" in reason]
    return "; ".join(largest_error(expected[name], outputs[name]) for name in names)
