"""The processes of the last `harness start` for the live page: judges, workers, messages, and the result."""

from __future__ import annotations

from harness.model.process_status import (
    DaemonStatus,
    JudgeStatus,
    PlannerStatus,
    ProcessStatus,
    StartStatus,
    WorkerStatus,
)
from harness.report.steps import Json
from harness.workspace.directories import Workspace
from harness.workspace.status import is_alive, read_run_result, recorded_processes


def read_processes(workspace: Workspace) -> Json:
    """Return the running processes and the records of ended processes as JSON."""
    records = recorded_processes(workspace)
    alive = {name: status for name, status in records.items() if is_alive(status)}
    daemon, planner, start = alive.get("daemon"), alive.get("planner"), records.get("start")
    workers = {name: status for name, status in records.items() if isinstance(status, WorkerStatus)}
    return {
        "running": sorted(alive),
        "started_at": start.started_at if isinstance(start, StartStatus) else None,
        "ended": None if alive else _result(workspace, start),
        "queued": daemon.queued if isinstance(daemon, DaemonStatus) else 0,
        "paused": daemon.paused if isinstance(daemon, DaemonStatus) else None,
        "messages": _messages(daemon, planner),
        "judges": [_judge(judge) for judge in daemon.judges] if isinstance(daemon, DaemonStatus) else [],
        "workers": [_worker(status, alive=name in alive) for name, status in workers.items()],
    }


def _messages(*statuses: ProcessStatus | None) -> list[str]:
    texts = (status.messages for status in statuses if isinstance(status, DaemonStatus | PlannerStatus))
    return list(dict.fromkeys(message for messages in texts for message in messages))


def _result(workspace: Workspace, start: ProcessStatus | None) -> Json | None:
    """Return the result of the last `harness start`; None without a record of it."""
    result = read_run_result(workspace)
    if result is None:
        return {"why": "it was killed", "exit_code": None} if start is not None else None
    if start is not None and (start.pid, start.process_start_ticks) != (result.pid, result.process_start_ticks):
        return {"why": "it was killed", "exit_code": None}
    return {"why": result.ended, "exit_code": result.exit_code}


def _judge(judge: JudgeStatus) -> Json:
    return judge.model_dump(
        mode="json", include={"device", "state", "failure", "problem", "kind", "worker", "stage", "done", "of"}
    )


def _worker(status: WorkerStatus, *, alive: bool) -> Json:
    return {
        "worker": status.worker,
        "agent": status.agent,
        "state": status.state if alive else "ended",
        "problem": status.problem,
        "message": status.last_message,
        "failure": status.last_failure,
        "evaluations": status.evaluations,
        "usd": round(status.usd, 4),
    }
