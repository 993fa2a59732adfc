"""`harness start` when nothing can be done: it says why and fails. Child processes that crash are reported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.model.assignment import Assignment
from harness.model.process_status import DaemonStatus, JudgeStatus, PlannerStatus, WorkerStatus
from harness.supervise import Snapshot, nothing_left
from tests.site import Site, site_in

START = ("start", "--workers", "1", "--device", "cpu", "--problem", "t/one")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, tunable=True) as made:
        yield made


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_every_session_failed_is_an_error_with_the_agents_last_words(site: Site) -> None:
    with site.workspace.config_file.open("a") as file:
        file.write("\nagent:\n  kind: command\n  command: echo no licence here >&2; exit 3\n")
    code, output = ended(site.start(*START, "--json"))
    assert code == 2, output
    shown, _ = json.JSONDecoder().raw_decode(output)
    assert shown["ended"] == "nothing is left to try"
    assert "every session failed" in shown["failure"]
    output = output[output.rindex("harness: ") :]
    assert "every session failed (1 of 1), so nothing was evaluated. w01: t/one: exit code 3: no licence here" in output
    assert f"{site.workspace.logs}/worker-w01.log: " in output, "where"
    assert "fix `agent` in harness.yaml" in output
    site.no_strays()


def test_no_judge_that_becomes_ready_is_an_error_with_its_reason(site: Site) -> None:
    command = "sh -c 'echo bubblewrap is missing >&2; exit 2'"
    # The agent has nothing to submit, so that without judges nothing is left to do either.
    with site.workspace.config_file.open("a") as file:
        file.write("\nagent:\n  kind: command\n  command: exit 0\n")
    code, output = ended(site.start(*START, extra={"HARNESS_JUDGE_COMMAND": command}))
    assert code == 2, output
    assert "the daemon cannot work" in output
    assert "it wrote: bubblewrap is missing" in output
    assert "it failed 5 times in a row and never became ready" in output
    assert f"{site.workspace.logs}/judge-cpu.log" in output, "where"
    assert "`harness doctor`" in output, "the fix"
    site.no_strays()


def test_a_child_that_crashes_is_started_again_and_its_report_is_named(site: Site) -> None:
    crash = {
        "HARNESS_FAILPOINT": "planner.decision_recorded",
        "HARNESS_FAILPOINT_ACTION": "ValueError",
        "HARNESS_FAILPOINT_MARK": str(site.scratch / "crashed"),
    }
    code, output = ended(site.start(*START, "--agent", "tuner", "--max-evaluations", "1", extra=crash))
    assert code == 0, output
    (report,) = site.workspace.crashes.iterdir()
    said = f"the planner ended (exit code 70, internal error; crash report: {report}) and is started again"
    assert said in output
    assert "failpoint planner.decision_recorded" in report.read_text()


ROW = Assignment(worker="w01", problem="t/one")
READY = JudgeStatus(device="cpu", state="idle", became_ready=True)
IDLE = WorkerStatus(worker="w01", agent="tuner", state="idle", finished={"t/one": "exhausted"})


def snapshot(
    daemon: DaemonStatus | None = None, planner: PlannerStatus | None = None, worker: WorkerStatus | None = IDLE
) -> Snapshot:
    """Nothing is left to do, except for what is given."""
    daemon, planner = daemon or DaemonStatus(judges=(READY,)), planner or PlannerStatus(assignments=(ROW,))
    return Snapshot(daemon, planner, {"w01": worker}, 1.0, ())


@pytest.mark.parametrize(
    "now",
    [
        snapshot(),
        snapshot(planner=PlannerStatus()),
        snapshot(planner=PlannerStatus(assignments=(ROW.model_copy(update={"state": "paused"}),))),
        snapshot(worker=IDLE.model_copy(update={"state": "spent", "finished": {}})),
        snapshot(DaemonStatus(judges=(READY, JudgeStatus(device="cuda", state="given up")))),
    ],
)
def test_nothing_is_left_when_workers_and_judges_have_nothing_to_do(now: Snapshot) -> None:
    assert nothing_left(now)


@pytest.mark.parametrize(
    "now",
    [
        Snapshot(None, PlannerStatus(assignments=(ROW,)), {"w01": IDLE}, 1.0, ()),
        Snapshot(DaemonStatus(judges=(READY,)), None, {"w01": IDLE}, 1.0, ()),
        snapshot(worker=None),
        snapshot(worker=IDLE.model_copy(update={"state": "working"})),
        snapshot(worker=IDLE.model_copy(update={"finished": {}})),
        snapshot(DaemonStatus(judges=(READY,), queued=1)),
        snapshot(DaemonStatus(judges=(READY.model_copy(update={"state": "busy", "problem": "t/one"}),))),
        snapshot(DaemonStatus(judges=(JudgeStatus(device="cpu", state="starting"),))),
        snapshot(DaemonStatus(judges=(JudgeStatus(device="cpu", state="waiting", failure="it ended"),))),
    ],
)
def test_something_is_left_while_any_process_may_go_on(now: Snapshot) -> None:
    assert not nothing_left(now)
