"""The judge's inputs and verdicts of one problem at small sizes, on the CPU."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.corpus.workloads import axis_size, check_sizes, shown
from harness.errors import FormatError
from harness.formats import small_profile
from harness.judge.checks import WorkloadCheck, WorkloadSets, stress_tolerances
from harness.judge.correctness import Sums, is_finite, summed
from harness.judge.input_data import stress_inputs
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.roles import Role, purpose_of
from harness.judge.precision import Truth, find_truth, relative_error
from harness.judge.reference import Reference, Value, load_reference
from harness.model.axes import evaluate_axes, holds
from harness.model.problem import CustomInput, Problem, RandomInput, ScalarInput, Tolerance, Workload

SEED = 20260101
_LENGTHS = ((50e6, 19), (200e6, 7), (float("inf"), 3))
"""Bytes of the inputs at the smallest size, and the sequence length that keeps the check of a problem short."""
_BATCH = 2
LEAST_SHAPES = 4
"""Minimum number of shapes at which a problem's outputs are checked."""

Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Draw:
    """Inputs of one call and the reference's outputs for them."""

    kind: str
    """A stress case of `harness.judge.input_data.stress_inputs`; empty for ordinary inputs."""
    inputs: list[Value]
    expected: Outputs


class SmallJudge:
    """Judge outputs of one problem with the judge's own inputs, comparison and rule on precision.

    Args:
        problem: the problem, which is judged at `small_axes`.

    Raises:
        FormatError: the problem has no inputs that can be drawn at these sizes.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.reference = load_reference(problem)
        self.workload = small_workload(problem, small_axes(problem))
        self.source = InputSource(problem, reference=self.reference, seed=SEED)
        sets = WorkloadSets(problem, self.source, self.workload)
        self.stress_cases = sets.stress()
        self._ordinary: dict[str, Value] = {}
        self._truths: dict[int, tuple[Mapping[str, torch.Tensor], Truth | str]] = {}
        self._sums = _EqualOutputs()
        self._tolerances: dict[int, tuple[Mapping[str, torch.Tensor], Mapping[str, Tolerance] | None]] = {}
        self._check = WorkloadCheck(
            self.reference, sets, summed=self._sums, truth_of=self._truth_of, tolerances_of=self._tolerances_of
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs."""
        sizes = self.problem.sizes(self.workload)
        return sum(self.problem.nbytes(spec, sizes) for spec in self.problem.definition.inputs.values())

    def draw(self, kind: str = "") -> Draw:
        """Inputs of one kind with the reference's outputs; the same in each run. Weights are shared by most kinds."""
        if kind and not self._ordinary:
            self.draw()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            if not kind:
                self._ordinary = self.source.draw(self.workload)
            inputs = {name: self._copied(name, value, kind) for name, value in self._ordinary.items()}
            if kind:
                stress_inputs.make(kind, self.problem, self.workload, inputs, random.Random(f"{SEED} {kind}"))  # noqa: S311
        self._truths.clear()
        self._tolerances.clear()
        self._sums.clear()
        values = list(inputs.values())
        return Draw(kind, values, self._check.expected(values))

    def objection(self, draw: Draw, outputs: Outputs) -> str | None:
        """Return the judge's reason to refuse a candidate with these outputs; None if it accepts them.

        Args:
            draw: the inputs and the expected outputs.
            outputs: outputs of the candidate by name.
        """
        return self._check.for_another_candidate().check(draw.inputs, draw.expected, outputs, draw.kind).reason

    def truth(self, draw: Draw) -> Truth | str:
        """Return the float64 outputs for a draw, or the reason for missing ones."""
        return self._truth_of(self.reference, draw.inputs, draw.expected)

    def _copied(self, name: str, value: Value, kind: str) -> Value:
        """A copy of an input that the stress case writes to."""
        if not kind or not isinstance(value, torch.Tensor):
            return value
        role = purpose_of(name, self.problem.definition, self.problem.sizes(self.workload)).role
        return value.clone() if kind == "integers" or role is Role.NORMAL else value

    def _truth_of(
        self, reference: Reference, inputs: Sequence[Value], expected: Mapping[str, torch.Tensor]
    ) -> Truth | str:
        key = id(expected)
        if key not in self._truths:
            truth = find_truth(reference, inputs, expected)
            if isinstance(truth, Truth):
                truth = Truth(truth.outputs, truth.allowed, functools.cache(functools.partial(_moved, truth)))
            self._truths[key] = (expected, truth)  # the reference to `expected` keeps its identity unique
        return self._truths[key][1]

    def _tolerances_of(
        self,
        kind: str,
        tolerance: Tolerance,
        expected: Mapping[str, torch.Tensor],
        usual_rms: Callable[[], Mapping[str, float]],
    ) -> Mapping[str, Tolerance] | None:
        key = id(expected)
        if key not in self._tolerances:
            self._tolerances[key] = (expected, stress_tolerances(kind, tolerance, expected, usual_rms))
        return self._tolerances[key][1]


def _moved(truth: Truth) -> Outputs:
    """Return the outputs for inputs that are moved by the same random numbers in each run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + 1)
        return truth.moved()


class _EqualOutputs:
    """Comparison that reads all elements only of outputs that differ: most mutants change few outputs."""

    def __init__(self) -> None:
        self._nonzero: dict[int, tuple[torch.Tensor, bool]] = {}
        """Address of a finite output -> (the output, kept alive so that the address is not used again; if an element is
        not zero)."""

    def clear(self) -> None:
        """Forget the outputs of earlier inputs."""
        self._nonzero.clear()

    def __call__(self, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> Sums:
        """See `harness.judge.correctness.Summed`."""
        address = expected.data_ptr()
        is_shared = actual.data_ptr() == address
        if is_shared and address in self._nonzero:
            return _no_error(some_nonzero=self._nonzero[address][1])
        # Torch does not compare every 8-bit float. NaN differs from itself.
        is_equal = expected.dtype.itemsize > 1 and (is_shared or torch.equal(actual, expected))
        if not is_equal or not is_finite(expected):
            return summed(actual, expected, tolerance)
        some_nonzero = bool(expected[0]) or bool(expected.any())
        if is_shared:
            self._nonzero[address] = expected, some_nonzero
        return _no_error(some_nonzero=some_nonzero)


def _no_error(*, some_nonzero: bool) -> Sums:
    return Sums(0.0, 0.0, 0.0, 0.0, within=True, some_nonzero=some_nonzero)


def difference(outputs: Outputs, expected: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the root mean square of each output's difference, relative to that of the expected output.

    Args:
        outputs: outputs of an implementation by name.
        expected: outputs of the reference by name.
    """
    return {
        name: 0.0
        if torch.equal(_bytes(value), _bytes(outputs[name]))
        else relative_error(value.double(), outputs[name])
        if value.is_floating_point() and value.dtype != torch.float4_e2m1fn_x2
        else float("inf")
        for name, value in expected.items()
    }


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: torch cannot compare packed four-bit floats, and NaN differs from NaN."""
    return value.contiguous().view(-1).view(torch.uint8) if value.numel() else value


def small_axes(problem: Problem) -> dict[str, int]:
    """Sizes at which mutants are judged: a batch of 2, and as many rows as the weights allow in a short time.

    Raises:
        FormatError: no small sizes keep the problem's constraints.
    """
    smallest = allowed_axes(problem)[0]
    sizes = evaluate_axes(problem.definition.axes, smallest)
    nbytes = sum(problem.nbytes(spec, sizes) for spec in problem.definition.inputs.values())
    length = next(length for limit, length in _LENGTHS if nbytes <= limit)
    variable = variable_axes(problem)
    for axes in (
        {axis: axis_size(axis, _BATCH, length, text=length + 1) for axis in variable},
        {axis: _BATCH if axis.startswith("batch") else 2 * length for axis in variable},
        *reversed(allowed_axes(problem)),
    ):
        if _is_allowed(problem, axes):
            return axes
    raise FormatError("no small sizes keep the constraints", where=problem.key)


def allowed_axes(problem: Problem) -> list[dict[str, int]]:
    """Small sizes that keep the problem's constraints: those of `check_sizes`, sequence length 1 first.

    Where constraints allow few of them, those of the problem's workloads in the profile `small` follow.

    Raises:
        FormatError: there are none.
    """
    sizes = [axes for axes in check_sizes(variable_axes(problem)) if _is_allowed(problem, axes)]
    for workload in problem.workloads:
        if len(sizes) >= LEAST_SHAPES:
            break
        scaled = small_profile.small_axes(problem.definition, workload.axes)
        if scaled is not None and scaled not in sizes:
            sizes.append(scaled)
    if not sizes:
        raise FormatError("no small sizes keep the constraints", where=problem.key)
    return sizes


def variable_axes(problem: Problem) -> list[str]:
    """Axes whose size each workload gives."""
    return [name for name, axis in problem.definition.axes.items() if axis.type == "var"]


def _is_allowed(problem: Problem, axes: Mapping[str, int]) -> bool:
    try:
        sizes = evaluate_axes(problem.definition.axes, axes)
    except FormatError:
        return False
    # A division that has no remainder in the workloads, such as that by the size of a block, keeps none.
    exact = small_profile.exact_divisions(problem.definition, problem.workloads[0].axes)
    is_exact = exact <= small_profile.exact_divisions(problem.definition, axes)
    return is_exact and all(_holds(constraint, sizes) for constraint in problem.definition.constraints)


def _holds(constraint: str, sizes: Mapping[str, int]) -> bool:
    try:
        return holds(constraint, dict(sizes))
    except FormatError:  # a condition on values, which `harness problems check` warns of
        return True


def small_workload(problem: Problem, axes: Mapping[str, int]) -> Workload:
    """Return a workload with other sizes, and the tolerance, scalars and kinds of inputs of the first workload."""
    first = problem.workloads[0]
    inputs = {
        name: source if isinstance(source, ScalarInput | CustomInput) else RandomInput(type="random")
        for name, source in first.inputs.items()
    }
    # The judge's input source caches by the uuid of a workload.
    return first.model_copy(update={"uuid": f"small {shown(axes)}", "axes": dict(axes), "inputs": inputs})


OutputsOf = Callable[[Sequence[Value]], Outputs]
"""An implementation: inputs in declaration order -> outputs by name."""
