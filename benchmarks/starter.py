"""Compare the starter problems' solutions with PyTorch on one thread of a CPU, without a judge.

    python -m benchmarks.starter [--trials 12] [NAME ...]

Baseline: the faster of the eager reference and `torch.compile(dynamic=True)`, with outputs that torch allocates.
Candidate: the C++ solution through ctypes, with preallocated outputs. Inputs are cold: before each batch a buffer of
several times the cache is written, and each call of a batch has its own tensors. Batches of all sides alternate, so
that other processes disturb all sides equally. A figure is the median of its batches.

Trials are drawn from the values in `tune:` and ranked on two workloads. The best is then timed again on all six.
"""

# ruff: noqa: ANN401 - functions of problems and of C have no types

from __future__ import annotations

import argparse
import ctypes
import itertools
import math
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.model.axes import ConstAxis
from harness.model.problem import Problem, ScalarInput, Workload
from harness.model.solution import ParamValue, Solution

STARTER = Path(__file__).parent.parent / "problems" / "starter"
FLUSHED_BYTES = 96 * 2**20
BATCH_BYTES = 24 * 2**20

Call = Callable[[int], None]
Params = dict[str, ParamValue]
Set = tuple[list[Any], list[torch.Tensor], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="problems (default: all six)")
    parser.add_argument("--trials", type=int, default=12, help="combinations of parameters to try")
    parser.add_argument("--batches", type=int, default=25, help="batches a side, a workload")
    parser.add_argument("--core", type=int, default=0, help="the core all of it is pinned to")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as scratch, torch.inference_mode():
        for name in options.names or sorted(path.name for path in STARTER.iterdir()):
            rows += measure_problem(STARTER / name, Path(scratch), options.trials, options.batches)
    print(tabulate(rows, headers="keys", floatfmt=".2f"))


def measure_problem(directory: Path, scratch: Path, trials: int, batches: int) -> list[dict[str, Any]]:
    """Tune and time one problem's solution, and return the rows of the table.

    Args:
        directory: the problem's directory.
        scratch: directory of compiled libraries.
        trials: combinations of params to try.
        batches: batches of each side and workload.
    """
    problem = load_problem(directory)
    solution = load_solution(directory / "solutions" / "cpu")
    namespace: dict[str, Any] = {}
    exec(problem.definition.reference, namespace)
    sides: dict[str, Any] = {"eager": namespace["run"], "compile": torch.compile(namespace["run"], dynamic=True)}
    default = build(problem, solution, solution.spec.params, scratch)
    tried = {str(params): (params, build(problem, solution, params, scratch)) for params in drawn(solution, trials)}
    ranked: dict[str, float] = dict.fromkeys(tried, 0.0)
    for workload in (problem.workloads[1], problem.workloads[4]):
        times = time_sides(
            problem, workload, {}, {name: built for name, (_, built) in tried.items()}, max(5, batches // 3)
        )
        for name, took in times.items():
            ranked[name] += math.log(took)
    best, tuned = tried[min(ranked, key=lambda name: ranked[name])]
    rows: list[dict[str, Any]] = []
    for workload in problem.workloads:
        times = time_sides(problem, workload, sides, {"default": default, "tuned": tuned}, batches)
        baseline = min(times["eager"], times["compile"])
        rows.append({
            "problem": problem.key.partition("/")[2],
            "workload": " ".join(f"{axis}={size}" for axis, size in workload.axes.items()),
            "MB": nbytes(problem, workload) / 1e6,
            **{f"{side} us": took for side, took in times.items()},
            "default x": baseline / times["default"],
            "tuned x": baseline / times["tuned"],
        })  # fmt: skip
    total = {"problem": problem.key.partition("/")[2], "workload": " ".join(f"{k}={v}" for k, v in best.items())}
    means = {column: statistics.geometric_mean(row[column] for row in rows) for column in ("default x", "tuned x")}
    return [*rows, {**total, **means}]


def drawn(solution: Solution, trials: int) -> list[Params]:
    """Return different combinations of the values in `tune:`, the solution's own params first.

    Args:
        solution: the solution.
        trials: maximum number of further combinations.
    """
    tune = solution.spec.tune
    combinations = [
        {**solution.spec.params, **dict(zip(tune, values, strict=True))} for values in itertools.product(*tune.values())
    ]
    random.Random(0).shuffle(combinations)
    return [dict(solution.spec.params), *combinations[:trials]]


def build(problem: Problem, solution: Solution, params: Mapping[str, ParamValue], scratch: Path) -> Any:
    """Compile a solution like the judge, and return its function.

    Args:
        problem: the problem.
        solution: the solution.
        params: values of the solution's params.
        scratch: directory of the library.
    """
    axes = problem.definition.axes.items()
    macros = [f"-DAXIS_{name}={axis.value}" for name, axis in axes if isinstance(axis, ConstAxis)]
    macros += [f"-D{name}={value}" for name, value in params.items()]
    library = scratch / f"{len(list(scratch.iterdir()))}.so"
    flags = ["-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", *solution.spec.compile.flags]
    source = solution.directory / solution.spec.file
    subprocess.run(["c++", *flags, *macros, str(source), "-o", str(library)], check=True, timeout=120)
    return getattr(ctypes.CDLL(str(library)), solution.spec.function)


def time_sides(
    problem: Problem, workload: Workload, sides: Mapping[str, Any], built: Mapping[str, Any], batches: int
) -> dict[str, float]:
    """Return the median microseconds per call of each function.

    Args:
        problem: the problem.
        workload: the workload.
        sides: Python functions by name.
        built: C functions by name.
        batches: number of batches of each function.
    """
    count = max(4, min(40, BATCH_BYTES // nbytes(problem, workload)))
    sets = [make_set(problem, workload) for _ in range(count)]
    calls: dict[str, Call] = {name: python_call(run, sets) for name, run in sides.items()}
    calls |= {name: c_call(function, sets) for name, function in built.items()}
    flushed = torch.zeros(FLUSHED_BYTES // 4)
    for call in calls.values():  # compiles, and touches every page
        for position in range(count):
            call(position)
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(batches):
        random.shuffle(order)
        for name in order:
            flushed.add_(1)
            call = calls[name]
            start = time.perf_counter_ns()
            for position in range(count):
                call(position)
            times[name].append((time.perf_counter_ns() - start) / count / 1e3)
    return {name: statistics.median(took) for name, took in times.items()}


def python_call(run: Any, sets: list[Set]) -> Call:
    """Return a function that calls `run` with the inputs of a set.

    Args:
        run: a Python function.
        sets: inputs, outputs and axes.
    """
    inputs = [arguments for arguments, _, _ in sets]

    def call(position: int) -> None:
        run(*inputs[position])

    return call


def c_call(function: Any, sets: list[Set]) -> Call:
    """Return a function that calls a C function with a set.

    Args:
        function: a function of a library.
        sets: inputs, outputs and axes.
    """

    def argument(value: Any) -> Any:
        return ctypes.c_void_p(value.data_ptr()) if isinstance(value, torch.Tensor) else ctypes.c_double(value)

    arguments = [
        [*map(argument, values), *map(argument, outputs), *map(ctypes.c_int64, axes)] for values, outputs, axes in sets
    ]

    def call(position: int) -> None:
        function(*arguments[position])

    return call


def make_set(problem: Problem, workload: Workload) -> Set:
    """Return random inputs, poisoned outputs, and the sizes of the axes that are arguments of C functions.

    Args:
        problem: the problem.
        workload: the workload.
    """
    sizes = problem.sizes(workload)
    definition = problem.definition
    inputs: list[Any] = []
    for name, spec in definition.inputs.items():
        source = workload.inputs[name]
        if isinstance(source, ScalarInput):
            inputs.append(float(source.value))
        else:
            inputs.append(torch.randn(problem.shape(spec, sizes)).to(getattr(torch, spec.dtype)))
    outputs = [
        torch.full(problem.shape(spec, sizes), math.nan, dtype=getattr(torch, spec.dtype))
        for spec in definition.outputs.values()
    ]
    return inputs, outputs, [sizes[name] for name, axis in definition.axes.items() if not isinstance(axis, ConstAxis)]


def nbytes(problem: Problem, workload: Workload) -> int:
    """Return the bytes of a workload's inputs and outputs.

    Args:
        problem: the problem.
        workload: the workload.
    """
    sizes = problem.sizes(workload)
    tensors = [*problem.definition.inputs.values(), *problem.definition.outputs.values()]
    return sum(problem.nbytes(spec, sizes) for spec in tensors)


if __name__ == "__main__":
    main()
