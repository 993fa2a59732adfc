"""Measure the growth of a judge's memory over different evaluations.

    python -m benchmarks.judge_memory [--device cuda] [--count 100] [--seed S] [--seconds S]

Each evaluation has a problem of its own, drawn by a seed, with its two smallest workloads, and its reference as the
candidate. After each, the resident memory of the judge's process and, on a GPU, its device memory are read. The last
lines compare them after the tenth evaluation with those after the last one; at most 1 GiB more is accepted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from benchmarks.corpus_pass import PROBLEMS
from benchmarks.gpu_intervals import eager_solution
from benchmarks.requests import evaluation_request
from harness.formats.problems import list_problems, load_problem
from harness.judge.devices.opening import open_device
from harness.judge.input_data.layout import layout_of
from harness.judge.isolation.resource_limits import GIB
from harness.judge.judge import Judge

_WORKLOADS, _FIRST = 2, 10
_MOST_GROWTH = GIB


def shortened(key: str, root: Path) -> Path:
    """Write a problem with its smallest workloads, and return its directory.

    Args:
        key: of the shipped problem.
        root: parent of the new directory.
    """
    source = PROBLEMS / key
    problem, directory = load_problem(source, key=key), root / key.replace("/", "-")
    shutil.copytree(source, directory, ignore=shutil.ignore_patterns("solutions", "baselines"))
    smallest = sorted(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)[:_WORKLOADS]
    uuids = {workload.uuid for workload in smallest}
    lines = (source / "workload.jsonl").read_text().splitlines()
    selected_lines = [line for line in lines if line.strip() and json.loads(line)["uuid"] in uuids]
    (directory / "workload.jsonl").write_text("\n".join(selected_lines) + "\n")
    return directory


def memory(judge: Judge) -> tuple[float, float]:
    """Return the resident memory and the device memory of this process in GiB; the latter is 0 on a CPU."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    state = judge.device.hardware.memory_state()
    on_device = 0 if state is None or state.processes is None else state.processes.get(os.getpid(), 0)
    return resident / GIB, on_device / GIB


def main() -> None:
    """Parse the command line, evaluate, and print the memory. Exit with 1 if it grew by more than 1 GiB."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sandbox", default="bubblewrap", choices=("bubblewrap", "none"))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed).sample(list_problems(PROBLEMS), arguments.count)
    end, readings = time.monotonic() + arguments.seconds, []
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        device = open_device(arguments.device, cache=root / "cache", sandbox=arguments.sandbox)
        judge = Judge(device, cache_dir=root / "cache", sandbox=arguments.sandbox)
        try:
            for number, key in enumerate(drawn, 1):
                if time.monotonic() > end:
                    break
                directory = shortened(key, root)
                solution = eager_solution(root / f"solution{number}", directory)
                request = evaluation_request(directory, solution, half_width=0.05, max_judge_s=60.0)
                answer = judge.answer(request, lambda _: None)
                readings.append(memory(judge))
                resident, on_device = readings[-1]
                sys.stderr.write(
                    f"{number} {key}: {answer.verdict} {answer.reason or ''} in {answer.cost.judge_s:.1f} s; "
                    f"{resident:.2f} GiB resident, {on_device:.2f} GiB on the device\n"
                )
        finally:
            judge.close()
    if len(readings) <= _FIRST:
        raise SystemExit(f"only {len(readings)} evaluations: more than {_FIRST} are needed")
    first, last = readings[_FIRST - 1], readings[-1]
    named = zip(("resident", "device"), first, last, strict=True)
    rows = [(name, before, after, after - before) for name, before, after in named]
    headers = ("memory in GiB", f"after {_FIRST}", f"after {len(readings)}", "growth")
    print(tabulate(rows, headers=headers, floatfmt=".2f"))
    sys.exit(any(growth * GIB > _MOST_GROWTH for *_, growth in rows))


if __name__ == "__main__":
    main()
