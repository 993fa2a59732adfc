"""What judging costs on this machine's GPU, and how well its numbers repeat: `make bench-gpu` prints the table.

    python -m benchmarks.gpu [--skip solutions,...] [--json FILE]

One judge process, asked as the daemon asks it; times are from the request to the answer, the judge warm and a runner
waiting. Run it on an otherwise idle machine.
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
from harness.cli.devices import gpu_target
from harness.formats.problems import load_problem
from harness.git.repo import Repo
from harness.ledger.create_workspace import create_workspace
from harness.model.judging import JudgeAnswer, JudgeRequest
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
    """The starter's RMS norm with workloads of other sizes."""
    directory = root / "bench" / f"rmsnorm_{'_'.join(map(str, rows))}"
    if not directory.is_dir():
        directory.mkdir(parents=True)
        shutil.copy(SOURCE / "definition.json", directory)
        line = json.loads((SOURCE / "workload.jsonl").read_text().splitlines()[0])
        lines = [json.dumps({**line, "uuid": f"rows{count}", "axes": {"rows": count}}) for count in rows]
        (directory / "workload.jsonl").write_text("\n".join(lines) + "\n")
    return directory


def solution(root: Path, name: str, language: str, source: str, **spec: object) -> Path:
    """A Python solution on disk."""
    directory = root / "solutions" / name
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "kernel.py").write_text(source)
    (directory / "solution.yaml").write_text(yaml.safe_dump({"language": language, "entry": "kernel.py::run", **spec}))
    return directory


def fresh_cuda(root: Path, number: int) -> Path:
    """The starter's sealed solution as no build cache knows it."""
    directory = root / "solutions" / f"cuda{number}-{os.getpid()}"
    shutil.copytree(SOURCE / "solutions" / "h200", directory)
    with (directory / "kernel.cu").open("a") as file:
        file.write(f"\n// {number} {time.time_ns()}\n")
    return directory


def ask(judge: JudgeProcess, where: Path, what: Path, **settings: object) -> tuple[JudgeAnswer, float]:
    """One evaluation against the eager reference, and how long it took."""
    found = load_problem(where, key="/".join(where.parts[-2:]))
    request = JudgeRequest.model_validate(
        {
            "id": "1", "kind": "evaluation", "problem": found.key, "problem_dir": str(where),
            "problem_digest": found.digest, "solution_dir": str(what), "half_width": 0.005, "max_judge_s": 60.0,
            **settings,
        }
    )  # fmt: skip
    begin = time.perf_counter()
    answer = judge.ask(request, lambda _: None)
    return answer, time.perf_counter() - begin


def whole_way(root: Path) -> Iterator[Row]:
    """Commit to entry on disk, through a daemon with a judge of its own."""
    target = gpu_target() or "cuda"
    workspace = create_workspace(root / "way", suites=()).workspace
    three, fourteen = problem(root, (64, 512, 4096)), problem(root, tuple(range(32, 480, 32)))
    with Repo(workspace) as repo:
        files = {
            f"problems/bench/{file.parent.name}/{file.name}": file
            for each in (three, fourteen)
            for file in each.iterdir()
        }
        repo.commit_files("main", {name: file.read_bytes() for name, file in files.items()}, "Add problems")
    made = {"Triton": ("triton", TRITON, {}), "PyTorch": ("pytorch", PYTORCH, {"destination_passing": False})}
    cases = [
        ("Triton", three, "2.5 s"),
        ("PyTorch", three, "2.5 s"),
        ("Triton", fourteen, "5 s"),
        ("CUDA", three, "3 s"),
    ]
    with running(workspace, "daemon", "--device", "cuda"):
        for worker, (name, where, limit) in enumerate(cases):

            def write(directory: Path, number: int, name: str = name) -> None:
                if name == "CUDA":
                    what = fresh_cuda(root, 100 + number)
                else:
                    language, source, spec = made[name]
                    what = solution(root, f"way-{name}", language, f"# {number}\n{source}", **spec)
                shutil.copytree(what, directory, dirs_exist_ok=True)

            times = 2 if where == fourteen else 3
            found = cycles(workspace, f"bench/{where.name}", target, f"w{worker:02d}", write, times)
            told = f"{statistics.median(found.to_entry):.2f} s (worst {max(found.to_entry):.2f})"
            told = f"{told} {'/'.join(sorted(set(found.verdicts)))}"
            workloads = "3 workloads" if where == three else "14 workloads"
            yield (f"commit to entry: {name}, {workloads}, not in the build cache", limit, told)


def repeatability(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Ten evaluations of one candidate: full range over the median."""
    where = problem(root, (512, 8192))
    python = solution(root, "pytorch", "pytorch", PYTORCH, destination_passing=False)
    for name, what in (("sealed", SOURCE / "solutions" / "h200"), ("bounded", python)):
        answers = [ask(judge, where, what)[0] for _ in range(10)]
        for index, one in enumerate(answers[0].workloads):
            seen = [answer.workloads[index] for answer in answers]
            latencies = [each.latency_us for each in seen if each.latency_us]
            speedups = [each.speedup for each in seen if each.speedup]
            if len(latencies) < len(answers):
                yield (f"{name} {one.uuid}", "", f"{answers[0].verdict}: {answers[0].reason}")
                continue
            limit = (
                "3 %"
                if name == "sealed" and latencies[0] < 50
                else "0.5 %, 1.5 %"
                if name == "sealed"
                else "1.5 %, 3 %"
            )
            spreads = [_spread(values) for values in (speedups, latencies)]
            told = f"speed-up {spreads[0]:.2f} %, latency {spreads[1]:.2f} % at {statistics.median(latencies):.1f} us"
            yield (f"10 evaluations, {name}: range", limit, told)


def _spread(values: list[float]) -> float:
    return (max(values) - min(values)) / statistics.median(values) * 100


def same_against_same(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """The reference as a candidate, twenty times."""
    where = problem(root, (4096,))
    reference = json.loads((SOURCE / "definition.json").read_text())["reference"]
    what = solution(root, "reference", "pytorch", reference, destination_passing=False)
    intervals = [ask(judge, where, what)[0].summary.speedup_ci95 for _ in range(20)]
    found = [each for each in intervals if each]
    holds = sum(low <= 1 <= high for low, high in found)
    widest = max(math.log(high / low) / 2 for low, high in found) * 100
    yield from [
        ("A/A, bounded: intervals that contain 1", "16 of 20", f"{holds} of {len(found)}, half-width <= {widest:.2f} %")
    ]


def cupti(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Sealed readings against CUPTI's, taken in this process."""
    del judge, root
    yield from agreement()


def solutions(judge: JudgeProcess, root: Path) -> Iterator[Row]:
    """Every solution that comes with the problems."""
    del root
    for file in sorted(PROBLEMS.glob("*/*/solutions/h200/solution.yaml")):
        what = file.parent
        answer, seconds = ask(judge, what.parents[1], what, half_width=0.02)
        above = [each.latency_us / each.floor_us for each in answer.workloads if each.latency_us and each.floor_us]
        passed = f"{answer.summary.passed}/{answer.summary.of}"
        told = f"{answer.verdict} {answer.trust} {passed}, {answer.summary.speedup or 0:.2f}x eager"
        floor = f", latency >= {min(above):.2f} floors" if above else ""
        yield ("/".join(what.parts[-4:-2]), "PASSED", f"{told}{floor}, {seconds:.1f} s {answer.reason or ''}")


def main() -> None:
    """Measure and print."""
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
        except Exception:  # noqa: BLE001 - what one part breaks must not cost the others' figures
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
