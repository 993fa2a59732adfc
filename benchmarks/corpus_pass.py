"""Check the judge on every workload of every problem, without timing. A file stores each result, so that it can resume.

    python -m benchmarks.corpus_pass --file FILE [--device cuda] [--variant eager|compile] [--problems GLOB,...]
        [--largest N] [--draw N] [--seed S] [--truth-gib LOW-HIGH] [--ends] [--hold-gib G] [--shard I/N]
        [--any-version] [--seconds S]

Each workload's reference makes two calls in a runner, on fresh inputs in the judge's memory. The outputs of both are
compared with the reference in the judge, those of the first with the float64 run too. Memory is planned, and made free
where it lacks, as in an evaluation.

- `--largest N` and `--draw N` select the N problems with the largest predicted memory and N others by a seed; without
  them, and without `--problems`, all problems are checked.
- `--truth-gib LOW-HIGH` selects workloads whose float64 run is predicted to need this much memory.
- `--ends` takes the smallest and the largest workload of each problem only.
- `--any-version` does not repeat what another version of the judge or another device has checked.
- `--hold-gib G` lets another process hold G GiB of the device meanwhile. A workload that does not fit then is a fault
  of the machine ("retry"), and no verdict.

A workload whose reference also fails in a plain PyTorch call is listed with that error. The last lines are the numbers
of results by verdict, the workloads without a float64 run, and the stages of the device time.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from tabulate import tabulate

from benchmarks.measured_rows import append_row
from harness.errors import FormatError, HostFaultError
from harness.formats.problems import load_problem
from harness.judge.baseline.baseline_runners import Opponents
from harness.judge.checks import WorkloadSets
from harness.judge.devices.interface import Device
from harness.judge.devices.opening import open_device
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import layout_of
from harness.judge.isolation.resource_limits import GIB
from harness.judge.memory_forecast import forecast
from harness.judge.memory_planner import LACK, MemoryPlanner
from harness.judge.reference import Reference, load_reference
from harness.judge.runners import BaselineFailed, RunnerFailed
from harness.judge.stages import recording
from harness.judge.version import judge_version
from harness.model.judging import JudgeStage, Variant
from harness.model.problem import Problem, Workload
from harness.sol.hardware import CPU

PROBLEMS = Path(__file__).parents[1] / "problems"
RETRY = "retry"
"""Result of a workload that a fault of the machine prevented; an evaluation would be repeated later."""
_CALLS = 2
_FIRST_CALL_S = 240.0
_REFERENCES_AHEAD = 6
"""Runners that start while others are used: each problem takes a new one, which imports torch for seconds."""
_HOLDER = (
    "import os, sys, time, torch; held = torch.empty(int(sys.argv[1]) << 30, dtype=torch.uint8, device='cuda'); "
    "torch.cuda.synchronize(); print(os.getpid(), flush=True); "
    "[time.sleep(0.5) for _ in iter(lambda: os.path.exists(f'/proc/{sys.argv[2]}'), False)]"
)

_PLAIN_CALL = """
import sys
from pathlib import Path
import torch
from harness.formats.problems import load_problem
from harness.judge.input_data.inputs import InputSource
from harness.judge.reference import load_reference
problem = load_problem(Path(sys.argv[1]), key=sys.argv[2])
workload = next(workload for workload in problem.workloads if workload.uuid == sys.argv[3])
reference, device = load_reference(problem), torch.device(sys.argv[4])
inputs = InputSource(problem, reference=reference, device=device).draw(workload)
with torch.no_grad():
    reference.run(*inputs.values())
if device.type == "cuda":
    torch.cuda.synchronize()
"""
_PLAIN_S = 300.0
_ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")


class PassRow(BaseModel):
    """Result of one workload."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    judge_version: str
    device: str
    variant: Variant
    hold_gib: int
    problem: str
    workload: str
    verdict: str
    reason: str | None = None
    plain_error: str | None = None
    """Error of the reference in a plain call of PyTorch, after a failure; None if it runs there."""
    note: str | None = None
    """Reason for which there was no float64 run."""
    attempts: int = 1
    """2 if room was made and the workload checked again."""
    io_bytes: int
    reference_bytes: int
    truth_bytes: int
    """Predictions of `harness.judge.memory_forecast`."""
    stages: dict[JudgeStage, float]
    """Seconds by stage, without the forecast."""
    device_bytes: int | None = None
    """Device memory of the judge's process after the workload."""
    resident_bytes: int
    """Resident memory of the judge's process after the workload."""

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the workload."""
        return self.problem, self.workload


@dataclass(frozen=True)
class _Checked:
    verdict: str = "PASSED"
    reason: str | None = None
    note: str | None = None
    attempts: int = 1


class Pass:
    """One judge's parts, and the problem that is checked."""

    def __init__(self, device: Device, cache: Path, sandbox: str, variant: Variant) -> None:
        self.device, self._variant = device, variant
        self._opponents = Opponents(device.clock, cache, "none" if sandbox == "none" else "bubblewrap")
        if device.hardware.target != CPU:
            from harness.judge.devices.cuda_runners import CudaRunners, RunnersAhead

            assert isinstance(device.runners, CudaRunners)
            device.runners.expect(RunnersAhead(0, _REFERENCES_AHEAD))

    def reserve(self, problem: Problem) -> None:
        """Reserve memory for the workloads of a problem, where the device needs that."""
        if self.device.clock.reserve([layout_of(problem, workload) for workload in problem.workloads]):
            self._opponents.close()

    def planner(self, problem: Problem) -> MemoryPlanner:
        """Return the planner of the device's memory for a problem."""
        return MemoryPlanner(self.device, problem, self._opponents.close)

    def check(
        self,
        problem: Problem,
        reference: Reference,
        source: InputSource,
        workload: Workload,
        planner: MemoryPlanner,
    ) -> _Checked:
        """Check one workload as often as an evaluation would."""
        try:
            with contextlib.suppress(*LACK):
                return self._check_once(problem, reference, source, workload, planner, sparing=False)
            planner.make_room()
            try:
                return self._check_once(problem, reference, source, workload, planner, sparing=True)
            except LACK as lack:
                raise planner.cause(lack, workload, planner.state(), None) from lack
        except HostFaultError as fault:
            return _Checked(RETRY, str(fault), attempts=2)
        except (BaselineFailed, FormatError) as failure:
            self._opponents.drop(problem, self._variant)
            return _Checked("INVALID_REFERENCE", " ".join(str(failure).split()))
        except RunnerFailed as failure:
            return _Checked(str(failure.verdict), failure.reason)

    def _check_once(
        self,
        problem: Problem,
        reference: Reference,
        source: InputSource,
        workload: Workload,
        planner: MemoryPlanner,
        *,
        sparing: bool,
    ) -> _Checked:
        clock, layout = self.device.clock, layout_of(problem, workload)
        plan = planner.plan(clock, workload, sparing=sparing)
        memory = clock.memory(layout, len(problem.workloads), plan)
        sets = WorkloadSets(problem, source, workload)
        check = planner.check_of(reference, sets)
        side = self._opponents.trusted(problem, self._variant)
        side.prepare(workload, layout, 1, self._variant, plan)
        for _ in range(_CALLS):
            sets.fill([memory.views(0)])
            side.batch(memory, range(1), _FIRST_CALL_S)
            inputs = memory.inputs(0)
            outcome = check.check(inputs, check.expected(inputs), memory.outputs(side.connection, 0))
            if outcome.reason is not None:
                return _Checked(str(outcome.verdict), outcome.reason, check.note, 1 + sparing)
            check.skip_float64()
        return _Checked(note=check.note, attempts=1 + sparing)

    def close(self) -> None:
        """End the runners."""
        self._opponents.close()


def plain_error(key: str, uuid: str, device: torch.device) -> str | None:
    """Return the last line that a plain call of the reference prints on failure, in a process of its own.

    A failed assertion on a GPU makes the context of its process unusable.

    Args:
        key: of the problem.
        uuid: of the workload.
        device: device of the inputs.

    Returns:
        None if the call succeeds.
    """
    command = [sys.executable, "-c", _PLAIN_CALL, str(PROBLEMS / key), key, uuid, device.type]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PLAIN_S, check=False)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if _ERROR.match(line)]
    return (errors or done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1][:300]


@contextlib.contextmanager
def held_memory(gib: int) -> Iterator[None]:
    """Let another process hold device memory inside this context.

    Args:
        gib: GiB; 0 for no process.
    """
    if not gib:
        yield
        return
    # Its parent ends at once: a descendant of the judge would count as one of the judge's own processes.
    command = ["sh", "-c", '"$@" & exit', "sh", sys.executable, "-c", _HOLDER, str(gib), str(os.getpid())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        holder = parent.stdout.readline().strip()
    if not holder:
        raise SystemExit(f"another process did not get {gib} GiB of device memory")
    try:
        yield
    finally:
        os.kill(int(holder), signal.SIGKILL)


def selected(arguments: argparse.Namespace) -> list[Problem]:
    """Return the problems of a run, in a fixed order."""
    patterns = arguments.problems.split(",")
    keys = sorted(f"{path.parent.parent.name}/{path.parent.name}" for path in PROBLEMS.glob("*/*/definition.json"))
    keys = [key for key in keys if any(fnmatch.fnmatch(key, pattern) for pattern in patterns)]
    problems = [load_problem(PROBLEMS / key, key=key) for key in keys]
    if arguments.largest or arguments.draw:
        largest = sorted(problems, key=lambda problem: -largest_bytes(problem))[: arguments.largest]
        remaining = [problem for problem in problems if problem not in largest]
        drawn = random.Random(arguments.seed).sample(remaining, min(arguments.draw, len(remaining)))
        problems = [*largest, *drawn]
    number, count = (int(part) for part in arguments.shard.split("/"))
    return problems[number - 1 :: count]


def largest_bytes(problem: Problem) -> int:
    """Return the largest predicted memory of a reference's run on any workload of a problem."""
    return max(forecast(problem, workload).truth_bytes for workload in problem.workloads)


def workloads_of(problem: Problem, *, ends: bool) -> list[Workload]:
    """Return the workloads to check, the smallest first.

    Args:
        problem: the problem.
        ends: only the smallest and the largest.
    """
    ordered = sorted(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    return [ordered[0], ordered[-1]] if ends and len(ordered) > 1 else ordered


def read(file: Path, like: PassRow, *, any_version: bool) -> dict[tuple[str, str], PassRow]:
    """Return the results of a file with the variant and held memory of a row, and its judge version and device.

    Args:
        file: the file of rows.
        like: the row.
        any_version: also those of other judge versions and devices.
    """
    rows: dict[tuple[str, str], PassRow] = {}
    with contextlib.suppress(FileNotFoundError):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValidationError):
                row = PassRow.model_validate_json(line)
                if _group(row, any_version=any_version) == _group(like, any_version=any_version):
                    rows[row.key] = row
    return rows


def _group(row: PassRow, *, any_version: bool) -> tuple[object, ...]:
    return row.variant, row.hold_gib, *(() if any_version else (row.judge_version, row.device))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _device_bytes(device: Device) -> int | None:
    state = device.hardware.memory_state()
    return state.processes.get(os.getpid()) if state is not None and state.processes is not None else None


def run(device: Device, arguments: argparse.Namespace, cache: Path) -> list[PassRow]:
    """Check the selected workloads until the time is over, and return all results, also those of earlier runs."""
    end = time.monotonic() + arguments.seconds
    least_gib, most_gib = (float(limit) for limit in arguments.truth_gib.split("-"))
    record = device.record()

    def row(problem: str, workload: str, **fields: object) -> PassRow:
        return PassRow.model_validate(
            {
                "judge_version": judge_version(), "device": record.name, "variant": arguments.variant,
                "hold_gib": arguments.hold_gib, "problem": problem, "workload": workload, **fields,
            }
        )  # fmt: skip

    empty: dict[str, object] = {
        "verdict": "", "io_bytes": 0, "reference_bytes": 0, "truth_bytes": 0, "stages": {}, "resident_bytes": 0
    }  # fmt: skip
    done = read(arguments.file, row("", "", **empty), any_version=arguments.any_version)
    judge = Pass(device, cache, arguments.sandbox, arguments.variant)
    try:
        for problem in selected(arguments):
            todo = [
                workload
                for workload in workloads_of(problem, ends=arguments.ends)
                if (problem.key, workload.uuid) not in done
                and least_gib <= forecast(problem, workload).truth_bytes / GIB < most_gib
            ]
            if not todo:
                continue
            judge.reserve(problem)
            planner = judge.planner(problem)
            hardware, reference = device.hardware, load_reference(problem)
            on, copy_all = hardware.memory_on, hardware.copy_all
            source = InputSource(problem, reference=reference, device=on, copy_all=copy_all)
            for workload in todo:
                if time.monotonic() > end:
                    return list(done.values())
                predicted = forecast(problem, workload)
                with recording() as times:
                    checked = judge.check(problem, reference, source, workload, planner)
                failed = checked.verdict not in {"PASSED", RETRY}
                result = row(
                    problem.key,
                    workload.uuid,
                    **vars(checked),
                    plain_error=plain_error(problem.key, workload.uuid, on) if failed else None,
                    io_bytes=layout_of(problem, workload).io_bytes,
                    reference_bytes=predicted.reference_bytes,
                    truth_bytes=predicted.truth_bytes,
                    stages=times.cost(0.0).stages,
                    device_bytes=_device_bytes(device),
                    resident_bytes=_resident_bytes(),
                )
                append_row(arguments.file, result)
                done[result.key] = result
            device.runners.start_standby()
            sys.stderr.write(f"{problem.key}: {len(todo)} workloads, {len(done)} in all\n")
    finally:
        judge.close()
    return list(done.values())


def report(rows: Sequence[PassRow]) -> None:
    """Print the numbers of results, the failures and the stages."""
    problems, verdicts = {row.problem for row in rows}, Counter(row.verdict for row in rows)
    print(f"{len(rows)} workloads of {len(problems)} problems: {dict(verdicts)}")
    print(f"checked again after room was made: {sum(row.attempts > 1 for row in rows)}")
    reasons = Counter(row.note for row in rows if row.note is not None)
    print(f"without a float64 run: {sum(reasons.values())}")
    print(tabulate([(count, reason) for reason, count in reasons.most_common()], tablefmt="plain"))
    failures = [row for row in rows if row.verdict != "PASSED"]
    print(tabulate([(f.problem, f.workload[:8], f.verdict, f.plain_error or "runs", f.reason) for f in failures]))
    seconds = {stage: [row.stages.get(stage, 0.0) for row in rows] for stage in JudgeStage}
    totals = [sum(row.stages.values()) for row in rows]
    if rows:
        table = [(stage, sum(of), statistics.median(of), max(of)) for stage, of in seconds.items() if sum(of) > 0.0]
        table.append(("all", sum(totals), statistics.median(totals), max(totals)))  # type: ignore[arg-type]
        print(tabulate(table, headers=("stage", "seconds", "median", "longest"), floatfmt=".3f"))


def main() -> None:
    """Parse the command line, check, and print the result. Exit with 1 if a reference runs, but not in the judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sandbox", default="bubblewrap", choices=("bubblewrap", "none"))
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--variant", default="eager")
    parser.add_argument("--problems", default="*")
    parser.add_argument("--largest", type=int, default=0)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--seed", type=int, default=20261124)
    parser.add_argument("--truth-gib", default="0-1000000")
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--hold-gib", type=int, default=0)
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--any-version", action="store_true")
    parser.add_argument("--seconds", type=float, default=1e9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        cache = arguments.cache or Path(temporary)
        device = open_device(arguments.device, cache=cache, sandbox=arguments.sandbox)
        try:
            with held_memory(arguments.hold_gib):
                rows = run(device, arguments, cache)
        finally:
            device.close()
    report(rows)
    sys.exit(any(row.verdict not in {"PASSED", RETRY} and row.plain_error is None for row in rows))


if __name__ == "__main__":
    main()
