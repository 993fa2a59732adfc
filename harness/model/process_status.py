"""The status records of the processes of one workspace.

A status record is control data: it determines when `harness start` ends a run, and which workers the planner assigns.
Each record has one owner, the process that writes it; every other process only reads it. The records are derived:
they describe running processes and may be deleted at any time. `harness.workspace.status` is the only module that reads
and writes them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.model.assignment import Assignment
from harness.model.base_models import StrictModel

FinishReason = Literal["exhausted", "stale"]
"""Reason why a worker has finished a problem: it searched the whole space, or had no improvement for too long."""

JudgeState = Literal["waiting", "starting", "idle", "busy", "given up", "closed"]
"""`waiting`: the judge ended and is started again after a backoff. `given up`: it failed too often and is not started
again."""

WorkerState = Literal["idle", "spent", "starting", "working", "waiting", "waiting for the model", "stopped"]
"""`spent`: its budget is used up. `waiting`: it waits for a verdict."""


class ProcessStatus(StrictModel):
    """Fields of every status record: its format, and the process that wrote it."""

    format: Literal[1] = 1
    pid: int = 0
    """The process that wrote the record; set by `write_status`."""
    process_start_ticks: int = 0
    """Start of that process in clock ticks since boot. With the pid it identifies the process, even after the system
    has assigned the pid to another process. Set by `write_status`."""


class StartStatus(ProcessStatus):
    """Written by `harness start` once, before it starts its child processes. `harness stop` and `serve` read it."""

    children: tuple[str, ...]
    """Names of the child processes: daemon, planner, worker-w01 ..."""
    run: str | None = None
    target: str | None = None
    problems: tuple[str, ...] = ()
    """Globs over the problems of this invocation."""
    started_at: str | None = None
    """In UTC."""
    max_evaluations: int | None = None
    """Limit of this invocation; None is no limit. The next two fields are such limits too."""
    max_minutes: float | None = None
    max_usd: float | None = None
    usd_before: float = 0.0
    """USD that the run had spent before this invocation."""


class JudgeStatus(StrictModel):
    """State of one judge; part of the daemon's record."""

    device: str
    state: JudgeState
    pid: int | None = None
    became_ready: bool = False
    """True after the judge was ready at least once since the daemon started."""
    failure: str | None = None
    """Reason for the last loss of the judge; None while it is ready."""
    problem: str | None = None
    """The problem of the request in progress; None without a request. The next five fields describe that request."""
    kind: str | None = None
    worker: str | None = None
    """The author of the candidate."""
    stage: str | None = None
    done: int = 0
    """Completed steps of the stage, out of `of`."""
    of: int = 0


class HostStatus(StrictModel):
    """One host of a cluster, as the head sees it. Part of the daemon's record."""

    name: str
    """Host name; a further node of the same host has `~2`, `~3` ... after it."""
    node: str
    """Ray's id of the node."""
    address: str = ""
    devices: tuple[str, ...] = ()
    """Devices with a judge: `NAME/cpu`, `NAME/cuda:0` ..."""
    gpus: tuple[str, ...] = ()
    """Models of its GPUs, as nvidia-smi lists them."""
    refused: str | None = None
    """Why none of its devices is used."""
    niceness: int = 0
    """Of its judges: a larger one gives way to other programs of the host."""
    clock_skew_s: float = 0.0
    """The host's clock minus the head's, in seconds. For people to look at; nothing depends on it."""


class DaemonStatus(ProcessStatus):
    """Written by the daemon whenever its state changes, at most five times a second.

    `harness start` reads from it whether the limit is reached and whether candidates are waiting.
    """

    queued: int = 0
    judges: tuple[JudgeStatus, ...] = ()
    hosts: tuple[HostStatus, ...] = ()
    """With `--cluster`: the hosts that have joined."""
    evaluations_done: int = 0
    """Evaluations recorded for this invocation of `harness start`, including those by an earlier daemon that ended."""
    limit_reached: bool = False
    paused: str | None = None
    """Fault of this machine that stops every judge. Queued candidates are retried until a judge is available."""
    messages: tuple[str, ...] = ()
    """Current problems of the daemon, for people."""

    @property
    def current(self) -> JudgeStatus | None:
        """The first judge with a request in progress."""
        return next((judge for judge in self.judges if judge.problem), None)


class PlannerStatus(ProcessStatus):
    """Written by the planner after a round that changed its content.

    `harness start` reads from its assignments whether an idle worker still has an assignment.
    """

    assignments: tuple[Assignment, ...] = ()
    """The current assignments."""
    finished: dict[str, dict[str, FinishReason]] = Field(default_factory=dict)
    """Worker -> the problems that it had finished when these assignments were decided."""
    confirmed: dict[str, str] = Field(default_factory=dict)
    """Problem -> text of its champion's speed-up."""
    messages: tuple[str, ...] = ()
    """Current problems of the planner, for people."""


class WorkerStatus(ProcessStatus):
    """Written by one worker at every event of its session.

    `harness start` reads from it whether the worker can still work, and the planner assigns the worker's next problem.
    """

    worker: str
    agent: str
    state: WorkerState
    problem: str | None = None
    last_message: str = ""
    """The last sentence of the agent, or the reason why the last session ended."""
    evaluations: int = 0
    usd: float = 0.0
    finished: dict[str, FinishReason] = Field(default_factory=dict)
    """Problems that this worker has finished, with the reason."""
    sessions_completed: int = 0
    """Sessions of this process that ended without a failure."""
    sessions_failed: int = 0
    last_failure: str | None = None
    """Reason of the last failure of a session."""
