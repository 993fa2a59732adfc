"""The end of a run: limits that are reached, nothing left to do, and failures that prevented all work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from harness.child_process import ChildProcess, output_file
from harness.errors import ConfigurationError
from harness.model.printable import amount_of, count_of
from harness.model.process_status import DaemonStatus, FinishReason, PlannerStatus, WorkerStatus
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import judge_log_file

WORKER_PREFIX = "worker-"
"""Beginning of the name of a worker's process."""
_SETTLED_S = 3.0
"""The run ends after this time without work for any process."""


@dataclass(frozen=True)
class Limits:
    """The limits that end this invocation; None is no limit."""

    max_evaluations: int | None = None
    max_minutes: float | None = None
    max_usd: float | None = None
    """Limit of this invocation only; `agent.overall.usd` is the limit of the whole run."""


@dataclass(frozen=True)
class Snapshot:
    """The status records of the running child processes; None for one that has not written its record yet."""

    daemon: DaemonStatus | None
    planner: PlannerStatus | None
    workers: dict[str, WorkerStatus | None]
    elapsed_s: float
    messages: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The end of an invocation."""

    reason: str
    interrupted: bool = False
    failure: ConfigurationError | None = None
    """Failure that prevented all work: no judge became ready, all sessions failed, or a limit allowed no request."""
    failed_sessions: tuple[str, ...] = ()
    """One line for each worker with a failed session: the last failure."""


class RunEnd:
    """Decides when an invocation of `harness start` ends, and as a success or a failure.

    Args:
        workers: the workers' processes, by name.
    """

    def __init__(self, workspace: Workspace, limits: Limits, workers: Mapping[str, ChildProcess]) -> None:
        self._workspace, self._limits, self._workers = workspace, limits, workers
        self._idle_since: float | None = None
        # Progress of this invocation, including that of child processes that have ended since.
        self._was_evaluated = self._judge_was_ready = False
        self._records: dict[tuple[str, int], WorkerStatus] = {}
        """(worker, pid) -> the last record of that process."""

    def outcome(self, snapshot: Snapshot, *, stopped: bool) -> Outcome | None:
        """Return the end of the invocation; None while it goes on.

        Args:
            stopped: a person or a signal stops the run.
        """
        self._update_progress(snapshot)
        if stopped:
            return Outcome("stopped", interrupted=True, failed_sessions=self._last_failures())
        reason = self._limit_reached(snapshot)
        if reason is None:
            if not nothing_left(snapshot):
                self._idle_since = None
                return None
            self._idle_since = self._idle_since or time.monotonic()
            # The records must stay idle for a while: the daemon may not have detected the last submission yet.
            if time.monotonic() - self._idle_since < _SETTLED_S:
                return None
            reason = out_of_budget(snapshot) or "nothing is left to try"
        return Outcome(reason, failure=self._failure(snapshot), failed_sessions=self._last_failures())

    def _last_failures(self) -> tuple[str, ...]:
        records = {record.worker: record for record in self._records.values() if record.last_failure}
        return tuple(f"{name}: a session failed: {records[name].last_failure}" for name in sorted(records))

    def _update_progress(self, snapshot: Snapshot) -> None:
        daemon = snapshot.daemon or DaemonStatus()
        self._was_evaluated |= daemon.evaluations_done > 0
        self._judge_was_ready |= any(judge.became_ready for judge in daemon.judges)
        self._records |= {(name, status.pid): status for name, status in snapshot.workers.items() if status is not None}

    def _limit_reached(self, snapshot: Snapshot) -> str | None:
        minutes = self._limits.max_minutes
        if minutes is not None and snapshot.elapsed_s >= minutes * 60:
            return f"the limit of {amount_of(minutes, 'minute')} is reached"
        evaluations = self._limits.max_evaluations
        if evaluations is not None and snapshot.daemon is not None and snapshot.daemon.limit_reached:
            return f"the limit of {count_of(evaluations, 'evaluation')} is reached"
        return None

    def _failure(self, snapshot: Snapshot) -> ConfigurationError | None:
        """Return the failure that prevented all work; None if an evaluation or a session completed."""
        if self._was_evaluated:
            return None
        daemon = snapshot.daemon or DaemonStatus()
        if not self._judge_was_ready:
            log, reason = output_file(self._workspace, "daemon"), daemon.paused or "no daemon runs"
            for judge in daemon.judges[:1]:
                log = judge_log_file(self._workspace, judge.device)
                reason = judge.failure or f"the judge of {judge.device} is {judge.state}"
            return ConfigurationError(
                f"no judge became ready within {snapshot.elapsed_s:.0f} s, so nothing was evaluated: {reason}",
                where=str(log),
                remedy="see that file; `harness doctor` checks what a judge needs",
            )
        if daemon.paused:
            return ConfigurationError(f"this machine let no judge work, so nothing was evaluated: {daemon.paused}")
        return self._sessions_failed() or self._no_request_fits(snapshot)

    def _sessions_failed(self) -> ConfigurationError | None:
        """Return an error if sessions were started and all of them failed; a worker's crash is a failed session."""
        records = self._records.values()
        failed = sum(record.sessions_failed for record in records)
        crashes = sum(child.crashes for child in self._workers.values())
        if any(record.sessions_completed for record in records) or not failed + crashes:
            return None
        last = next(((record.worker, record.last_failure) for record in records if record.last_failure), None)
        if last is None:
            worker, child = next((name, child) for name, child in self._workers.items() if child.crashes)
            last = worker, f"its process ended ({child.cause_of_end()}): {child.last_output()}"
        return ConfigurationError(
            f"every session failed ({failed + crashes} of {failed + crashes}), so nothing was evaluated. "
            f"{last[0]}: {last[1]}",
            where=str(self._workspace.logs / f"{WORKER_PREFIX}{last[0]}.log"),
            remedy="fix `agent` in harness.yaml, or what the message names; `harness doctor` checks what agents need",
        )

    def _no_request_fits(self, snapshot: Snapshot) -> ConfigurationError | None:
        """Return an error if sessions were opened and the limits allowed no request of any of them."""
        records = self._records.values()
        reason = out_of_budget(snapshot)
        paid = any(record.usd for record in records) or any(record.agent == "tuner" for record in records)
        if reason is None or paid or not any(record.sessions_completed for record in records):
            return None
        return ConfigurationError(
            f"no request to the model was made, so nothing was evaluated: {reason}",
            where="--max-usd, or the limits of `agent` in harness.yaml",
            remedy="raise the limit, or bound answers with agent.max_answer_tokens: a request reserves its longest one",
        )


def nothing_left(snapshot: Snapshot) -> bool:
    """Return whether every worker is idle without a row that it could work on, and the daemon has nothing to do."""
    daemon, planner = snapshot.daemon, snapshot.planner
    if daemon is None or planner is None or daemon.queued or daemon.current is not None:
        return False
    if not any(judge.became_ready for judge in daemon.judges):
        return False  # the first judge is starting; the daemon ends with an error after its last attempt
    rows = {row.worker: row.problem for row in planner.assignments if row.state != "paused"}
    return all(
        status is not None and _is_done(status, rows.get(name), planner.finished.get(name, {}))
        for name, status in snapshot.workers.items()
    )


def out_of_budget(snapshot: Snapshot) -> str | None:
    """Return the limit that ended a worker's sessions, or None."""
    spent = (status for status in snapshot.workers.values() if status is not None and status.state == "spent")
    return next((status.last_message for status in spent), None)


def _is_done(worker: WorkerStatus, assigned: str | None, finished: Mapping[str, FinishReason]) -> bool:
    """Return whether a worker has nothing to do; `finished` are its problems that the planner has taken into account.

    Before the planner has taken a finished problem into account, it may still assign another one.
    """
    if worker.state == "spent":
        return True
    is_idle = worker.state == "idle" and (assigned is None or assigned in worker.finished)
    return is_idle and worker.finished == finished
