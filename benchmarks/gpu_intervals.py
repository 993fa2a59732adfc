"""Measure the coverage of the GPU judge's intervals. A file stores every evaluation, so that a run can be resumed.

    python -m benchmarks.gpu_intervals PART[,PART...] --file FILE [--device DEVICE ...] [--count N] [--seconds S]
        [--shard I/N] [--cases GLOB]

Parts:

- sealed, recorded, cuda_cpp: a solution against itself as the problem's baseline, in new processes each time;
- sealed14, recorded14: the same with 14 workloads, whose batches have fewer calls;
- eager: the reference as a candidate against the eager reference;
- references: each shipped problem's reference as a candidate, on one workload: the largest of at most 32 MiB of inputs
  and outputs;
- repeated-sealed, repeated-bounded: one candidate several times, the range of its speed-ups;
- sources: distinct Triton sources that no cache contains, seconds of each evaluation.

On a host with several GPUs `--device cuda:0 --device cuda:1 ...` starts a judge on each; every judge takes the next
evaluation when it is free. Shards are for several hosts: each has its own file.

An A/A part prints how many intervals contain 1, the mean log ratio with its standard error, and the median half-width.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import yaml
from tabulate import tabulate

from benchmarks.gpu import SOURCE, TRITON, problem
from benchmarks.measured_rows import MeasuredRow, append_row, read_rows
from benchmarks.requests import evaluation_request
from harness.formats.problems import load_problem
from harness.judge.input_data.layout import layout_of
from harness.judge.version import judge_version
from harness.model.judging import JudgeAnswer, WorkloadResult
from harness.workspace.blocking_judge import JudgeProcess, judge_process

PROBLEMS = Path(__file__).parents[1] / "problems"
GEMM = PROBLEMS / "gemm" / "bf16_n4096_k4096"
_GEMM_ROWS = (2048, 4096)
_EACH_ALONE = {"sealed": (2048, 4096, 8192, 16384), "recorded": (4096, 8192, 16384, 32768), "cuda_cpp": _GEMM_ROWS}
SIZES = {part: [(rows,) for rows in sizes] for part, sizes in _EACH_ALONE.items()} | {
    "sealed14": [tuple(range(2048, 16384, 1024))],
    "recorded14": [tuple(range(4096, 32768, 2048))],
}
"""Rows of the workloads of each problem: of the RMS norm (14 to 120 us on an H200), and of the matrix product
(150 to 300 us)."""
HALF_WIDTHS = {"sealed": 0.002, "recorded": 0.002, "cuda_cpp": 0.005}
REFERENCE_BYTES = 32 << 20
_LIVE_REFERENCES = 4
"""Number of copies of a problem. It exceeds the references that a judge keeps running, so that each evaluation starts
a new one."""
GEMM_CPP = """
#include <torch/extension.h>

torch::Tensor run(torch::Tensor x, torch::Tensor weight) { return torch::matmul(x, weight.t()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


@dataclass(frozen=True)
class Trial:
    """One planned evaluation."""

    case: str
    problem: Path
    solution: Path
    variant: str
    half_width: float
    max_judge_s: float = 100.0
    """Time limit in seconds; timing uses 4 % of it."""


@dataclass(frozen=True)
class Plan:
    """The file of results, the number of evaluations of each part, and the directory of the run."""

    file: Path
    root: Path
    count: int
    until: float
    """time.monotonic after which no evaluation begins."""
    cases: str = "*"
    """Only trials whose case matches."""
    shard: tuple[int, int] = (1, 1)
    """Number of this shard, from 1, and number of shards; it selects the references that are judged here."""

    def rows(self, part: str) -> list[MeasuredRow]:
        """Return the rows of a part."""
        return read_rows(self.file, _like(part))


def _like(part: str) -> MeasuredRow:
    version = judge_version()
    return MeasuredRow(part=part, case="", judge_version=version, busy=0, workloads=1, verdict="", judge_s=0.0)


def _solution(directory: Path, source: str, name: str, **spec: object) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(source)
    (directory / "solution.yaml").write_text(yaml.safe_dump({"entry": f"{name}::run", **spec}))
    return directory


def _gemm(root: Path, rows: int, copy: int = 0) -> Path:
    """Write the matrix product with one workload and return its directory."""
    directory = root / f"copy{copy}" / f"gemm_{rows}"
    directory.mkdir(parents=True)
    definition = json.loads((GEMM / "definition.json").read_text())
    (directory / "definition.json").write_text(json.dumps({**definition, "name": f"gemm_{rows}_{copy}"}))
    line = json.loads((GEMM / "workload.jsonl").read_text().splitlines()[-1])
    (directory / "workload.jsonl").write_text(json.dumps({**line, "axes": {"m": rows}}) + "\n")
    return directory


UPDATING = """

def solve(*arguments):
    inputs, outputs = list(arguments[:{inputs}]), dict(zip({outputs}, arguments[{inputs}:]))
    for name, position in {updates}.items():
        inputs[position] = outputs[name]  # which has the content of the input
    returned = run(*inputs)
    if not isinstance(returned, dict):
        returned = [] if returned is None else returned if isinstance(returned, (tuple, list)) else [returned]
        names = [name for name in outputs if name not in {updates}] if len(returned) < len(outputs) else outputs
        returned = dict(zip(names, returned, strict=True))
    for name, value in returned.items():
        if value.data_ptr() != outputs[name].data_ptr():
            outputs[name].copy_(value)
"""
"""Function of a solution whose reference updates inputs in place; `inputs` is their number."""


def eager_solution(directory: Path, problem_dir: Path) -> Path:
    """Write the reference of a problem as a solution, and return its directory.

    Args:
        directory: of the solution.
        problem_dir: the problem's directory.
    """
    definition = json.loads((problem_dir / "definition.json").read_text())
    inputs, outputs = list(definition["inputs"]), definition["outputs"]
    updates = {name: inputs.index(spec["x_updates"]) for name, spec in outputs.items() if "x_updates" in spec}
    if not updates:
        reference = definition["reference"]
        return _solution(directory, reference, "kernel.py", language="pytorch", destination_passing=False)
    source = definition["reference"] + UPDATING.format(inputs=len(inputs), outputs=list(outputs), updates=updates)
    solution = _solution(directory, source, "kernel.py", language="pytorch")
    spec = yaml.safe_load((solution / "solution.yaml").read_text())
    (solution / "solution.yaml").write_text(yaml.safe_dump({**spec, "entry": "kernel.py::solve"}))
    return solution


def _against_itself(part: str, plan: Plan) -> list[Trial]:
    """Return one trial of each size."""
    trials = []
    kind = part.removesuffix("14")
    for rows in SIZES[part]:
        case = str(rows[0]) if len(rows) == 1 else f"{rows[0]} to {rows[-1]}"
        solution = plan.root / part / f"solution{rows[0]}"
        if kind == "cuda_cpp":
            directory = _gemm(plan.root / part, rows[0])
            spec = {"language": "cuda_cpp", "binding": "torch", "destination_passing": False}
            _solution(solution, GEMM_CPP, "main.cpp", **spec)
        else:
            directory = problem(plan.root / part, rows)
            if kind == "sealed":
                shutil.copytree(SOURCE / "solutions" / "h200", solution)
            else:
                _solution(solution, TRITON, "kernel.py", language="triton")
        shutil.copytree(solution, directory / "baseline")
        trials.append(Trial(case, directory, solution, "baseline", HALF_WIDTHS[kind]))
    return trials


def _eager(plan: Plan) -> list[Trial]:
    places = [_gemm(plan.root / "eager", rows, copy) for copy in range(_LIVE_REFERENCES) for rows in _GEMM_ROWS]
    return [
        Trial(
            directory.name,
            directory,
            eager_solution(directory.parent / f"solution_{directory.name}", directory),
            "eager",
            0.005,
        )
        for directory in places
    ]


def _references(plan: Plan) -> list[Trial]:
    """Return one trial of each problem: its largest workload of at most `REFERENCE_BYTES`, else its smallest."""
    trials = []
    for source in sorted(path.parent for path in PROBLEMS.glob("*/*/definition.json")):
        directory = plan.root / "references" / source.parent.name / source.name
        shutil.copytree(source, directory, ignore=shutil.ignore_patterns("solutions", "baseline"))
        lines = (directory / "workload.jsonl").read_text().splitlines()
        loaded = load_problem(source)
        sizes = [layout_of(loaded, workload).io_bytes for workload in loaded.workloads]
        chosen = max((size for size in sizes if size <= REFERENCE_BYTES), default=min(sizes))
        (directory / "workload.jsonl").write_text(lines[sizes.index(chosen)] + "\n")
        solution = eager_solution(plan.root / "references" / "solutions" / source.name, directory)
        trials.append(Trial("/".join(source.parts[-2:]), directory, solution, "eager", 0.02, max_judge_s=40.0))
    return trials


def _repeated(part: str, plan: Plan) -> list[Trial]:
    if part == "repeated-bounded":
        directory = _gemm(plan.root / part, 4096)
        return [Trial("4096", directory, eager_solution(plan.root / part / "solution", directory), "eager", 0.005)]
    directory = problem(plan.root / part, (8192,))
    return [Trial("8192", directory, SOURCE / "solutions" / "h200", "eager", 0.002)]


def _sources(plan: Plan) -> list[Trial]:
    directory = problem(plan.root / "sources", (64, 512, 4096))
    salt = secrets.token_hex(4)
    return [
        Trial(
            "three workloads",
            directory,
            _solution(
                plan.root / "sources" / f"solution{number}",
                TRITON.replace("def rms(", f"def rms_{salt}_{number}(").replace("rms[(", f"rms_{salt}_{number}[("),
                "kernel.py",
                language="triton",
            ),
            "eager",
            0.005,
        )
        for number in range(plan.count)
    ]


def _ask(judge: JudgeProcess, trial: Trial) -> tuple[JudgeAnswer, float]:
    request = evaluation_request(
        trial.problem, trial.solution, trial.variant, half_width=trial.half_width, max_judge_s=trial.max_judge_s
    )
    begin = time.perf_counter()
    answer = judge.ask(request, lambda _: None)
    return answer, time.perf_counter() - begin


def _row(part: str, trial: Trial, answer: JudgeAnswer, seconds: float) -> MeasuredRow:
    interval = answer.summary.speedup_ci95 or (None, None)
    first = answer.workloads[0]
    return _like(part).model_copy(
        update={
            "case": trial.case, "verdict": str(answer.verdict), "reason": answer.reason, "judge_s": seconds,
            "speedup": answer.summary.speedup, "ci95_low": interval[0], "ci95_high": interval[1],
            "latency_us": first.latency_us, "process_error": first.process_error,
            "placement_error": first.placement_error, "block_error": _block_error(first),
            "trust": str(answer.trust) if answer.trust else None,
        }
    )  # fmt: skip


def _block_error(workload: WorkloadResult) -> float | None:
    count = len(workload.log_ratios)
    return statistics.stdev(workload.log_ratios) / math.sqrt(count) if count > 1 else None


PARTS: Mapping[str, Callable[[Plan], list[Trial]]] = {
    "sealed": lambda plan: _against_itself("sealed", plan),
    "recorded": lambda plan: _against_itself("recorded", plan),
    "sealed14": lambda plan: _against_itself("sealed14", plan),
    "recorded14": lambda plan: _against_itself("recorded14", plan),
    "cuda_cpp": lambda plan: _against_itself("cuda_cpp", plan),
    "eager": _eager,
    "references": _references,
    "repeated-sealed": lambda plan: _repeated("repeated-sealed", plan),
    "repeated-bounded": lambda plan: _repeated("repeated-bounded", plan),
    "sources": _sources,
}
_REPEATED = 10


def missing_trials(part: str, trials: Sequence[Trial], plan: Plan) -> list[Trial]:
    """Return the trials that the file lacks: each trial once for `references`, else `plan.count` trials in turn.

    Args:
        part: name of the part.
        trials: all trials of the part.
        plan: number of evaluations, shard and file.
    """
    trials = [trial for trial in trials if fnmatch.fnmatch(trial.case, plan.cases)]
    cases = [row.case for row in plan.rows(part)]
    if part == "references":
        number, shards = plan.shard
        return [trial for trial in trials[number - 1 :: shards] if trial.case not in cases]
    target_count = _REPEATED if part.startswith("repeated") else plan.count
    return [trials[number % len(trials)] for number in range(len(cases), target_count)] if trials else []


OpenJudge = Callable[[str], AbstractContextManager[JudgeProcess]]
"""Starts a judge on a device."""


def measure(open_judge: OpenJudge, devices: Sequence[str], parts: Sequence[str], plan: Plan) -> None:
    """Run the evaluations that the file lacks until the time limit, and append their results.

    Args:
        open_judge: starts a judge.
        devices: each has a judge of its own, which takes the next evaluation when it is free.
        parts: names of the parts, in the order of their evaluations.
        plan: number of evaluations, time limit and file.
    """
    trials = iter([(part, trial) for part in parts for trial in missing_trials(part, PARTS[part](plan), plan)])
    lock = threading.Lock()

    def run(device: str) -> None:
        with open_judge(device) as judge:
            while time.monotonic() < plan.until:
                with lock:
                    part, trial = next(trials, (None, None))
                if part is None or trial is None:
                    return
                answer, seconds = _ask(judge, trial)
                with lock:
                    _report(_row(part, trial, answer, seconds), plan.file)

    with ThreadPoolExecutor(len(devices)) as threads:
        for future in [threads.submit(run, device) for device in devices]:
            future.result()


def _report(row: MeasuredRow, file: Path) -> None:
    append_row(file, row)
    interval = f"{row.speedup:.4f} [{row.ci95_low:.4f}, {row.ci95_high:.4f}]" if row.ci95_low else row.reason
    sys.stdout.write(
        f"{row.part} {row.case} {row.verdict} {row.latency_us} us {interval} {row.trust} {row.judge_s:.1f} s\n"
    )
    sys.stdout.flush()


def summary(part: str, rows: list[MeasuredRow]) -> Iterator[tuple[str, str]]:
    """Yield the lines of the table.

    Args:
        part: name of the part.
        rows: rows of the part.
    """
    timed = [(row.speedup, row.ci95_low, row.ci95_high) for row in rows]
    intervals = [
        (speedup, low_end, high_end) for speedup, low_end, high_end in timed if speedup and low_end and high_end
    ]
    yield f"{part}: evaluations, PASSED", f"{len(rows)}, {sum(row.verdict == 'PASSED' for row in rows)}"
    yield f"{part}: seconds of an evaluation", f"median {statistics.median(row.judge_s for row in rows):.2f}"
    if len(intervals) < 2:
        return
    logs = [math.log(speedup) for speedup, _, _ in intervals]
    if part.startswith("repeated"):
        yield f"{part}: range of speed-ups", f"{math.exp(max(logs) - min(logs)) - 1:.2%}"
        return
    contain = sum(ci95_low <= 1 <= ci95_high for _, ci95_low, ci95_high in intervals)
    half = statistics.median(math.log(ci95_high / ci95_low) / 2 for _, ci95_low, ci95_high in intervals)
    error = statistics.stdev(logs) / math.sqrt(len(logs))
    yield f"{part}: intervals that contain 1", f"{contain} of {len(intervals)}"
    yield f"{part}: mean log ratio", f"{statistics.fmean(logs):+.3%}, standard error {error:.3%}"
    yield f"{part}: median half-width", f"{half:.2%}"
    beyond = max(max(ci95_low / 1 - 1, 1 - ci95_high, 0.0) for _, ci95_low, ci95_high in intervals)
    yield f"{part}: farthest that an interval excludes 1", f"{beyond:.2%}"


def _shard(text: str) -> tuple[int, int]:
    number, _, shards = text.partition("/")
    if not 1 <= int(number) <= int(shards):
        raise ValueError(text)
    return int(number), int(shards)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=lambda text: text.split(","))
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--device", action="append", help="cuda:0 ...; may be given often; the first GPU by default")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=420.0, help="begin no evaluation later than this")
    parser.add_argument("--cases", default="*", help="only trials whose case matches")
    parser.add_argument("--shard", type=_shard, default=(1, 1), help="I/N: every Nth reference, from the Ith")
    options = parser.parse_args()
    unknown_parts = set(options.parts) - set(PARTS)
    if unknown_parts:
        parser.error(f"no such part: {', '.join(sorted(unknown_parts))}. Parts: {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="harness-bench-") as directory:
        root = Path(directory)
        os.environ.setdefault("HARNESS_LOCK_DIR", str(root / "locks"))
        end = time.monotonic() + options.seconds
        plan = Plan(options.file, root / "work", options.count, end, options.cases, options.shard)
        measure(
            lambda device: judge_process(device, root / "cache", "bubblewrap"),
            options.device or ["cuda"],
            options.parts,
            plan,
        )
    lines = [line for part in options.parts if (rows := plan.rows(part)) for line in summary(part, rows)]
    sys.stdout.write(tabulate(lines) + "\n")


if __name__ == "__main__":
    main()
