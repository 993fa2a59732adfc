"""Check the shipped solutions, and time them against the reference and the problem's baseline.

Run on a CUDA machine, with `suite/name` or `suite` of problems (all by default):

    python -m benchmarks.solutions starter moe/topk_routing --json results.json

Every workload gets new random inputs, which are drawn like the judge's. Outputs are poisoned before the call and
compared by the judge's rules. The trusted launcher times sealed CUDA: device events around the plan, a flushed L2, the
pair's overhead subtracted. Other solutions are timed by events around the call with a flushed L2. The queue is held
back so that launch overhead is not measured, unless the code itself waits for the device. Times are medians.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.judge.build.cuda_builder import device_limits
from harness.judge.build.toolkit import find_toolkit
from harness.judge.correctness import Comparison, compare_all
from harness.judge.devices.event_overhead import event_overhead_us
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.reference import Reference, by_name, load_reference
from harness.model.axes import ConstAxis
from harness.model.launches import resolve
from harness.model.plan import Launch, WorkspaceSpec
from harness.model.problem import CustomInput, Problem, Workload
from harness.model.solution import Solution
from harness.runner import driver, nvrtc
from harness.runner.launcher import SealedWorkload, TrustedKernels
from harness.runner.wire import TRUSTED_KERNELS
from harness.sol.problem_tensors import torch_dtype

ROOT = Path(__file__).parents[1]
POISON = 0xA5
SLOTS_BYTES = 6 << 30
"""Maximum memory of the sets of inputs and outputs, of which there are at most eight."""
SPIN_CYCLES = 1_500_000
"""Nearly a millisecond, in which the device spins while the host enqueues a call's launches."""
Run = Callable[..., Any]


@dataclass(frozen=True)
class Row:
    """Result of one workload."""

    problem: str
    axes: dict[str, int]
    language: str
    verdict: str
    matched: float
    rms_error: float
    latency_us: float
    baseline_us: float | None
    eager_us: float
    compiled_us: float | None

    @property
    def speedup(self) -> float:
        """Speed-up over the fastest of baseline, eager reference and compiled reference."""
        baselines_us = [t for t in (self.baseline_us, self.eager_us, self.compiled_us) if t is not None]
        return min(baselines_us) / self.latency_us


class Bench:
    """The device, its trusted kernels, and the event overhead that is subtracted from their readings."""

    def __init__(self, calls: int) -> None:
        torch.zeros(1, device="cuda")
        self.calls = calls
        cubin, _ = compile_cuda(Path(nvrtc.__file__).with_name("trusted.cu"), list(TRUSTED_KERNELS), [])
        self.trusted = TrustedKernels(cubin)
        self.overhead_us = event_overhead_us(self.trusted, self.trusted.short_kernels_us())

    def time(self, call: Callable[[], object]) -> float:
        """Return the median microseconds of a call after two warm-up calls; long calls are repeated less often."""
        call()
        call()
        pairs = [self._once(call) for _ in range(3)]
        if statistics.median(pairs) < 20_000:
            pairs = [self._once(call) for _ in range(self.calls)]
        return statistics.median(pairs) - self.overhead_us

    def _once(self, call: Callable[[], object]) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call] # noqa: SLF001 - torch's own benchmarks use it
        self.trusted.displace.run()
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(stop)) * 1e3


def compile_cuda(source: Path, kernels: list[str], macros: list[str]) -> tuple[bytes, dict[str, str]]:
    """Return the cubin for the current device, and the kernels' symbols.

    Args:
        source: the CUDA source file.
        kernels: names of the kernels.
        macros: `-D` options.
    """
    toolkit = find_toolkit()
    major, minor = torch.cuda.get_device_capability()
    request = {
        "library": str(toolkit.library),
        "includes": [str(path) for path in toolkit.includes],
        "source": str(source),
        "architecture": f"sm_{major}{minor}a",
        "options": ["-std=c++17", "-default-device", *macros],
        "kernels": kernels,
    }
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        (out / "request.json").write_text(json.dumps(request))
        command = [sys.executable, nvrtc.__file__, str(out / "request.json"), name]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit((out / "compile.log").read_text())
        return (out / "kernel.cubin").read_bytes(), json.loads((out / "names.json").read_text())["symbols"]


def draw(problem: Problem, reference: Reference, source: InputSource, workload: Workload) -> dict[str, Any]:
    """Return new inputs on the device. Custom inputs are drawn there from the same distribution, which is faster.

    Args:
        problem: the problem.
        reference: the problem's reference.
        source: source of inputs that are not custom.
        workload: the workload.
    """
    if (
        any(isinstance(input_source, CustomInput) for input_source in workload.inputs.values())
        and reference.custom_inputs
    ):
        tensors: dict[str, Any] = reference.custom_inputs(problem.sizes(workload), torch.device("cuda"))
        return {name: tensors[name].contiguous() for name in problem.definition.inputs}
    drawn = source.draw(workload).items()
    return {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in drawn}


def outputs_of(problem: Problem, workload: Workload) -> dict[str, torch.Tensor]:
    """Return poisoned outputs on the device.

    Args:
        problem: the problem.
        workload: the workload.
    """
    tensors = {}
    for name, spec in problem.definition.outputs.items():
        shape = problem.shape(spec, problem.sizes(workload))
        tensors[name] = torch.empty(shape, dtype=torch_dtype(spec.dtype), device="cuda")
        tensors[name].view(torch.uint8).fill_(POISON)
    return tensors


def entry_point(solution: Solution) -> Run:
    """Return the function of a Python solution with its params bound."""
    spec = importlib.util.spec_from_file_location(
        f"solution_{abs(hash(solution.directory))}", solution.directory / solution.spec.file
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"{solution.directory}: cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    function, params = getattr(module, solution.spec.function), dict(solution.spec.params)
    return lambda *arguments: function(*arguments, **params)


def python_call(solution: Solution, run: Run, inputs: Mapping[str, Any], outputs: dict[str, torch.Tensor]) -> Run:
    """Return a call of a solution, which passes the outputs if the solution requires that.

    Args:
        solution: the solution.
        run: the solution's function.
        inputs: inputs by name.
        outputs: outputs by name.
    """
    if solution.spec.destination_passing:
        return lambda: run(*inputs.values(), *outputs.values())
    return lambda: run(*inputs.values())


class Sealed:
    """One workload of a sealed solution with its sets of inputs and outputs."""

    def __init__(self, bench: Bench, problem: Problem, solution: Solution, workload: Workload) -> None:
        spec, definition = solution.spec, problem.definition
        launches = tuple(Launch.model_validate(launch) for launch in spec.launch)
        spaces = {name: WorkspaceSpec.model_validate(space) for name, space in spec.workspaces.items()}
        constants = {name: a.value for name, a in definition.axes.items() if isinstance(a, ConstAxis)}
        macros = [f"-DAXIS_{name}={value}" for name, value in constants.items()]
        macros += [f"-D{name}={value}" for name, value in spec.params.items()]
        self._file = solution.directory / spec.file
        cubin, symbols = compile_cuda(self._file, sorted({launch.kernel for launch in launches}), macros)
        module = driver.load(cubin)
        self._functions = {name: driver.kernel(module, symbol) for name, symbol in symbols.items()}
        self._bench, self._problem, self._workload = bench, problem, workload
        self._layout = layout_of(problem, workload)
        a_set = self._layout.input_stride + self._layout.output_stride
        self.slots = max(2, min(8, SLOTS_BYTES // a_set))
        self._inputs = torch.empty(self.slots * self._layout.input_stride, dtype=torch.uint8, device="cuda")
        self._outputs = torch.full((self.slots * self._layout.output_stride,), POISON, dtype=torch.uint8, device="cuda")
        self._plan = (launches, spaces, dict(spec.params))

    def put(self, slot: int, inputs: Mapping[str, Any]) -> None:
        """Copy a set of inputs to a slot.

        Args:
            slot: number of the slot.
            inputs: inputs by name.
        """
        stride = self._layout.input_stride
        plain = torch.zeros(stride, dtype=torch.uint8, device="cuda")
        for field in self._layout.inputs:
            value = inputs[field.name]
            if not isinstance(value, torch.Tensor):
                value = torch.tensor(value, dtype=field.torch_dtype, device="cuda")
            plain[field.offset : field.offset + field.bytes] = value.reshape(-1).view(torch.uint8)
        self._inputs[slot * stride : (slot + 1) * stride] = plain

    def run(self, inputs: Mapping[str, Any], rounds: int) -> float:
        """Call every slot and return the median microseconds without the events' overhead.

        Args:
            inputs: inputs by name, for the values of scalars.
            rounds: calls of each slot.
        """
        launches, spaces, params = self._plan
        scalars = {name: value for name, value in inputs.items() if not isinstance(value, torch.Tensor)}
        sizes = self._problem.sizes(self._workload)
        plan = resolve(launches, spaces, self._problem.definition, sizes, scalars, params, device_limits())
        layout = self._layout

        def addresses(slot: int) -> dict[str, int]:
            inputs = self._inputs.data_ptr() + slot * layout.input_stride
            outputs = self._outputs.data_ptr() + slot * layout.output_stride
            of_inputs = {f"input:{field.name}": inputs + field.offset for field in layout.inputs}
            return of_inputs | {f"output:{field.name}": outputs + field.offset for field in layout.outputs}

        placements = [addresses(slot) for slot in range(self.slots)]
        work = SealedWorkload(self._bench.trusted, self._functions, plan.as_json(), placements)
        readings: list[float] = []
        for _ in range(rounds + 1):
            readings = readings[: self.slots * rounds] + [work.run(slot) for slot in range(self.slots)]
        return statistics.median(readings[self.slots :]) - self._bench.overhead_us

    def output(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's outputs by name."""
        stride, outputs = self._layout.output_stride, {}
        for field in self._layout.outputs:
            begin = slot * stride + field.offset
            outputs[field.name] = self._outputs[begin : begin + field.bytes].view(field.torch_dtype).view(field.shape)
        return outputs


def worst(results: list[Comparison]) -> tuple[str, float, float]:
    """Return the verdict with its reason, the smallest matched ratio and the largest error."""
    failed = next((r for r in results if not r.passed), None)
    verdict = f"{failed.verdict.value}: {failed.reason}" if failed else "PASSED"
    return verdict, min(r.matched for r in results), max(r.rms_error for r in results)


def check(reference: Reference, inputs: Mapping[str, Any], actual: Any, workload: Workload) -> Comparison:  # noqa: ANN401
    """Return the judge's comparison of one call.

    Args:
        reference: the problem's reference.
        inputs: inputs of the call by name.
        actual: the result of the call.
        workload: the workload, for its tolerance.
    """
    expected = {name: value.cpu() for name, value in reference.outputs(list(inputs.values())).items()}
    outputs = {
        name: value.cpu() for name, value in by_name(actual, reference.definition, list(inputs.values())).items()
    }
    return compare_all(expected, outputs, workload.tolerance)


def measure(bench: Bench, problem: Problem, workload: Workload, solution: Solution, *, compiled: bool) -> Row:
    """Check and time one workload.

    Args:
        bench: the device.
        problem: the problem.
        workload: the workload.
        solution: the solution.
        compiled: also time `torch.compile` of the reference.
    """
    reference = load_reference(problem)
    source = InputSource(problem, reference=reference)
    inputs = draw(problem, reference, source, workload)
    results = []
    if solution.spec.language == "cuda":
        sealed = Sealed(bench, problem, solution, workload)
        sets = [inputs, draw(problem, reference, source, workload)]
        for slot in range(sealed.slots):
            sealed.put(slot, sets[slot % 2])
        latency = sealed.run(inputs, max(2, bench.calls // sealed.slots))
        results = [check(reference, sets[slot % 2], sealed.output(slot), workload) for slot in (0, sealed.slots - 1)]
        del sealed, sets
    else:
        run = entry_point(solution)
        for drawn in (draw(problem, reference, source, workload), inputs):
            outputs = outputs_of(problem, workload)
            returned = python_call(solution, run, drawn, outputs)()
            actual = outputs if solution.spec.destination_passing else returned
            results.append(check(reference, drawn, actual, workload))
        latency = bench.time(python_call(solution, run, inputs, outputs))
    verdict, matched, error = worst(results)
    eager = bench.time(lambda: reference.run(*inputs.values()))
    compiled_us = None
    if compiled:
        faster = torch.compile(reference.run)
        compiled_us = bench.time(lambda: faster(*inputs.values()))
    baseline = None
    if (problem.directory / "baseline").is_dir():
        baseline_solution = load_solution(problem.directory / "baseline")
        baseline = bench.time(
            python_call(baseline_solution, entry_point(baseline_solution), inputs, outputs_of(problem, workload))
        )
    return Row(
        problem.key, dict(workload.axes), solution.spec.language, verdict, matched, error,
        round(latency, 2), baseline and round(baseline, 2), round(eager, 2), compiled_us and round(compiled_us, 2),
    )  # fmt: skip


def with_params(solution: Solution, settings: list[str]) -> Solution:
    """Return the solution with other values of integer params.

    Args:
        solution: the solution.
        settings: texts `NAME=VALUE`; names that the solution lacks are ignored.
    """
    values = {name: int(value) for name, _, value in (setting.partition("=") for setting in settings)}
    params = {name: values.get(name, value) for name, value in solution.spec.params.items()}
    return solution.model_copy(update={"spec": solution.spec.model_copy(update={"params": params})})


def line(row: Row) -> str:
    """Return a row as text."""
    sizes = " ".join(f"{name}={size}" for name, size in row.axes.items())
    text = f"{row.problem:32s} {sizes:34s} {row.verdict:7s} {row.matched:.4f} {row.rms_error:.0e} {row.latency_us:8.2f}"
    return f"{text}  base {row.baseline_us} eager {row.eager_us} compiled {row.compiled_us}  x{row.speedup:.2f}"


def chosen(names: list[str], target: str) -> list[Path]:
    """Return the directories of problems that have a solution for a target.

    Args:
        names: `suite` or `suite/name`; empty for all problems.
        target: the target.
    """
    patterns = names or ["*"]
    directories = [
        path for name in patterns for path in sorted((ROOT / "problems").glob(name if "/" in name else f"{name}/*"))
    ]
    return [path for path in directories if (path / "solutions" / target / "solution.yaml").is_file()]


def main() -> None:
    """Check and time the solutions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", help="suite or suite/name; all by default")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--every", type=int, default=1, help="take every n-th workload, and the last")
    parser.add_argument("--compile", action="store_true", help="time torch.compile of the reference too")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other values for params")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    bench, rows = Bench(options.calls), []
    print(torch.cuda.get_device_name(), torch.__version__, f"pair overhead {bench.overhead_us:.2f} us")
    for directory in chosen(options.problems, options.target):
        problem = load_problem(directory)
        solution = with_params(load_solution(directory / "solutions" / options.target), options.set)
        last = len(problem.workloads) - 1
        for number, workload in enumerate(problem.workloads):
            if number % options.every and number != last:
                continue
            try:
                row = measure(bench, problem, workload, solution, compiled=options.compile)
            except (RuntimeError, ValueError, TypeError) as error:
                print(f"{problem.key:34s} {workload.axes} {type(error).__name__}: {str(error)[:600]}", flush=True)
                break
            rows.append(row)
            print(line(row), flush=True)
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps([vars(row) | {"speedup": round(row.speedup, 3)} for row in rows], indent=1))


if __name__ == "__main__":
    main()
