"""One workload's inputs, and the verdict on the outputs of one call, as the rounds use them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from harness.judge import stress
from harness.judge.correctness import Comparison, Summed, all_finite, compare, compare_all, largest_error, summed
from harness.judge.inputs import InputSource
from harness.judge.precision import Truth, find_truth
from harness.judge.reference import InvalidReferenceError, Reference, Value, torch_dtype
from harness.judge.rounds import CheckOutcome, Each, Views
from harness.model.problem import Definition, Problem, Tolerance, Workload
from harness.model.verdict import Verdict

_TRUTHS = 2
_LATER = 128
"""The first two ordinary calls of a workload are held against float64, and later one in so many by secret chance; all
others against the reference."""
_SLACK = 1.5
"""Factor by which the error of an honest implementation may differ from one draw of the inputs to the next."""
TruthSearch = Callable[[Reference, Sequence[Value], Mapping[str, torch.Tensor]], Truth | str]
StressTolerances = Callable[
    [str, Tolerance, Mapping[str, torch.Tensor], Callable[[], Mapping[str, float]]], Mapping[str, Tolerance] | None
]
_UNTALLIED = CheckOutcome(Verdict.PASSED, None, 0.0, 0.0, 1.0)


def stress_tolerances(
    kind: str,
    tolerance: Tolerance,
    expected: Mapping[str, torch.Tensor],
    usual_rms: Callable[[], Mapping[str, float]],
) -> Mapping[str, Tolerance] | None:
    """The tolerance of each output of a stress case; None where the reference's outputs are not finite."""
    return stress.tolerance_for(kind, tolerance, expected, usual_rms()) if all_finite(expected, tolerance) else None


@dataclass(frozen=True)
class WorkloadSets:
    """Inputs of one workload."""

    problem: Problem
    source: InputSource
    workload: Workload

    def fill(self, sets: Sequence[Views], kinds: Sequence[str] = (), each: Each | None = None) -> None:
        """See the protocol `harness.judge.rounds.InputSets`."""

        def refill(number: int) -> None:
            self.source.refill(self.workload, sets[number])
            awkward(number)

        def awkward(number: int) -> None:
            if kinds and kinds[number]:
                stress.make(kinds[number], self.problem, self.workload, sets[number])

        if self.source.at_once:
            self.source.refill_all(self.workload, sets)
            for number in range(len(sets)):
                awkward(number)
            return
        # Custom inputs are made by one thread; of the others the first makes what the others share.
        alone = len(sets) if each is None or self.source.is_custom(self.workload) else 1
        for number in range(alone):
            refill(number)
        if each is not None:
            each(refill, range(alone, len(sets)))

    def stress(self) -> tuple[str, ...]:
        """The stress cases that change something here."""
        return stress.stress_cases(self.problem, self.workload)


@dataclass
class WorkloadCheck:
    """The reference, the tolerance and our rules for one workload."""

    reference: Reference
    sets: WorkloadSets
    summed: Summed = summed
    truth_of: TruthSearch = find_truth
    """`find_truth`, or what remembers its results for inputs that are checked against several outputs."""
    tolerances_of: StressTolerances = stress_tolerances
    """The same for the tolerances of stress cases."""
    note: str | None = None
    """Why the rule on precision could not be applied."""
    _truths: int = 0
    _limits: dict[str, float] = field(default_factory=dict)
    _usual_rms: dict[str, float] = field(default_factory=dict)

    def for_another_candidate(self) -> WorkloadCheck:
        """The check as it begins for another candidate: its first ordinary calls are held against float64 again."""
        return replace(self, _truths=0)

    def expected(self, inputs: Sequence[Value]) -> dict[str, torch.Tensor]:
        """The reference's outputs.

        Raises:
            InvalidReferenceError: they have another shape or dtype than declared.
        """
        found = self.reference.outputs(inputs)
        problem, sizes = self.sets.problem, self.sets.problem.sizes(self.sets.workload)
        for name, spec in problem.definition.outputs.items():
            shape, dtype, value = problem.shape(spec, sizes), torch_dtype(spec.dtype), found[name]
            if tuple(value.shape) != shape or value.dtype != dtype:
                raise InvalidReferenceError(
                    f"the reference gives `{name}` as {value.dtype} {tuple(value.shape)}; declared is {dtype} {shape}",
                    where=problem.key,
                )
        return found

    def check(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        kind: str = "",
    ) -> CheckOutcome:
        """Compare in full. `kind` is the stress case of the inputs; empty for ordinary ones."""
        tolerance = self.sets.workload.tolerance
        if kind:
            return self._check_stressed(inputs, expected, outputs, kind)
        limits = {name: _SLACK * limit for name, limit in self._limits.items()}
        found = compare_all(expected, outputs, tolerance, rms_limits=limits, sums=self.summed)
        if found.passed and self.reference.definition.updates:
            right, given = _where_updated(self.reference.definition, inputs, expected, outputs)
            updated = compare_all(right, given, tolerance, sums=self.summed)
            found = found if updated.passed else updated
        if found.passed and self._is_held_against_truth():
            broken = self._hold_against_truth(inputs, expected, outputs)
            if broken is not None:
                broken = f"{broken}; {_largest_error(broken, expected, outputs)}"
                return _outcome(replace(found, verdict=Verdict.INCORRECT_NUMERICAL, reason=broken))
        return _outcome(found)

    def _is_held_against_truth(self) -> bool:
        """The first calls, and later ones that nobody can foresee."""
        if self.note is not None:
            return False
        self._truths += 1
        return self._truths <= _TRUTHS or not secrets.randbelow(_LATER)

    def _hold_against_truth(
        self, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
    ) -> str | None:
        truth = self.truth_of(self.reference, inputs, expected)
        if not isinstance(truth, Truth):
            self.note = f"the rule on precision was not applied: {truth}"
            return None
        broken = truth.broken_by(outputs)
        for name, limit in truth.limits_to_reference().items():
            self._limits[name] = max(limit, self._limits.get(name, 0.0))
        return broken

    def _check_stressed(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        kind: str,
    ) -> CheckOutcome:
        """Errors of awkward inputs are on scales of their own, so the tally does not get them."""
        tolerances = self.tolerances_of(kind, self.sets.workload.tolerance, expected, self._usual)
        if tolerances is None:
            return _UNTALLIED

        def wrong(right: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> Comparison | None:
            zero_is_wrong = stress.CASES[kind].zero_is_wrong
            for name, limits in tolerances.items():
                found = compare(
                    right[name], given[name], limits, name=name, zero_is_wrong=zero_is_wrong, sums=self.summed
                )
                if not found.passed:
                    return found
            return None

        found = wrong(expected, outputs)
        if found is None or self._is_ill_posed(inputs, expected, outputs, wrong):
            return _UNTALLIED
        return _outcome(found)

    def _is_ill_posed(
        self,
        inputs: Sequence[Value],
        expected: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        wrong: Callable[[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]], Comparison | None],
    ) -> bool:
        """Return true if the reference fails on awkward inputs, or nobody could be right to the tolerance.

        So where float64 says that the candidate is right and the reference is not, and where inputs that differ in
        their last places have other outputs.
        """
        truth = self.truth_of(self.reference, inputs, expected)
        if not isinstance(truth, Truth):
            return False

        def rounded(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {name: values[name].to(value.dtype) if name in values else value for name, value in expected.items()}

        true = rounded(truth.outputs)
        return (
            wrong(true, outputs) is None
            or wrong(true, expected) is not None
            or wrong(true, rounded(truth.moved())) is not None
        )

    def _usual(self) -> dict[str, float]:
        """Root mean squares of the outputs for ordinary inputs."""
        if not self._usual_rms:
            ordinary = self.reference.outputs(list(self.sets.source.draw(self.sets.workload).values()))
            self._usual_rms.update({name: stress.rms(value) for name, value in ordinary.items()})
        return self._usual_rms


def _where_updated(
    definition: Definition,
    inputs: Sequence[Value],
    expected: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The elements of updated outputs that the reference changes, as expected and as found.

    An update may change so few elements that an output without it is within the matched ratio.
    """
    before = dict(zip(definition.inputs, inputs, strict=True))
    right, given = {}, {}
    for name, source in definition.updates.items():
        dtype, start = expected[name].dtype, before[source]
        assert isinstance(start, torch.Tensor)  # noqa: S101 - the definition was checked
        if dtype == torch.float4_e2m1fn_x2:
            continue  # two elements in a byte: the whole output has to do
        held = torch.uint8 if dtype.itemsize == 1 else dtype  # torch cannot index or compare every 8-bit float
        wanted, found, start = (each.view(held) for each in (expected[name].contiguous(), outputs[name], start))
        changed = wanted != start
        if bool(changed.any()):
            label = f"{name}, where the reference changes {source}"
            right[label], given[label] = wanted[changed].view(dtype), found[changed].view(outputs[name].dtype)
    return right, given


def _largest_error(broken: str, expected: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]) -> str:
    """Name the place of the largest error of the output that a reason names."""
    names = [name for name in expected if f"`{name}`" in broken]
    return "; ".join(largest_error(expected[name], outputs[name]) for name in names)


def _outcome(found: Comparison) -> CheckOutcome:
    return CheckOutcome(found.verdict, found.reason, found.max_abs_error, found.max_rel_error, found.matched)
