"""Judge the mutants and the honest implementations of a problem with its checks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from harness.corpus.deep_check.honest import honest_implementations
from harness.corpus.deep_check.mutants import Mutant, mutants
from harness.corpus.deep_check.small_judge import Draw, Outputs, OutputsOf, SmallJudge, difference
from harness.judge.correctness import all_finite
from harness.judge.precision import Truth, honest_error, outputs_in, relative_error
from harness.judge.reference import InvalidReferenceError

_FEW_BYTES = 30_000_000
_HONEST_KINDS = ("", "large")
"""Inputs that honest implementations of problems with larger weights are judged on: large values overflow."""
_MANY_BYTES = 100_000_000
_KINDS_OF_LARGE = ("", "large", "small", "zeros")
"""Inputs that mutants of problems with still larger weights are judged on: a wrong epsilon shows in small values."""

Fate = Literal["killed", "indistinguishable", "survived"]


@dataclass(frozen=True)
class MutantResult:
    """Result of one mutant."""

    kind: str
    name: str
    fate: Fate
    """`indistinguishable`: it is no further from the reference than rounding takes an honest implementation
    (`Mutant.rounding_allowed`), so no tolerance that accepts those can refuse it."""
    detail: str
    """Inputs and reason of the refusal; otherwise the largest distance from the reference over its rounding error."""

    @property
    def title(self) -> str:
        """The name that exceptions use."""
        return f"{self.kind}: {self.name}"


@dataclass(frozen=True)
class HonestRefusal:
    """An honest implementation that the checks refuse."""

    implementation: str
    kind: str
    reason: str

    @property
    def title(self) -> str:
        """The name that exceptions use."""
        return f"honest {self.implementation}: {self.kind}"


@dataclass(frozen=True)
class Verdicts:
    """Results of the checks of one problem."""

    mutants: tuple[MutantResult, ...]
    refusals: tuple[HonestRefusal, ...]
    note: str | None
    """Reason why the judge's rule on precision cannot be applied; None if it can."""


@dataclass
class _JudgedMutant:
    mutant: Mutant
    distance: float = 0.0
    refusal: str | None = None
    """Inputs and reason of the refusal."""

    @property
    def result(self) -> MutantResult:
        is_indistinguishable = self.distance <= self.mutant.rounding_allowed
        fate: Fate = "killed" if self.refusal else "indistinguishable" if is_indistinguishable else "survived"
        detail = self.refusal or f"{self.distance:.2g} times the reference's rounding error"
        return MutantResult(self.mutant.kind, self.mutant.name, fate, detail)


def verdicts(judge: SmallJudge, other_outputs: Outputs) -> Verdicts:
    """Judge every mutant and every honest implementation of a problem.

    Args:
        judge: judge of the problem at small sizes.
        other_outputs: outputs of the reference for other inputs.

    Raises:
        FormatError: the reference itself fails.
    """
    honest = honest_implementations(judge.problem, judge.reference)
    refusals: list[HonestRefusal] = []
    judged: list[_JudgedMutant] = []
    note = None
    kinds = ("", *judge.stress_cases)
    for kind in kinds if judge.nbytes <= _MANY_BYTES else [kind for kind in kinds if kind in _KINDS_OF_LARGE]:
        tests_honest = judge.nbytes <= _FEW_BYTES or kind in _HONEST_KINDS
        if not tests_honest and all(item.refusal for item in judged):
            continue
        draw = judge.draw(kind)
        if not kind:
            generated = mutants(judge.problem, judge.workload, judge.reference, draw, other_outputs)
            judged = [_JudgedMutant(mutant) for mutant in generated]
            truth = judge.truth(draw)
            note = truth if isinstance(truth, str) else None
        if tests_honest:
            refusals += _refusals(judge, draw, honest)
        for item in judged:
            if item.refusal is None:
                _judge(judge, draw, item)
    return Verdicts(tuple(item.result for item in judged), tuple(refusals), note)


def _refusals(judge: SmallJudge, draw: Draw, honest: dict[str, OutputsOf]) -> list[HonestRefusal]:
    refusals = []
    for name, implementation in honest.items():
        try:
            reason = judge.objection(draw, implementation(draw.inputs))
        except Exception as error:  # noqa: BLE001 - the border to the problem's own code
            reason = f"it raises {type(error).__name__}: {error}"
        if reason is not None:
            refusals.append(HonestRefusal(name, draw.kind or "ordinary", reason))
    return refusals


def _judge(judge: SmallJudge, draw: Draw, item: _JudgedMutant) -> None:
    """Store the refusal of a mutant that these inputs kill; otherwise its distance."""
    mutant = item.mutant
    try:
        outputs = mutant.outputs(draw)
    except InvalidReferenceError as error:
        reason: str | None = error.message
    else:
        reason = judge.objection(draw, outputs)
    if reason is not None:
        item.refusal = f"{draw.kind or 'ordinary'}: {reason}"
    elif item.distance <= mutant.rounding_allowed and (not draw.kind or mutant.exact is not None):
        item.distance = max(item.distance, _distance(judge, draw, mutant, outputs))


def _distance(judge: SmallJudge, draw: Draw, mutant: Mutant, outputs: Outputs) -> float:
    """Return the largest distance of a mutant's outputs from the reference, relative to its rounding error."""
    differences = {
        name: value
        for name, value in difference(outputs, draw.expected).items()
        if value > 0.0 and draw.expected[name].is_floating_point()  # the judge compares integers exactly
    }
    if not differences or not all_finite(draw.expected, judge.workload.tolerance):
        return 0.0
    truth = judge.truth(draw)
    allowed = truth.allowed if isinstance(truth, Truth) else {}
    ratios = {
        # Torch has no epsilon of packed four-bit floats: `difference` is infinite where one differs.
        name: value if math.isinf(value) else value / (allowed.get(name) or honest_error(draw.expected[name].dtype))
        for name, value in differences.items()
    }
    if max(ratios.values()) > mutant.rounding_allowed and mutant.exact is not None and isinstance(truth, Truth):
        exact = outputs_in(torch.float64, mutant.exact, draw.inputs)
        ratios = {name: relative_error(right, exact[name]) / allowed[name] for name, right in truth.outputs.items()}
    return max(ratios.values())
