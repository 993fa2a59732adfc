"""Find references that torch.compile compiles in a user's script, and not where the judge runs them.

    python -m benchmarks.plain_compile [--problems GLOB] [--draw N --seed S] [--shard I/N] [--seconds S] [--file FILE]
        [--device cpu|cuda] [--backend BACKEND] [--all-workloads] [--processes N] [--limit-s S]

Each reference is compiled twice, in processes apart:

- plain: `torch.compile(run)` on ordinary tensors, as in a user's script;
- judge: by the loader of the judge's runners, on inputs and outputs in one mapping.

With `--device cuda`, both also capture the compiled function as a CUDA graph, and compile references with products or
convolutions with max-autotune. The smallest workload of each problem is compiled, or all. The file stores every result,
so that a run can be resumed; results of the judge count for one version of the judge only. Problems whose plain script
fails are listed with the user's own error.

Exit code 1 if a variant is missing in the judge.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from benchmarks.measured_rows import append_row
from harness.formats.problems import load_problem
from harness.judge.input_data.layout import layout_of
from harness.judge.version import judge_version

PROBLEMS = Path(__file__).parents[1] / "problems"
Way = Literal["plain", "judge"]
WAYS: tuple[Way, ...] = ("plain", "judge")
_BATCH = 8
"""Workloads of one process. A start takes seconds, and an end releases what compilations have left."""


class CompiledRow(BaseModel):
    """Result of compiling the reference for one workload in one way."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problem: str
    uuid: str
    way: Way
    device: str
    backend: str
    torch: str
    version: str = ""
    """Version of the judge; "" for a plain script."""
    errors: dict[str, str | None]
    """Variant -> its error, or null if it was compiled and called."""
    seconds: float


@dataclass(frozen=True)
class Task:
    """One workload to compile in one way."""

    problem: str
    uuid: str
    way: Way


@dataclass(frozen=True)
class Settings:
    """Configuration of all processes."""

    device: str
    backend: str
    limit_s: float
    """Seconds for all variants of one workload."""
    until: float
    """time.monotonic after which no workload is started."""

    def row(self, task: Task, errors: dict[str, str | None], seconds: float) -> CompiledRow:
        """Return the result of a task."""
        version = judge_version() if task.way == "judge" else ""
        return CompiledRow(
            problem=task.problem, uuid=task.uuid, way=task.way, device=self.device, backend=self.backend,
            torch=torch.__version__, version=version, errors=errors, seconds=round(seconds, 3),
        )  # fmt: skip


def variants_of(device: str) -> list[str]:
    """Return the variants that are compiled on a device."""
    return ["compile", "compile_graph", "max_autotune"] if device == "cuda" else ["compile"]


def planned_tasks(names: Sequence[str], *, all_workloads: bool) -> list[Task]:
    """Return the tasks of problems: the workload with the least data of each, or all of them.

    Args:
        names: problems as `suite/name`.
        all_workloads: include every workload.
    """
    tasks = []
    for name in names:
        problem = load_problem(PROBLEMS / name)
        workloads = sorted(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
        chosen = workloads if all_workloads else workloads[:1]
        tasks += [Task(name, workload.uuid, way) for workload in chosen for way in WAYS]
    return tasks


def read_rows(file: Path, settings: Settings) -> dict[Task, CompiledRow]:
    """Return the rows of a file that were measured with these settings and this version of the judge."""
    rows: dict[Task, CompiledRow] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValidationError):
                row = CompiledRow.model_validate_json(line)
                task = Task(row.problem, row.uuid, row.way)
                if row == settings.row(task, row.errors, row.seconds):
                    rows[task] = row
    return rows


def compile_batch(tasks: Sequence[Task], settings: Settings, report: Callable[[CompiledRow], None]) -> None:
    """Compile workloads in one process after the other, until the time limit; a process that hangs is replaced.

    Args:
        tasks: workloads of one way.
        settings: configuration.
        report: receives each result.
    """
    remaining = list(tasks)
    while remaining and time.monotonic() < settings.until:
        with _process(remaining, settings) as (process, lines):
            begin = time.monotonic()
            while remaining and time.monotonic() < settings.until:
                line = lines(settings.limit_s)
                if line is None or not line.startswith("{"):
                    break
                report(settings.row(remaining.pop(0), json.loads(line), time.monotonic() - begin))
                begin = time.monotonic()
            if not remaining or time.monotonic() >= settings.until:
                return
            code = process.poll()
        reason = f"no answer within {settings.limit_s:.0f} s" if line is None else f"the process ended (code {code})"
        task = remaining.pop(0)
        report(settings.row(task, dict.fromkeys(variants_of(settings.device), reason), time.monotonic() - begin))


@contextlib.contextmanager
def _process(
    tasks: Sequence[Task], settings: Settings
) -> Iterator[tuple[subprocess.Popen[str], Callable[[float], str | None]]]:
    """Start a process. Yields it, and a function that returns its next line, or None after a timeout."""
    work = [[task.problem, task.uuid, task.way] for task in tasks]
    command = [sys.executable, "-m", "benchmarks.plain_compile_process", settings.device, settings.backend]
    with tempfile.TemporaryDirectory(prefix="plain-compile-") as scratch:
        process = subprocess.Popen(
            [*command, json.dumps(work)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[1],
            env={**os.environ, "TMPDIR": scratch},
        )
        assert process.stdout is not None
        stdout = process.stdout
        selector = selectors.DefaultSelector()
        selector.register(stdout, selectors.EVENT_READ)

        def line(timeout_s: float) -> str | None:
            # The process writes one line for each task, so that nothing is left in the buffer of this file.
            return stdout.readline() if selector.select(timeout_s) else None

        try:
            yield process, line
        finally:
            process.kill()
            process.wait()
            selector.close()
            stdout.close()


def compile_all(tasks: Sequence[Task], settings: Settings, file: Path | None, processes: int) -> list[CompiledRow]:
    """Compile workloads in batches, and append each result to the file.

    Args:
        tasks: all workloads, in both ways.
        settings: configuration.
        file: rows of earlier runs, which are not repeated; None stores nothing.
        processes: number of processes that run at a time.

    Returns:
        The rows of these tasks, also those of earlier runs.
    """
    rows = {task: row for task, row in (read_rows(file, settings) if file else {}).items() if task in set(tasks)}
    missing = [task for task in tasks if task not in rows]
    by_way = [[task for task in missing if task.way == way] for way in WAYS]
    batches = [ways[begin : begin + _BATCH] for begin in range(0, len(missing), _BATCH) for ways in by_way]
    lock = threading.Lock()

    def report(row: CompiledRow) -> None:
        with lock:
            rows[Task(row.problem, row.uuid, row.way)] = row
            if file is not None:
                append_row(file, row)
            failed = ", ".join(f"{variant}: {error}" for variant, error in row.errors.items() if error)
            sys.stdout.write(f"{len(rows)}/{len(tasks)} {row.problem} {row.way} {failed or 'compiled'}\n")
            sys.stdout.flush()

    with ThreadPoolExecutor(processes, thread_name_prefix="compile") as pool:
        for future in [pool.submit(compile_batch, batch, settings, report) for batch in batches if batch]:
            future.result()
    return list(rows.values())


@dataclass(frozen=True)
class Comparison:
    """A variant of one workload that at least one way has not compiled."""

    problem: str
    uuid: str
    variant: str
    plain: str | None
    """Error of the plain script; None if it was compiled."""
    judge: str | None
    """Error in the judge; None if it was compiled."""


def differences(rows: Sequence[CompiledRow]) -> tuple[list[Comparison], list[Comparison]]:
    """Return the variants that are missing in the judge only, and those that fail in a plain script."""
    of_judge = {(row.problem, row.uuid): row for row in rows if row.way == "judge"}
    missing, own = [], []
    for row in rows:
        judge = of_judge.get((row.problem, row.uuid))
        if row.way == "judge" or judge is None:
            continue
        for variant, plain in row.errors.items():
            if variant not in judge.errors:
                continue
            comparison = Comparison(row.problem, row.uuid, variant, plain, judge.errors[variant])
            if plain is not None:
                own.append(comparison)
            elif comparison.judge is not None:
                missing.append(comparison)
    return missing, own


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="*", help="shell pattern of suite/name")
    parser.add_argument("--draw", type=int, help="number of problems to draw at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--shard", default="1/1", help="I/N: part I, from 1, of N parts of the problems")
    parser.add_argument("--seconds", type=float, default=1e9, help="seconds after which no process is started")
    parser.add_argument("--file", type=Path, help="rows of this run and of earlier ones")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--backend", help="backend of torch.compile; default: aot_eager on a CPU, inductor on a GPU")
    parser.add_argument("--all-workloads", action="store_true", help="compile for every workload")
    parser.add_argument("--processes", type=int, default=2, help="processes that run at a time")
    parser.add_argument("--limit-s", type=float, default=300.0, help="seconds for all variants of one workload")
    return parser.parse_args()


def main() -> int:
    """Compile, and print what is missing in the judge. Return the exit code."""
    arguments = _arguments()
    names = sorted("/".join(path.parent.parts[-2:]) for path in PROBLEMS.glob("*/*/definition.json"))
    names = [name for name in names if fnmatch.fnmatch(name, arguments.problems)]
    if arguments.draw is not None:
        drawn = random.Random(arguments.seed).sample(names, min(arguments.draw, len(names)))
        names = sorted(drawn)
    number, shards = map(int, arguments.shard.split("/"))
    tasks = planned_tasks(names[number - 1 :: shards], all_workloads=arguments.all_workloads)
    backend = arguments.backend or ("inductor" if arguments.device == "cuda" else "aot_eager")
    settings = Settings(arguments.device, backend, arguments.limit_s, time.monotonic() + arguments.seconds)
    rows = compile_all(tasks, settings, arguments.file, arguments.processes)
    missing, own = differences(rows)
    pairs = len(rows) - len({(row.problem, row.uuid) for row in rows})
    sys.stdout.write(
        f"{pairs} workloads compared of {len(tasks) // 2}: {len(missing)} variants missing in the judge only, "
        f"{len(own)} that fail in a plain script\n"
    )
    for title, comparisons in (("missing in the judge", missing), ("fails in a plain script", own)):
        for comparison in comparisons:
            sys.stdout.write(
                f"{title}: {comparison.problem} {comparison.uuid} {comparison.variant}\n"
                f"  plain: {comparison.plain or 'compiled'}\n  judge: {comparison.judge or 'compiled'}\n"
            )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
