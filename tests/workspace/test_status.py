"""Status records: typed, of one version, and not confused with those of another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.model.process_status import DaemonStatus, JudgeStatus, PlannerStatus, StartStatus, WorkerStatus
from harness.workspace.directories import Workspace
from harness.workspace.processes import start_ticks
from harness.workspace.status import (
    clear_statuses,
    is_alive,
    is_worker_status,
    read_status,
    running_processes,
    write_status,
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_every_record_is_read_as_it_was_written_with_the_process_that_wrote_it(workspace: Workspace) -> None:
    judge = JudgeStatus(device="cpu", state="busy", problem="t/one", kind="evaluation", worker="w01")
    worker = WorkerStatus(worker="w01", agent="tuner", state="idle", finished={"t/one": "stale"}, sessions_failed=2)
    for status in (StartStatus(children=("daemon",)), DaemonStatus(queued=1, judges=(judge,)), PlannerStatus(), worker):
        write_status(workspace, status)
    identity = {"pid": os.getpid(), "process_start_ticks": start_ticks(os.getpid())}
    assert read_status(workspace, WorkerStatus, "w01") == worker.model_copy(update=identity)
    assert read_status(workspace, PlannerStatus) == PlannerStatus().model_copy(update=identity)
    daemon, start = read_status(workspace, DaemonStatus), read_status(workspace, StartStatus)
    assert daemon is not None
    assert daemon.current == judge
    assert start is not None
    assert start.children == ("daemon",)
    assert list(running_processes(workspace)) == ["daemon", "planner", "start", "worker-w01"]
    clear_statuses(workspace)
    assert read_status(workspace, DaemonStatus) is None
    assert running_processes(workspace) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"format": 2, "pid": 1}',
        '{"format": 1, "pid": 1, "of the next version": true}',
        '{"pid": 1, "queued": "many"}',
    ],
)
def test_what_cannot_be_read_counts_as_missing(workspace: Workspace, text: str) -> None:
    workspace.status.mkdir(parents=True)
    (workspace.status / "daemon.json").write_text(text)
    assert read_status(workspace, DaemonStatus) is None
    assert running_processes(workspace) == {}


def test_a_record_is_alive_as_long_as_its_process_and_no_longer(workspace: Workspace) -> None:
    script = (
        "import sys; from pathlib import Path; from harness.model.process_status import PlannerStatus;"
        "from harness.workspace.directories import Workspace; from harness.workspace.status import write_status;"
        "write_status(Workspace(Path(sys.argv[1])), PlannerStatus()); print('written', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(workspace.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        status = read_status(workspace, PlannerStatus)
        assert status is not None
        assert (status.pid, is_alive(status)) == (process.pid, True)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(status), "a zombie does not run"
    assert not is_alive(status)
    assert running_processes(workspace) == {}


def test_a_recycled_pid_is_not_taken_for_alive(workspace: Workspace) -> None:
    write_status(workspace, PlannerStatus())
    status = read_status(workspace, PlannerStatus)
    assert status is not None
    assert is_alive(status)
    earlier = status.model_copy(update={"process_start_ticks": status.process_start_ticks - 1})
    assert not is_alive(earlier)
    assert not is_alive(PlannerStatus()), "a record that names no process"


def test_only_a_workers_record_is_one(workspace: Workspace) -> None:
    write_status(workspace, DaemonStatus())
    write_status(workspace, WorkerStatus(worker="w01", agent="tuner", state="idle"))
    workers = [file.name for file in workspace.status.iterdir() if is_worker_status(workspace, file)]
    assert workers == ["worker-w01.json"]
    assert not is_worker_status(workspace, workspace.root / "worker-w01.json")
