"""Recordings of the launches of a Triton solution, which the trusted launcher replays on the sealed clock.

A record comes from the candidate's process and is not trusted. This module checks its form. The launcher's calls are
compared with the reference like those of any sealed solution, on fresh inputs and with poisoned workspaces. A solution
that does more than launch Triton kernels is not recorded; the judge's own clock times it.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.judge.build.report import resources_of_cubin
from harness.judge.checks import WorkloadCheck
from harness.judge.devices.interface import Memory
from harness.judge.input_data.layout import Layout
from harness.judge.memory_plan import MemoryPlan
from harness.judge.runners import Runner, RunnerFailed
from harness.judge.shared_memory import Region
from harness.judge.sides import Side, Stage, Staged, binary_hash
from harness.judge.stages import timed_as
from harness.model import launches
from harness.model.judging import BuildReport, JudgeStage
from harness.model.problem import Workload
from harness.runner import wire
from harness.runner.cubin import MalformedCubinError, check_size
from harness.runner.messages import Program, RecordCall

CALLS = 3
"""Calls of the solution itself on each workload, each checked and with fresh inputs."""
_RECORDED = 2
"""Number of these calls that are recorded. All records must be equal."""
_LARGEST = 64 << 20
_RECORD_S = 60.0
_LENGTH = 8
_WORD = 4
_MOST_SHARED = 1 << 20


class NotRecorded(Exception):  # noqa: N818 - an outcome: the bounded clock times the solution
    """The solution's calls cannot be replayed; the message is the reason."""


class _RecordPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _PointerArgument(_RecordPart):
    kind: Literal["pointer"]
    buffer: str
    offset: Annotated[int, Field(ge=0, lt=1 << 48)]


class _NumberArgument(_RecordPart):
    kind: Literal["value"]
    format: Literal["b", "B", "h", "H", "i", "I", "q", "Q", "f", "d"]
    value: int | float


Triple = tuple[int, int, int]


class _LaunchStep(_RecordPart):
    kind: Literal["launch"]
    cubin: Annotated[int, Field(ge=0)]
    symbol: Annotated[str, Field(pattern=r"^[A-Za-z0-9_$]+$", max_length=1000)]
    grid: Triple
    block: Triple
    shared_bytes: Annotated[int, Field(ge=0, le=_MOST_SHARED)]
    cluster: Triple | None
    cooperative: bool
    args: tuple[Annotated[_PointerArgument | _NumberArgument, Field(discriminator="kind")], ...]


class _FillStep(_RecordPart):
    kind: Literal["fill"]
    buffer: str
    offset: Annotated[int, Field(ge=0, multiple_of=_WORD)]
    bytes: Annotated[int, Field(gt=0, multiple_of=_WORD)]


class LaunchRecord(_RecordPart):
    """JSON header of a record that `harness.runner.recording` writes; the cubins follow it."""

    reason: str | None = None
    """Reason why the call cannot be replayed; the other fields are then empty."""
    steps: tuple[Annotated[_LaunchStep | _FillStep, Field(discriminator="kind")], ...] = Field(
        default=(), max_length=launches.MAX_LAUNCHES
    )
    workspaces: dict[str, Annotated[int, Field(gt=0, le=launches.MAX_WORKSPACE_BYTES)]] = {}
    cubins: tuple[Annotated[int, Field(gt=0)], ...] = ()
    """Size of each cubin in bytes."""


@dataclass(frozen=True)
class RecordedCall:
    """Plan of one call, and the cubins of its kernels, which the plan calls `NUMBER:SYMBOL`."""

    plan: launches.ResolvedPlan
    cubins: tuple[bytes, ...]


@dataclass(frozen=True)
class Recorded:
    """Recorded plans of a solution for all workloads."""

    cubins: tuple[bytes, ...]
    plans: Mapping[str, launches.ResolvedPlan]
    """Plan by uuid of the workload."""
    bounded_us: Mapping[str, float]
    """Microseconds of a call of the solution itself by the bounded clock, by uuid of the workload; information only."""

    @property
    def digests(self) -> tuple[str, ...]:
        """sha256 of each cubin."""
        return tuple(hashlib.sha256(cubin).hexdigest() for cubin in self.cubins)

    def staged(self) -> Staged:
        """Return the files and plans that a trusted launcher loads."""
        symbols: list[dict[str, str]] = [{} for _ in self.cubins]
        for plan in self.plans.values():
            for launch in plan.launches:
                number, _, symbol = launch.kernel.partition(":")
                symbols[int(number)][launch.kernel] = symbol

        def put(stage: Stage) -> Program:
            directories = []
            for number, cubin in enumerate(self.cubins):
                directory = stage.directory / str(number)
                directory.mkdir()
                (directory / "kernel.cubin").write_bytes(cubin)
                (directory / "names.json").write_text(json.dumps({"symbols": symbols[number]}))
                directories.append(stage.inside(directory))
            return Program("cuda", artefacts=tuple(directories))

        resources = tuple(
            resource
            for number, cubin in enumerate(self.cubins)
            for resource in resources_of_cubin(cubin, {symbol: symbol for symbol in symbols[number].values()})
        )
        plans = {uuid: plan.as_json() for uuid, plan in self.plans.items()}
        return Staged(put, _RECORD_S, plans, BuildReport(kernels=resources), binary=binary_hash(self.cubins, plans))


@dataclass(frozen=True)
class RecordableWorkload:
    """One workload with the layout, memory and check of its calls."""

    workload: Workload
    layout: Layout
    memory: Memory
    check: WorkloadCheck
    plan: MemoryPlan | None


def record(side: Side, workloads: Iterable[RecordableWorkload], call_limit_s: Callable[[float], float]) -> Recorded:
    """Make checked calls of a solution on every workload, and return the recorded launches.

    Args:
        side: the solution in its own runner, on the bounded clock.
        workloads: created lazily, so that only one workload's memory exists at a time.
        call_limit_s: returns the seconds that a call may take, given the largest number of seconds for it.

    Raises:
        NotRecorded: a call cannot be replayed, or the launches differ between calls.
        RunnerFailed: the solution is wrong or broke.
    """
    plans: dict[str, launches.ResolvedPlan] = {}
    bounded_us: dict[str, float] = {}
    cubins: list[bytes] = []
    for recordable in workloads:
        side.prepare(recordable.workload, recordable.layout, 1, plan=recordable.plan)
        calls, times_ns = [], []
        for number in range(CALLS):
            placement, call_ns = _checked_call(side, recordable, call_limit_s(side.first_call_s))
            times_ns.append(call_ns)
            if number >= CALLS - _RECORDED:
                calls.append(_recorded_call(side.runner, recordable.layout, placement))
        if any(call != calls[0] for call in calls):
            raise NotRecorded("its launches depend on the values of the inputs")
        bounded_us[recordable.workload.uuid] = statistics.median(times_ns) / 1e3
        plans[recordable.workload.uuid] = _with_shared_numbers(calls[0], cubins)
    return Recorded(tuple(cubins), plans, bounded_us)


def _checked_call(side: Side, recordable: RecordableWorkload, within_s: float) -> tuple[int, int]:
    """Make one call on fresh inputs. Return its placement and its nanoseconds.

    Raises:
        RunnerFailed: the solution is wrong or broke.
    """
    memory, check = recordable.memory, recordable.check
    check.sets.fill([memory.views(0)])
    batch = side.batch(memory, range(1), within_s)
    inputs = memory.inputs(0)
    outcome = check.check(inputs, check.expected(inputs), memory.outputs(side.connection, 0))
    if outcome.reason is not None:
        raise RunnerFailed(outcome.verdict, outcome.reason)
    return batch.readings[-1].placement, batch.ns


@timed_as(JudgeStage.CANDIDATE)
def _recorded_call(runner: Runner, layout: Layout, placement: int) -> RecordedCall:
    """Repeat the last call with recording, on the inputs that are still at its placement."""
    region = Region(_LARGEST, sealed=False)
    try:
        runner.ask(RecordCall(placement), wire.Code.READY, _RECORD_S, (region.descriptor,))
        return parse(memoryview(region.all.numpy().data), layout)
    finally:
        region.close()


def parse(data: memoryview, layout: Layout) -> RecordedCall:
    """Check the form of a record, and return its plan.

    Args:
        data: the record, followed by bytes that are ignored.
        layout: of the workload whose inputs and outputs the record names.

    Raises:
        NotRecorded: the record contains a reason why the call cannot be replayed, or it is malformed.
    """
    begin = _LENGTH + max(0, int.from_bytes(data[:_LENGTH], "little", signed=True))
    try:
        header = LaunchRecord.model_validate_json(bytes(data[_LENGTH:begin]))
    except ValidationError as error:
        first = error.errors()[0]
        raise NotRecorded(f"its record is malformed: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if header.reason is not None:
        raise NotRecorded(" ".join(header.reason.split())[:300])
    sizes = {f"input:{field.name}": field.bytes for field in layout.inputs if field.scalar is None}
    sizes |= {f"output:{field.name}": field.bytes for field in layout.outputs}
    sizes |= {f"workspace:{name}": size for name, size in header.workspaces.items()}
    if sum(header.workspaces.values()) > launches.MAX_WORKSPACE_BYTES or begin + sum(header.cubins) > len(data):
        raise NotRecorded("its record is malformed: it asks for too much memory")
    cubins = []
    try:
        for size in header.cubins:
            cubins.append(bytes(data[begin : begin + size]))
            check_size(cubins[-1])
            begin += size
    except MalformedCubinError as error:
        raise NotRecorded(f"its record is malformed: {error}") from None
    steps = tuple(
        _fill(step, sizes) if isinstance(step, _FillStep) else _launch(step, sizes, len(cubins))
        for step in header.steps
    )
    plan = launches.ResolvedPlan(steps, {name: (size, "none") for name, size in header.workspaces.items()})
    return RecordedCall(plan, tuple(cubins))


def _fill(step: _FillStep, sizes: Mapping[str, int]) -> launches.ResolvedFill:
    if step.offset + step.bytes > sizes.get(step.buffer, 0):
        raise NotRecorded("its record is malformed: it fills memory outside its buffers")
    return launches.ResolvedFill(step.buffer, step.offset, step.bytes)


def _launch(step: _LaunchStep, sizes: Mapping[str, int], cubins: int) -> launches.ResolvedLaunch:
    grid_fits = all(0 < extent <= limit for extent, limit in zip(step.grid, launches.MAX_GRID, strict=True))
    block_fits = all(0 < extent <= limit for extent, limit in zip(step.block, launches.MAX_BLOCK, strict=True))
    threads, blocks = math.prod(step.block), math.prod(step.cluster or ())
    if not grid_fits or not block_fits or threads > launches.MAX_THREADS or not 0 < blocks <= launches.MAX_CLUSTER:
        raise NotRecorded("its record is malformed: a grid, block or cluster is larger than the hardware allows")
    if step.cubin >= cubins:
        raise NotRecorded("its record is malformed: it names a kernel that it does not contain")
    arguments: list[launches.Pointer | launches.Value] = []
    for argument in step.args:
        if isinstance(argument, _NumberArgument):
            arguments.append(launches.Value(argument.format, argument.value))
            continue
        if argument.offset > sizes.get(argument.buffer, -1):
            raise NotRecorded("its record is malformed: a pointer is outside the call's buffers")
        arguments.append(launches.Pointer(argument.buffer, argument.offset))
    name = f"{step.cubin}:{step.symbol}"
    return launches.ResolvedLaunch(
        name, step.grid, step.block, step.shared_bytes, step.cluster, step.cooperative, tuple(arguments)
    )


def _with_shared_numbers(call: RecordedCall, cubins: list[bytes]) -> launches.ResolvedPlan:
    """Return the plan with its kernels numbered as in `cubins`, to which missing cubins are appended."""
    numbers = []
    for cubin in call.cubins:
        if cubin not in cubins:
            cubins.append(cubin)
        numbers.append(cubins.index(cubin))

    def renumbered(step: launches.ResolvedLaunch) -> launches.ResolvedLaunch:
        number, _, symbol = step.kernel.partition(":")
        return replace(step, kernel=f"{numbers[int(number)]}:{symbol}")

    steps = (renumbered(step) if isinstance(step, launches.ResolvedLaunch) else step for step in call.plan.steps)
    return launches.ResolvedPlan(tuple(steps), call.plan.workspaces)
