"""Messages between the daemon and a judge, one JSON object a line in both directions, and files of a worker's checks.

A judge is a separate process, on this host or another. A request names all of the judge's inputs. An answer contains
all fields of an entry except the chain, the run and the time.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from harness.model.base_models import LenientModel, StrictModel
from harness.model.counters import CounterReport, KernelResources
from harness.model.verdict import Trust, Verdict

JUDGE_PROTOCOL = 2
"""Version of the messages below, and of the meaning of their verdicts and speed-ups.

Numbers of different versions are not compared: only entries of this version count in standings (docs/judge.md).
"""
PROTOCOL_FIX = (
    "install the same version of kernel-harness for both (HARNESS_JUDGE_COMMAND, if set, names the judge), "
    "then start the harness again"
)


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
"""Workload uuid -> variant -> microseconds per call by one clock; null where the variant is incorrect."""


class WorkloadResult(StrictModel):
    """Result of one workload. Latencies are geometric means over the kept blocks, in microseconds per call."""

    uuid: str
    verdict: Verdict
    reason: str | None = None
    latency_us: float | None = None
    baseline_us: float | None = None
    speedup: float | None = None
    """exp(mean of `log_ratios`) = baseline_us / latency_us."""
    speedup_ci95: tuple[float, float] | None = None
    log_ratios: tuple[float, ...] = ()
    """ln(baseline / candidate) of each kept block; the interval can be computed again from them."""
    placement_error: float | None = Field(default=None, ge=0)
    """Standard error of the mean log ratio from the finite number of placements in memory; part of the interval."""
    process_error: float | None = Field(default=None, ge=0)
    """Standard error of the mean log ratio from both sides' processes, which all workloads share."""
    claimed_us: float | None = None
    bounded_us: float | None = None
    """Recorded solutions: latency of a call of the solution itself with its host code, by the bounded clock. It comes
    from a few calls and has no interval: information only."""
    subtracted_us: float | None = None
    """Overhead per call that was subtracted: that of the clock, or of a batch's handshake divided by its calls."""
    sol_us: float | None = None
    floor_us: float | None = None
    bound_rates: BoundRates | None = None
    score: float | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    matched: float | None = None
    checked: int = 0
    """Number of timed calls whose outputs were checked completely."""
    calls: int = 0
    blocks: int = 0
    discarded: int = 0
    variant: Variant | None = None
    """The baseline of the speed-up."""
    note: str | None = None
    """A rule that could not be applied, with the reason."""


class Summary(StrictModel):
    """Geometric mean of the workloads' speed-ups and arithmetic mean of their scores; null unless all passed."""

    speedup: float | None = None
    speedup_ci95: tuple[float, float] | None = None
    score: float | None = None
    passed: int
    of: int


class Recording(StrictModel):
    """Result of recording the launches of a Triton solution."""

    cubins: tuple[str, ...] = ()
    """sha256 of each kernel that was replayed."""
    reason: str | None = None
    """Reason for no replay; the bounded clock timed the solution then."""


class Cost(StrictModel):
    """Seconds of building and judging."""

    build_s: float = 0.0
    judge_s: float = 0.0


class DeviceRecord(LenientModel):
    """State of the device during judging. Each kind of device adds its own fields (clocks, throttle reasons ...)."""

    name: str
    id: str


class EnvironmentRecord(LenientModel):
    """Versions of the judge's software."""

    harness: str
    judge: str
    """sha256 over the sources of the packages judge, runner and sol: the judge version in a measurement's key."""
    python: str
    torch: str
    sandbox: str
    """`bubblewrap` or `none`."""


class _Versioned(StrictModel):
    """A message that names the sender's protocol version."""

    protocol: int = JUDGE_PROTOCOL


class JudgeRequest(_Versioned):
    """Judge one candidate, measure a problem's baselines (kind `baseline`), or profile a candidate (kind `profile`).

    `solution_dir` is null for kind `baseline` only. A profile has no verdict, and its answer makes no ledger entry.
    """

    op: Literal["judge"] = "judge"
    id: str
    kind: Literal["evaluation", "confirmation", "baseline", "profile"]
    problem: str
    """The problem's key, `suite/name`."""
    problem_dir: str
    """Snapshot of the committed problem; the judge reads no other part of the repository."""
    problem_digest: str
    data_root: str | None = None
    """Directory of the problem's safetensors files besides `problem_dir`."""
    solution_dir: str | None = None
    """Snapshot of the candidate's tree."""
    baseline: dict[str, Variant] = Field(default_factory=dict)
    """Workload uuid -> the fastest correct baseline of the baseline entry, which the candidate is compared with."""
    sealed_baseline: dict[str, Variant] = Field(default_factory=dict)
    """The same for candidates timed by the sealed clock; a workload that is missing here uses `baseline`."""
    more_variants: tuple[MoreBaseline, ...] = ()
    """Kind `baseline`: additional baselines to measure, where the problem and the device have them."""
    known_binaries: dict[str, Verdict] = Field(default_factory=dict)
    """Binary of a sealed candidate -> the verdict of its evaluation: a candidate that is one of them is only built."""
    half_width: float = 0.02
    """Timing of a workload stops when the half-width of its interval is below this share of the speed-up."""
    max_judge_s: float = 60.0
    """Time limit in seconds, after which the verdict is TIMEOUT."""
    workload: str | None = None
    """Kind `profile`: the workload's uuid or a prefix of it; null for the workload with the most data."""


class JudgeAnswer(_Versioned):
    """The outcome of one request."""

    event: Literal["answer"] = "answer"
    id: str
    verdict: Verdict
    reason: str | None = None
    trust: Trust = Trust.BOUNDED
    recording: Recording | None = None
    """Only for a Triton solution that was judged on a GPU."""
    resources: tuple[KernelResources, ...] = ()
    """Resources of the kernels of a sealed or recorded solution."""
    counters: CounterReport | None = None
    """Kind `profile` only."""
    binary: str | None = None
    """`sha256:...` of the compiled candidate; null where nothing was compiled before its first call."""
    measured: bool = True
    """False if `known_binaries` has the candidate's: the verdict is the one named there, and nothing was run."""
    workloads: tuple[WorkloadResult, ...] = ()
    summary: Summary
    device: DeviceRecord
    environment: EnvironmentRecord
    cost: Cost
    baselines: Baselines = Field(default_factory=dict)
    """Kind `baseline`: latencies by the clock for bounded candidates."""
    sealed_baselines: Baselines = Field(default_factory=dict)
    """Kind `baseline`: latencies by the clock for sealed candidates; empty where the device has one clock."""


class JudgeReady(_Versioned):
    """The first message of a judge; from then on it holds the device."""

    event: Literal["ready"] = "ready"
    target: str
    """cpu, h200, b200 ..."""
    device: DeviceRecord
    environment: EnvironmentRecord


class JudgeProgress(StrictModel):
    """Progress of a request. It is displayed and not stored."""

    event: Literal["progress"] = "progress"
    id: str
    stage: str
    done: int = 0
    of: int = 0


class _Handshake(BaseModel):
    """Fields that messages of every protocol version have; 0 stands for a message that names no version."""

    event: str = "request"
    protocol: int = 0


def protocol_mismatch(line: bytes | str, *events: Literal["ready", "answer", "request"]) -> str | None:
    """Return a predicate about a message's sender if its protocol version differs from `JUDGE_PROTOCOL`; else None.

    Args:
        line: a message of any protocol version, or any other text.
        events: kinds of messages that name the sender's protocol version; other kinds are ignored.
    """
    try:
        handshake = _Handshake.model_validate_json(line)
    except ValidationError:
        return None  # not a message: the reader of messages reports it
    if handshake.event not in events or handshake.protocol == JUDGE_PROTOCOL:
        return None
    return f"uses judge protocol {handshake.protocol}, and this process uses judge protocol {JUDGE_PROTOCOL}"


ShownCode = Literal["", "assembly", "ptx", "sass"]
"""Code of a build that a check shows: none, the CPU's assembly, PTX, or a GPU's machine code."""


# A check makes no ledger entry and times nothing. It reports to an agent within seconds whether a solution is correct.


class CheckOrder(StrictModel):
    """A worker's request to the daemon; the solution is in the same directory."""

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    worker: str
    problem: str
    target: str
    kind: Literal["check", "baseline"] = "check"
    """`baseline`: measure the problem's baselines if they are missing; no solution is checked."""
    show: ShownCode = ""
    function: str = ""
    """Part of the name of the function or kernel whose code is shown; empty for the entry."""


class CheckRequest(StrictModel):
    """Build a candidate and compare its outputs with the reference, also while a candidate is being judged."""

    op: Literal["check"] = "check"
    id: str
    problem: str
    problem_dir: str
    problem_digest: str
    data_root: str | None = None
    solution_dir: str
    show: ShownCode = ""
    function: str = ""


class BuildReport(StrictModel):
    """Warnings, resources and code of a build."""

    warnings: tuple[str, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    """Of sealed builds."""
    code: str = ""
    """The requested code, cut to a limited number of lines, or the reason why it cannot be shown."""


class CheckedWorkload(StrictModel):
    """One workload of a check."""

    uuid: str
    verdict: Verdict
    reason: str | None = None
    max_abs_error: float | None = None
    matched: float | None = None
    """Share of elements within the tolerance: the minimum over all calls."""
    calls: int = 0


class CheckAnswer(StrictModel):
    """The outcome of a check."""

    event: Literal["checked"] = "checked"
    id: str
    verdict: Verdict | None
    """null where this machine could not run the check; see `reason`."""
    reason: str | None = None
    workloads: tuple[CheckedWorkload, ...] = ()
    """The checked workloads, in the problem's order."""
    unchecked: int = 0
    """Number of workloads that were not checked: the time limit expired, or an earlier failure ended the process."""
    build: BuildReport = Field(default_factory=BuildReport)
    build_s: float = 0.0
    check_s: float = 0.0


class CheckReply(StrictModel):
    """The daemon's reply to a worker."""

    answer: CheckAnswer | None = None
    """null for a baseline: the ledger contains its entry."""
    error: str | None = None
    """Reason for a missing answer."""


JudgeEvent = Annotated[JudgeReady | JudgeProgress | JudgeAnswer | CheckAnswer, Field(discriminator="event")]
