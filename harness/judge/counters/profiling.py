"""Profile a solution that passed on one workload: counters and bottleneck by Nsight Compute, and latency by events.

The latencies, with a cold and with a warm L2, are reported with the counters and are never part of a verdict.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.judge.checks import WorkloadSets
from harness.judge.counters.bottleneck import with_bottleneck
from harness.judge.counters.metrics import ProfiledLaunch, counters_of
from harness.judge.counters.ncu import MAX_LAUNCHES, profile_request
from harness.judge.counters.replays import Replay, find_replay, replay_key
from harness.judge.devices.interface import Device
from harness.judge.input_data.inputs import InputSource
from harness.judge.input_data.layout import Layout, layout_of
from harness.judge.isolation.resource_limits import GIB
from harness.judge.isolation.sandbox import path_in_stage
from harness.judge.runners import NoDeviceMemory, RunnerFailed
from harness.judge.sides import Stage, Staged, load_solution_side
from harness.model.config import SandboxKind
from harness.model.counters import CounterReport, KernelCounters, kernel_name
from harness.model.problem import Problem, Workload
from harness.model.solution import Solution
from harness.runner import wire
from harness.runner.messages import MeasureColdAndWarm, Program
from harness.sol.hardware import CPU

_MAX_BYTES = 4 * GIB
"""Inputs and outputs of a profiled call; the inputs are passed in a file."""
_WITHIN_S = 30.0


@dataclass(frozen=True)
class ProfileTarget:
    """Device, sandbox and cache of a profile."""

    target: str
    """Name of the target, such as cpu or h200."""
    device_name: str
    device_id: str
    sandbox: SandboxKind
    cache_dir: Path


def find_profiled(
    problem: Problem, solution: Solution, uuid: str | None, where: ProfileTarget
) -> tuple[Workload, Replay] | CounterReport:
    """Return the workload and the replay of a solution that passed here, or a report with the reason for no profile.

    Args:
        problem: problem of the solution.
        solution: current content of the solution, by which its replay is found.
        uuid: uuid of a workload, or its beginning; None for the workload with the most data.
        where: device, sandbox and cache.
    """
    language = solution.spec.language
    if where.target == CPU:
        return CounterReport(reason="no hardware counters are read on the target cpu")
    if language not in ("cuda", "triton"):
        return CounterReport(
            reason=f"a solution of language {language} makes its launches from its own host code, which never runs "
            "under a profiler",
            fix="write it in the language cuda, or in triton with launches that can be recorded",
        )
    workload = choose_workload(problem, uuid)
    if workload is None:
        uuids = ", ".join(existing.uuid[:8] for existing in problem.workloads)
        return CounterReport(reason=f"the problem has no workload {str(uuid)[:40]!r}", fix=f"name one of {uuids}")
    replay = find_replay(where.cache_dir, replay_key(problem, solution, where.device_name))
    if replay is None:
        recorded = " and its launches were recorded" if language == "triton" else ""
        return CounterReport(
            workload=workload.uuid,
            reason=f"only a solution that PASSED on this kind of device{recorded} is profiled, and this judge has no "
            "record of this one",
            fix="have it judged first",
            needs_verdict=True,
        )
    return workload, replay


def choose_workload(problem: Problem, uuid: str | None) -> Workload | None:
    """Return a workload of a problem; None if no workload matches.

    Args:
        problem: the problem.
        uuid: uuid of the workload, or its beginning; None for the workload with the most data.
    """
    if uuid is None:
        return max(problem.workloads, key=lambda workload: layout_of(problem, workload).io_bytes)
    matching = [workload for workload in problem.workloads if workload.uuid.startswith(uuid)]
    exact = [workload for workload in matching if workload.uuid == uuid]
    return next(iter(exact or matching), None)


def profile_replay(
    problem: Problem, workload: Workload, replay: Replay, source: InputSource, where: ProfileTarget
) -> CounterReport:
    """Return the counters of one call, or the reason for their absence. A failure of the profiler raises nothing.

    Args:
        problem: problem of the workload.
        workload: workload to profile.
        replay: the solution that passed.
        source: source of new inputs.
        where: device, sandbox and cache.
    """
    begin = time.monotonic()
    layout = layout_of(problem, workload)
    plan = replay.plans.get(workload.uuid)
    if plan is None:
        return CounterReport(workload=workload.uuid, reason="the solution has not passed on this workload")
    if layout.input_stride + layout.output_stride > _MAX_BYTES:
        return CounterReport(
            workload=workload.uuid,
            reason=f"its inputs and outputs have more than {_MAX_BYTES >> 30} GiB",
            fix="profile a smaller workload, with --workload",
        )
    with tempfile.TemporaryDirectory(prefix="kernel-harness-profile-", dir=_scratch(layout)) as directory:
        stage = Path(directory) / "stage"
        _write_stage(stage, layout, workload.uuid, replay, source.draw(workload), where.sandbox)
        result = profile_request(stage, device_id=where.device_id, sandbox=where.sandbox)
    launches = [step for step in plan["steps"] if step["kind"] == "launch"]
    kernels = tuple(_matched(result.launches, [step["kernel"] for step in launches], replay.symbols))
    reason, fix = result.reason, result.fix
    if not kernels and reason is None:
        reason = "Nsight Compute read counters of no launch of this solution"
    return CounterReport(
        workload=workload.uuid,
        kernels=kernels[:MAX_LAUNCHES],
        launches=len(launches),
        reason=reason,
        fix=fix,
        took_s=round(time.monotonic() - begin, 2),
    )


def _scratch(layout: Layout) -> str | None:
    """Return the directory of the file system in memory if it has space for the inputs, else None."""
    memory = Path("/dev/shm")  # noqa: S108 - the caller creates a private directory in it
    if memory.is_dir() and shutil.disk_usage(memory).free > 2 * layout.input_stride + GIB:
        return str(memory)
    return None


def _write_stage(
    stage: Path, layout: Layout, uuid: str, replay: Replay, inputs: Mapping[str, object], sandbox: SandboxKind
) -> None:
    """Write the launcher's files: cubins, the bytes of the inputs, and the request."""
    stage.mkdir()
    artefacts = [path_in_stage(sandbox, stage, directory) for directory in replay.copy_artefacts(stage)]
    data = stage / "inputs"
    data.write_bytes(b"")
    with data.open("r+b") as file:
        file.truncate(layout.input_stride)
        for field in layout.inputs:
            value = inputs[field.name]
            if isinstance(value, torch.Tensor) and field.scalar is None and field.bytes:
                file.seek(field.offset)
                file.write(value.contiguous().view(torch.uint8).cpu().numpy().data)
    request = {
        "artefacts": artefacts,
        "plan": replay.plans[uuid],
        "data": path_in_stage(sandbox, stage, data),
        "input_bytes": layout.input_stride,
        "output_bytes": layout.output_stride,
        "inputs": {field.name: field.offset for field in layout.inputs},
        "outputs": {field.name: field.offset for field in layout.outputs},
        "updates": [[source.offset, target.offset, target.bytes] for source, target in layout.updated],
    }
    (stage / "request.json").write_text(json.dumps(request))


def _matched(
    rows: tuple[ProfiledLaunch, ...], kernels: list[str], symbols: Mapping[str, str]
) -> Iterator[KernelCounters]:
    """Yield the counters of each launch. Rows are in the plan's order, and rows of other kernels are skipped.

    Another kernel is, for example, a fill of the driver. If no row has the symbol of a kernel, Nsight Compute writes
    names in another form. Rows are then matched by order if there is one for each launch.
    """
    known_symbols = set(symbols.values())
    is_named = any(row.symbol in known_symbols for row in rows)
    if not is_named and len(rows) != min(len(kernels), MAX_LAUNCHES):
        return
    launch = 0
    for row in rows:
        if launch < len(kernels) and (not is_named or symbols.get(kernels[launch]) == row.symbol):
            yield with_bottleneck(counters_of(kernel_name(kernels[launch]), launch, row.values))
            launch += 1


def staged_replay(replay: Replay) -> Staged:
    """Return a replay in the form that a trusted launcher loads."""

    def put(stage: Stage) -> Program:
        directories = [stage.inside(directory) for directory in replay.copy_artefacts(stage.directory)]
        return Program("cuda", artefacts=tuple(directories))

    return Staged(put, _WITHIN_S, replay.plans)


def cold_and_warm_us(
    device: Device, problem: Problem, workload: Workload, replay: Replay, source: InputSource
) -> tuple[float, float] | None:
    """Measure a call with L2 displaced before it, and a call directly after another.

    Args:
        device: the GPU.
        problem: problem of the workload.
        workload: workload to measure.
        replay: the solution.
        source: source of new inputs.

    Returns:
        Microseconds of the cold call and of the warm call; None if a call fails.
    """
    clock = device.sealed_clock
    layout = layout_of(problem, workload)
    try:
        with closing(load_solution_side(clock, staged_replay(replay))) as side:
            memory = clock.memory(layout)
            side.prepare(workload, layout, memory.capacity)
            WorkloadSets(problem, source, workload).fill([memory.views(0)])
            device.runners.settle()
            with device.hardware.timing():
                batch = side.batch(memory, range(1), _WITHIN_S)
                message = MeasureColdAndWarm(batch.readings[-1].placement)
                record = side.runner.ask(message, wire.Code.READY, _WITHIN_S)
    except (RunnerFailed, NoDeviceMemory, torch.OutOfMemoryError):
        return None
    overhead_ns = clock.calibration.call_overhead_ns
    cold, warm = (max(ns - overhead_ns, 0.0) / 1e3 for ns in (record.call, record.claimed_ns))
    return cold, warm
