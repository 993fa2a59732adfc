"""What the daemon asks of a judge and what the judge answers: one JSON object a line, both ways.

A judge is a process of its own, on this host or another: everything a request needs is named in it, and the
answer carries everything an entry records but the chain, the run and the time.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from harness.model.checking import CheckAnswer
from harness.model.counters import CounterReport, KernelResources
from harness.model.verdict import Trust, Verdict

JUDGE_PROTOCOL = 2
"""Version of the messages below and of what a verdict and a speed-up in them mean.

Numbers of different versions are not compared: only entries of this version count in standings (docs/judge.md).
"""
_UNNAMED = 1
"""The version of a message that does not name its version."""
PROTOCOL_FIX = (
    "install the same version of kernel-harness for both (HARNESS_JUDGE_COMMAND, if set, names the judge), "
    "then start the harness again"
)


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


ReferenceForm = Literal[
    "max_autotune", "cuda_graph", "sdpa_math", "sdpa_flash", "sdpa_efficient", "sdpa_cudnn", "cublaslt"
]
"""Form of the reference that is measured on request: `torch.compile(mode="max-autotune")`, eagerly captured as a CUDA
graph, eagerly with one backend of `scaled_dot_product_attention` only, eagerly with cuBLASLt's products."""
MoreBaseline = ReferenceForm | Literal["library"]
"""What is measured on request; `library` stands for each file of the problem's `baselines/`."""
LIBRARY_PREFIX = "library_"
LibraryVariant = Annotated[str, StringConstraints(pattern=r"^library_[a-z][a-z0-9_]*$")]
"""`library_NAME`: the file `baselines/NAME.py` of the problem."""
Variant = Literal["eager", "compile", "baseline"] | ReferenceForm | LibraryVariant
"""A baseline: the reference eagerly or under `torch.compile`, the problem's `baseline/`, or one that is measured on
request."""
BoundRates = Literal["listed", "measured"]
"""Source of the device's rates in a bound: the vendor's figures, or a measurement on the judge's host."""
Baselines = dict[str, dict[Variant, float | None]]
"""Workload uuid -> variant -> microseconds a call by one clock, null where the variant was not correct."""


class WorkloadResult(_Frozen):
    """One workload of one evaluation. Latencies are geometric means over the kept blocks, in microseconds a call."""

    uuid: str
    verdict: Verdict
    reason: str | None = None
    latency_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    """exp(mean of `log_ratios`) = baseline_us / latency_us."""
    speedup_ci95: tuple[float, float] | None = None
    log_ratios: tuple[float, ...] = ()
    """Per kept block, ln(baseline / candidate): the interval can be derived again from these."""
    placement_error: float | None = Field(default=None, ge=0)
    """Standard error of their mean that comes from the finite number of placements in memory; part of the interval."""
    process_error: float | None = Field(default=None, ge=0)
    """Standard error of their mean that comes from both sides' processes, which all workloads share."""
    claimed_us: float | None = None
    bounded_us: float | None = None
    """Of a recorded solution: a call of the solution itself, its host code included, by the bounded clock. Of a few
    calls, and without an interval: information."""
    subtracted_us: float | None = None
    """What was subtracted from a call: the clock's own overhead, or a batch's handshake divided by its calls."""
    sol_us: float | None = None
    floor_us: float | None = None
    bound_rates: BoundRates | None = None
    score: float | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    matched: float | None = None
    checked: int = 0
    """Timed calls whose outputs were checked in full."""
    calls: int = 0
    blocks: int = 0
    discarded: int = 0
    variant: Variant | None = None
    """The baseline this workload was compared with."""
    note: str | None = None
    """A rule that could not be applied, and why."""


class Summary(_Frozen):
    """The workloads together: geometric mean of speed-ups, arithmetic mean of scores; null unless all passed."""

    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    score: float | None = None
    passed: int
    of: int


class Recording(_Frozen):
    """Result of recording the launches of a Triton solution."""

    cubins: tuple[str, ...] = ()
    """sha256 of each kernel that was replayed."""
    reason: str | None = None
    """Why nothing was; the solution was timed by the bounded clock."""


class Cost(_Frozen):
    """Seconds spent."""

    build_s: float = 0.0
    judge_s: float = 0.0


class DeviceRecord(BaseModel):
    """The device as it was while it judged. Devices add fields of their own (clocks, throttle reasons ...)."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    id: str


class EnvironmentRecord(BaseModel):
    """The software that judged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    harness: str
    judge: str
    """sha256 over the judge's, the runner's and the sol package's sources: the judge version in a measurement's key."""
    python: str
    torch: str
    sandbox: str
    """`bubblewrap` or `none`."""


class _Versioned(_Frozen):
    """A message that names the sender's protocol version."""

    protocol: int = JUDGE_PROTOCOL

    @model_validator(mode="before")
    @classmethod
    def _read_unnamed(cls, value: object, info: ValidationInfo) -> object:
        """Read a line without a version as one of the first version, which did not name it."""
        if info.mode == "json" and isinstance(value, dict):
            return {"protocol": _UNNAMED, **value}
        return value


class JudgeRequest(_Versioned):
    """Judge one candidate, measure a problem's baselines (kind `baseline`), or profile a candidate (kind `profile`).

    `solution_dir` is null for kind `baseline` only. A profile is no verdict: its answer is entered nowhere.
    """

    op: Literal["judge"] = "judge"
    id: str
    kind: Literal["evaluation", "confirmation", "baseline", "profile"]
    problem: str
    """The problem's key, `suite/name`."""
    problem_dir: str
    """A snapshot of the problem as committed; the judge reads nothing else of the repository."""
    problem_digest: str
    data_root: str | None = None
    """Directory of the problem's safetensors files besides `problem_dir`."""
    solution_dir: str | None = None
    """A snapshot of the candidate's tree."""
    baseline: dict[str, Variant] = Field(default_factory=dict)
    """Workload uuid -> the baseline to compare with, as the baseline entry found it."""
    sealed_baseline: dict[str, Variant] = Field(default_factory=dict)
    """The same for a candidate that is timed by the sealed clock; a workload without one has `baseline`'s."""
    more_variants: tuple[MoreBaseline, ...] = ()
    """Kind `baseline`: what is measured beyond the usual variants, where the problem and the device have it."""
    half_width: float = 0.02
    """Stop timing a workload when the half-width of its interval is below this share."""
    max_judge_s: float = 60.0
    """Give up after so long: TIMEOUT."""
    workload: str | None = None
    """Kind `profile`: the workload's uuid, or its beginning; null for the one with the most data."""


class JudgeAnswer(_Versioned):
    """The outcome of one request."""

    event: Literal["answer"] = "answer"
    id: str
    verdict: Verdict
    reason: str | None = None
    trust: Trust = Trust.BOUNDED
    recording: Recording | None = None
    """Of a Triton solution that was judged on a GPU."""
    resources: tuple[KernelResources, ...] = ()
    """Of a sealed or recorded solution: what its kernels occupy."""
    counters: CounterReport | None = None
    """Kind `profile`."""
    workloads: tuple[WorkloadResult, ...] = ()
    summary: Summary
    device: DeviceRecord
    environment: EnvironmentRecord
    cost: Cost
    baselines: Baselines = Field(default_factory=dict)
    """Kind `baseline`: by the clock for bounded candidates."""
    sealed_baselines: Baselines = Field(default_factory=dict)
    """Kind `baseline`: by the clock for sealed candidates; empty where the device has one clock."""


class JudgeReady(_Versioned):
    """The first line a judge writes, and after it the device is held."""

    event: Literal["ready"] = "ready"
    target: str
    """cpu, h200, b200 ..."""
    device: DeviceRecord
    environment: EnvironmentRecord


class JudgeProgress(_Frozen):
    """Where a request stands; for people to look at, never kept."""

    event: Literal["progress"] = "progress"
    id: str
    stage: str
    done: int = 0
    of: int = 0


class _Handshake(BaseModel):
    """What a message of any protocol version has."""

    event: str = "request"
    protocol: int = _UNNAMED


def protocol_mismatch(line: bytes | str, *events: Literal["ready", "answer", "request"]) -> str | None:
    """Return how the protocol of a message differs from ours, as the rest of a sentence about its sender.

    Args:
        line: a message of any protocol version, or anything else.
        events: the kinds of messages that name the sender's protocol version; no other kind is looked at.
    """
    try:
        found = _Handshake.model_validate_json(line)
    except ValidationError:
        return None  # not a message at all: the reader of messages reports it
    if found.event not in events or found.protocol == JUDGE_PROTOCOL:
        return None
    return f"speaks judge protocol {found.protocol}, and this process speaks judge protocol {JUDGE_PROTOCOL}"


JudgeEvent = Annotated[JudgeReady | JudgeProgress | JudgeAnswer | CheckAnswer, Field(discriminator="event")]
