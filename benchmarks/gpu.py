"""Measure the duration of judging on this machine's GPU and its repeatability: `make bench-gpu` prints the table.

    python -m benchmarks.gpu [--skip solutions,...] [--json FILE]

One judge process gets requests like those of the daemon. Times are from the request to the answer, with a warm judge
and a waiting runner. Run it on an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import yaml
from tabulate import tabulate

from benchmarks.cupti import agreement
from benchmarks.cycle import cycles, running
from benchmarks.requests import evaluation_request
from harness.cli.devices import gpu_target
from harness.git.repo import Repo
from harness.ledger.create_workspace import create_workspace
from harness.model.judging import JudgeAnswer
from harness.workspace.blocking_judge import JudgeProcess, judge_process

ROOT = Path(__file__).parents[1]
PROBLEMS = ROOT / "problems"
SOURCE = PROBLEMS / "starter" / "rmsnorm_h4096"
Row = tuple[str, str, str]
TRITON = """
import triton
import triton.language as tl

@triton.jit
def rms(x, w, y, N: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    v = tl.load(x + row * N + at).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(v * v) / N + 1e-5)
    tl.store(y + row * N + at, (v * r * tl.load(w + at).to(tl.float32)).to(tl.bfloat16))

def run(hidden_states, weight, output):
    rms[(hidden_states.shape[0],)](hidden_states, weight, output, 4096, num_warps=8)
"""
PYTORCH = """
import torch

def run(hidden_states, weight):
    return torch.nn.functional.rms_norm(hidden_states.float(), (4096,), weight.float(), 1e-5).to(torch.bfloat16)
"""


def problem(root: Path, rows: tuple[int, ...]) -> Path:
    """Write the starter's RMS norm with other workloads and return its directory.

    Args:
        root: directory of the run.
        rows: size of each workload.
    """
    directory = root / "bench" / f"rmsnorm_{'_'.join(map(str, rows))}"
    if not directory.is_dir():
        directory.mkdir(parents=True)
        shutil.copy(SOURCE / "definition.json", directory)
        line = json.loads((SOURCE / "workload.jsonl").read_text().splitlines()[0])
        lines = [json.dumps({**line, "uuid": f"rows{count}", "axes": {"rows": count}}) for count in rows]
        (directory / "workload.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def solution(root: Path, name: str, language: str, source: str, **spec: object) -> Path:
    """Write a Python solution and return its directory.

    Args:
        root: directory of the run.
        name: name of the solution.
        language: language of the solution.
        source: content of kernel.py.
        spec: further keys of solution.yaml.
    """
    directory = root / "solutions" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "kernel.py").write_text(source)
    (directory / "solution.yaml").write_text(yaml.safe_dump({"language": language, "entry": "kernel.py::run", **spec}))
    return directory


def fresh_cuda(root: Path, number: int) -> Path:
    """Write a copy of the starter's sealed solution with other compiled code, and return its directory.

    Args:
        root: directory of the run.
        number: number of the copy.
    """
    directory = root / "solutions" / f"cuda{number}-{os.getpid()}"
    shutil.copytree(SOURCE / "solutions" / "h200", directory)
    with (directory / "kernel.cu").open("a") as file:
        file.write(f'\nextern "C" __global__ void unused(long* at) {{ *at = {time.time_ns()}; }}\n')
    return directory


def evaluate(
    judge: JudgeProcess, problem_dir: Path, solution_dir: Path, **settings: object
) -> tuple[JudgeAnswer, float]:
    """Return the answer to one evaluation against the eager reference, and its duration in seconds.

    Args:
        judge: a running judge.
        problem_dir: the problem's directory.
        solution_dir: the solution's directory.
        settings: further fields of the request.
    """
    request = evaluation_request(problem_dir, solution_dir).model_copy(update=settings)
    started_at = time.perf_counter()
    answer = judge.ask(request, lambda _: None)
    return answer, time.perf_counter() - started_at


def whole_way(root: Path) -> Iterator[Row]:
    """Yield the time from a commit to the entry on disk, with a daemon that starts its own judge."""
    target = gpu_target() or "cuda"
    workspace = create_workspace(root / "way", suites=()).workspace
    three, fourteen = problem(root, (64, 512, 4096)), problem(root, tuple(range(32, 480, 32)))
    with Repo(workspace) as repo:
        files = {
            f"problems/bench/{file.parent.name}/{file.name}": file
            for problem_dir in (three, fourteen)
            for file in problem_dir.iterdir()
        }
        repo.commit_files("main", {name: file.read_bytes() for name, file in files.items()}, "Add problems")
    python_sources = {"Triton": ("triton", TRITON, {}), "PyTorch": ("pytorch", PYTORCH, {"destination_passing": False})}
    cases = [
        ("Triton", three, "2.5 s"),
        ("PyTorch", three, "2.5 s"),
        ("Triton", fourteen, "5 s"),
        ("CUDA", three, "3 s"),
    ]
    with running(workspace, "daemon", "--device", "cuda"):
        for worker, (name, problem_dir, limit) in enumerate(cases):

            def write(directory: Path, number: int, name: str = name) -> None:
                if name == "CUDA":
                    solution_dir = fresh_cuda(root, 100 + number)
                else:
                    language, source, spec = python_sources[name]
                    solution_dir = solution(root, f"way-{name}", language, f"# {number}\n{source}", **spec)
                shutil.copytree(solution_dir, directory, dirs_exist_ok=True)

            times = 2 if problem_dir == fourteen else 3
            measured = cycles(workspace, f"bench/{problem_dir.name}", target, f"w{worker:02d}", write, times)
            result = f"{statistics.median(measured.to_entry):.2f} s (worst {max(measured.to_entry):.2f})"
            result = f"{result} {'/'.join(sorted(set(measured.verdicts)))}"
            workloads = "3 workloads" if problem_dir == three else "14 workloads"
            yield (f"commit to entry: {name}, {workloads}, not in the build cache", limit, result)


def repeatability(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Yield the range of ten evaluations of one candidate, relative to their median.

    Args:
        judge: a running judge.
        root: directory of the run.
    """
    problem_dir = problem(root, (512, 8192))
    python = solution(root, "pytorch", "pytorch", PYTORCH, destination_passing=False)
    for name, solution_dir in (("sealed", SOURCE / "solutions" / "h200"), ("bounded", python)):
        answers = [evaluate(judge, problem_dir, solution_dir)[0] for _ in range(10)]
        for index, workload in enumerate(answers[0].workloads):
            results = [answer.workloads[index] for answer in answers]
            latencies = [result.latency_us for result in results if result.latency_us]
            speedups = [result.speedup for result in results if result.speedup]
            if len(latencies) < len(answers):
                yield (f"{name} {workload.uuid}", "", f"{answers[0].verdict}: {answers[0].reason}")
                continue
            limit = (
                "3 %"
                if name == "sealed" and latencies[0] < 50
                else "0.5 %, 1.5 %"
                if name == "sealed"
                else "1.5 %, 3 %"
            )
            spreads = [_spread(values) for values in (speedups, latencies)]
            text = f"speed-up {spreads[0]:.2f} %, latency {spreads[1]:.2f} % at {statistics.median(latencies):.1f} us"
            yield (f"10 evaluations, {name}: range", limit, text)


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values) * 100


def same_against_same(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Yield the intervals of twenty evaluations with the reference as the candidate.

    Args:
        judge: a running judge.
        root: directory of the run.
    """
    problem_dir = problem(root, (4096,))
    reference = json.loads((SOURCE / "definition.json").read_text())["reference"]
    reference_dir = solution(root, "reference", "pytorch", reference, destination_passing=False)
    answers = [evaluate(judge, problem_dir, reference_dir)[0] for _ in range(20)]
    intervals = [answer.summary.speedup_ci95 for answer in answers if answer.summary.speedup_ci95]
    holds = sum(ci95_low <= 1 <= ci95_high for ci95_low, ci95_high in intervals)
    widest = max(math.log(ci95_high / ci95_low) / 2 for ci95_low, ci95_high in intervals) * 100
    yield from [
        (
            "A/A, bounded: intervals that contain 1",
            "16 of 20",
            f"{holds} of {len(intervals)}, half-width <= {widest:.2f} %",
        )
    ]


def cupti(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Yield sealed readings and CUPTI's, both measured in this process.

    Args:
        judge: unused.
        root: unused.
    """
    del judge, root
    yield from agreement()


def solutions(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Yield the verdict of every shipped solution.

    Args:
        judge: a running judge.
        root: unused.
    """
    del root
    for file in sorted(PROBLEMS.glob("*/*/solutions/h200/solution.yaml")):
        solution_dir = file.parent
        answer, seconds = evaluate(judge, solution_dir.parents[1], solution_dir, half_width=0.02)
        above = [
            workload.latency_us / workload.floor_us
            for workload in answer.workloads
            if workload.latency_us and workload.floor_us
        ]
        passed = f"{answer.summary.passed}/{answer.summary.of}"
        outcome = f"{answer.verdict} {answer.trust} {passed}, {answer.summary.speedup or 0:.2f}x eager"
        floor = f", latency >= {min(above):.2f} floors" if above else ""
        yield (
            "/".join(solution_dir.parts[-4:-2]),
            "PASSED",
            f"{outcome}{floor}, {seconds:.1f} s {answer.reason or ''}",
        )


def main() -> None:
    """Measure all parts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--skip", default="", help="parts to leave out: way, repeat, same, cupti, solutions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="harness-bench-"))
    os.environ["HARNESS_LOCK_DIR"] = str(root / "locks")
    parts = {"repeat": repeatability, "same": same_against_same, "cupti": cupti, "solutions": solutions}
    rows: list[Row] = []
    begin = time.perf_counter()

    def keep(row: Row) -> None:
        rows.append(row)
        print(f"{time.perf_counter() - begin:6.0f} s  ", " | ".join(row), flush=True)
        if options.json:
            options.json.write_text(json.dumps(rows, indent=1))

    def measure(name: str, part: Callable[[], Iterator[Row]]) -> None:
        print(f"measuring: {name}", flush=True)
        try:
            for row in part():
                keep(row)
        except Exception:  # noqa: BLE001 - a failure of one part must not lose the figures of the other parts
            traceback.print_exc()
            sys.stderr.flush()

    skipped = options.skip.split(",")
    try:
        if "way" not in skipped:
            measure("way", lambda: whole_way(root))
        with judge_process("cuda", root / "cache", "bubblewrap") as judge:
            print(
                json.dumps(judge.ready.device.model_dump()), f"{time.perf_counter() - begin:.1f} s to ready", flush=True
            )
            for name, part in parts.items():
                if name not in skipped:
                    measure(name, partial(part, judge, root))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(tabulate(rows, headers=("figure", "at most", "seen")))
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
