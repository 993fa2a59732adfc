"""The starter problems are complete, and their C++ solutions agree with their references."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.formats.problems import inspect_problem, load_problem
from harness.formats.solutions import check_all_solutions, load_solution
from harness.judge.build.builder import build_cpp
from harness.model.axes import ConstAxis
from harness.model.problem import Problem, ScalarInput, Workload
from harness.model.solution import ParamValue, Solution
from harness.sol.roofline import bounds
from harness.sol.targets import hardware

pytestmark = pytest.mark.usefixtures("own_locks")

STARTER = Path(__file__).parents[2] / "problems" / "starter"
NAMES = (
    "adaln_modulate",
    "causal_conv1d_silu",
    "residual_rmsnorm_backward",
    "rmsnorm_h4096",
    "rope_gqa",
    "swiglu_h14336",
)
AWKWARD: dict[str, list[dict[str, int]]] = {
    "adaln_modulate": [{"batch": 1, "tokens": 1}, {"batch": 3, "tokens": 5}],
    "causal_conv1d_silu": [
        {"batch": 1, "length": 1},
        {"batch": 2, "length": 3},
        {"batch": 3, "length": 19},
        {"batch": 1, "length": 700},  # longer than a tile
    ],
    "residual_rmsnorm_backward": [{"rows": 1}, {"rows": 9}],
    "rmsnorm_h4096": [{"rows": 1}, {"rows": 3}],
    "rope_gqa": [{"tokens": 1}, {"tokens": 3}],
    "swiglu_h14336": [{"rows": 1}, {"rows": 2}],
}
PRECISE = {"float32": torch.float64, "bfloat16": torch.float32}


def problem_named(name: str) -> Problem:
    return load_problem(STARTER / name)


def outputs_of(problem: Problem, inputs: list[Any], *, precise: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the outputs of the reference; with `precise`, it runs in float64."""
    namespace: dict[str, Any] = {}
    reference = problem.definition.reference
    if precise:
        reference = reference.replace("torch.float32", "torch.float64").replace("torch.bfloat16", "torch.float64")
        inputs = [value.double() if isinstance(value, torch.Tensor) else value for value in inputs]
    exec(reference, namespace)
    outputs = namespace["run"](*inputs)
    return outputs if isinstance(outputs, tuple) else (outputs,)


def inputs_of(problem: Problem, workload: Workload, seed: int, scale: float = 1.0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    sizes = problem.sizes(workload)
    inputs: list[Any] = []
    for name, spec in problem.definition.inputs.items():
        source = workload.inputs[name]
        if isinstance(source, ScalarInput):
            inputs.append(source.value)
            continue
        values = torch.randn(problem.shape(spec, sizes), generator=generator)
        values = 1 + values / 4 if name == "weight" and len(values.shape) == 1 else values * scale
        inputs.append(values.to(getattr(torch, spec.dtype)))
    return inputs


class Compiled:
    """A C++ solution, called as the runner calls it; `shift` moves its outputs off their alignment by elements."""

    def __init__(self, problem: Problem, solution: Solution, cache: Path) -> None:
        built = build_cpp(problem, solution, cache_dir=cache, sandbox="bubblewrap")
        self.problem = problem
        self.function = getattr(ctypes.CDLL(str(built.path)), solution.spec.function)

    def __call__(self, workload: Workload, inputs: list[Any], *, shift: int = 0) -> list[torch.Tensor]:
        definition, sizes = self.problem.definition, self.problem.sizes(workload)
        outputs, guarded = [], []
        for spec in definition.outputs.values():
            shape = self.problem.shape(spec, sizes)
            count = math.prod(shape)
            whole = torch.full((count + 64,), math.nan, dtype=getattr(torch, spec.dtype))
            outputs.append(whole[shift : shift + count].view(shape))
            guarded.append(torch.cat((whole[:shift], whole[shift + count :])))
        values = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_double(value)
            for value in inputs
        ]
        axes = [size for name, size in sizes.items() if not isinstance(definition.axes[name], ConstAxis)]
        pointers = [ctypes.c_void_p(output.data_ptr()) for output in outputs]
        self.function(*values, *pointers, *map(ctypes.c_int64, axes))
        assert all(bool(guard.isnan().all()) for guard in guarded), "written past the end of an output"
        return outputs


def assert_right(problem: Problem, workload: Workload, inputs: list[Any], *outputs: list[torch.Tensor]) -> None:
    """Assert an error within the workload's tolerance, and at most 3x the reference's own error against float64."""
    tolerance = workload.tolerance
    usual, exact = outputs_of(problem, inputs), outputs_of(problem, inputs, precise=True)
    for actual, expected, true in (
        values for outputs_of_call in outputs for values in zip(outputs_of_call, usual, exact, strict=True)
    ):
        assert torch.isfinite(actual).all()
        difference = (actual.float() - expected.float()).abs()
        matched = difference <= tolerance.max_atol + tolerance.max_rtol * expected.float().abs()
        assert matched.float().mean().item() >= tolerance.required_matched_ratio
        error, honest = ((values_of_side.double() - true).abs() for values_of_side in (actual, expected))
        floor = torch.finfo(actual.dtype).eps * true.abs().mean().item()
        assert error.max().item() <= 3 * honest.max().item() + floor
        assert error.mean().item() <= 3 * honest.mean().item() + floor


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Use one thread: two test processes with several busy-waiting threads each are slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_there_are_six() -> None:
    assert tuple(sorted(path.name for path in STARTER.iterdir() if path.is_dir())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_problem_is_whole(name: str) -> None:
    inspection = inspect_problem(STARTER / name)
    assert inspection.errors == ()
    assert inspection.warnings == ()
    assert check_all_solutions(inspection) == []
    problem = inspection.problem
    assert problem is not None
    assert problem.definition.name == name
    assert problem.definition.description
    assert problem.definition.hf_id
    assert (STARTER / name / "README.md").read_text().startswith(f"# {name}\n")
    assert len({workload.uuid for workload in problem.workloads}) == len(problem.workloads) == 6
    sizes = [total_bytes(problem, workload) for workload in problem.workloads]
    assert sizes == sorted(sizes)
    assert 0.2e6 < sizes[0] < 0.5e6
    assert 3.5e6 < sizes[-1] < 4.3e6


def total_bytes(problem: Problem, workload: Workload) -> int:
    sizes = problem.sizes(workload)
    tensors = [*problem.definition.inputs.values(), *problem.definition.outputs.values()]
    return sum(problem.nbytes(spec, sizes) for spec in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_gives_the_declared_outputs(name: str) -> None:
    problem = problem_named(name)
    workload = problem.workloads[0]
    sizes = problem.sizes(workload)
    outputs = outputs_of(problem, inputs_of(problem, workload, seed=0))
    declared = problem.definition.outputs.values()
    assert [tuple(output.shape) for output in outputs] == [problem.shape(spec, sizes) for spec in declared]
    assert [str(output.dtype) for output in outputs] == [f"torch.{spec.dtype}" for spec in declared]


def variants(solution: Solution) -> dict[str, Solution]:
    """Return the solution unchanged, with each parameter at the end of its range, and for a machine without AVX."""
    last: dict[str, ParamValue] = {name: values[-1] for name, values in solution.spec.tune.items()}
    tuned = solution.spec.model_copy(update={"params": {**solution.spec.params, **last}})
    plain_compile = tuned.compile.model_copy(update={"flags": ("-march=x86-64",)})
    plain = tuned.model_copy(update={"compile": plain_compile})
    return {
        "default": solution,
        "tuned": solution.model_copy(update={"spec": tuned}),
        "plain": solution.model_copy(update={"spec": plain}),
    }


def test_what_may_be_tuned_is_a_search_of_8_to_48_that_holds_the_default() -> None:
    for name in NAMES:
        spec = load_solution(STARTER / name / "solutions" / "cpu").spec
        assert set(spec.tune) == set(spec.params)
        assert 8 <= math.prod(len(values) for values in spec.tune.values()) <= 48
        assert all(spec.params[param] in values for param, values in spec.tune.items())
        assert spec.notes


@pytest.mark.parametrize(
    "variant", ["default", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tuned", "plain"))]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_solution_agrees_with_the_reference(name: str, variant: str, tmp_path: Path) -> None:
    problem = problem_named(name)
    solution = variants(load_solution(STARTER / name / "solutions" / "cpu"))[variant]
    compiled = Compiled(problem, solution, tmp_path)
    largest = [problem.workloads[-1].axes] if variant == "default" else []
    for seed, axes in enumerate([problem.workloads[0].axes, *largest, *AWKWARD[name]]):
        workload = problem.workloads[0].model_copy(update={"axes": axes})
        inputs = inputs_of(problem, workload, seed)
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        outputs = compiled(workload, inputs)
        for value_before, value in zip(before, inputs, strict=True):
            assert torch.equal(value_before, value) if isinstance(value, torch.Tensor) else value_before == value
        assert_right(problem, workload, inputs, outputs, compiled(workload, inputs, shift=2))
    small = problem.workloads[0].model_copy(update={"axes": AWKWARD[name][-1]})
    for scale in (30.0, 1e-3):
        inputs = inputs_of(problem, small, seed=9, scale=scale)
        assert_right(problem, small, inputs, compiled(small, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_those_of_a_memory_bound_kernel(name: str) -> None:
    problem = problem_named(name)
    machine = hardware("h200")
    for workload in (problem.workloads[0], problem.workloads[-1]):
        bounds_by_workload = bounds(problem, workload, machine)
        assert bounds_by_workload.bytes == total_bytes(problem, workload)
        assert bounds_by_workload.limited_by == "memory"
        assert bounds_by_workload.sol_us == pytest.approx(bounds_by_workload.bytes / 4.8e6)
        assert bounds_by_workload.sol_us >= bounds_by_workload.floor_us
        assert bounds_by_workload.flops > 0
