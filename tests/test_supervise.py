"""`harness start` fails with the reason when no work is possible, and reports child processes that crash."""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.agents.model_access import api_backoff
from harness.model.assignment import Assignment
from harness.model.config import GatewayConfig
from harness.model.process_status import DaemonStatus, JudgeStatus, PlannerStatus, WorkerStatus
from harness.run_end import Snapshot, nothing_left, out_of_budget
from harness.supervise import model_messages
from harness.workspace.status import read_status
from tests.agents.agents_site import environment
from tests.scripted_model import Fail, scripted
from tests.site import Site, site_in

START = ("start", "--workers", "1", "--device", "cpu", "--problem", "t/one")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path, tunable=True) as site:
        yield site


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_every_session_failed_is_an_error_with_the_agents_last_words(site: Site) -> None:
    with site.workspace.config_file.open("a") as file:
        file.write("\nagent:\n  kind: command\n  command: echo no licence here >&2; exit 3\n")
    code, output = ended(site.start(*START, "--json"))
    assert code == 2, output
    assert "warning: agents of kind command run without a limit on what they spend" in output
    shown, _ = json.JSONDecoder().raw_decode(output[output.index("{\n") :])
    assert shown["ended"] == "nothing is left to try"
    assert shown["pending"] == []
    assert "every session failed" in shown["failure"]
    output = output[output.rindex("harness: ") :]
    assert "every session failed (1 of 1), so nothing was evaluated. w01: t/one: exit code 3: no licence here" in output
    assert f"{site.workspace.logs}/worker-w01.log: " in output, "the place"
    assert "fix `agent` in harness.yaml" in output
    site.no_strays()


def test_a_failed_session_is_reported_at_the_end_with_its_fix(site: Site) -> None:
    two_workers = ("start", "--workers", "2", "--device", "cpu", "--problem", "t/one")
    code, output = ended(site.start(*two_workers, "--max-evaluations", "2"))
    assert code == 0, output
    (site.root / "workspaces/w01/t/one/stray.txt").write_text("not a part of the solution")
    code, output = ended(site.start(*two_workers))
    assert code == 0, output
    (line,) = [line for line in output.splitlines() if line.startswith("w01: a session failed: t/one: ")]
    assert "stray.txt (fix: move new files into the solution" in line


def test_no_judge_that_becomes_ready_is_an_error_with_its_reason(site: Site) -> None:
    command = "sh -c 'echo bubblewrap is missing >&2; exit 2'"
    # The agent submits nothing, so that no work is left without judges either.
    with site.workspace.config_file.open("a") as file:
        file.write("\nagent:\n  kind: command\n  command: exit 0\n")
    code, output = ended(site.start(*START, extra={"HARNESS_JUDGE_COMMAND": command}))
    assert code == 2, output
    assert "the daemon cannot work" in output
    assert "it wrote: bubblewrap is missing" in output
    assert "it failed 5 times in a row and never became ready" in output
    assert f"{site.workspace.logs}/judge-cpu.log" in output, "the place"
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
    message = f"the planner ended (exit code 70, internal error; crash report: {report}) and is started again"
    assert message in output
    assert "failpoint planner.decision_recorded" in report.read_text()


ROW = Assignment(worker="w01", problem="t/one")
READY = JudgeStatus(device="cpu", state="idle", became_ready=True)
IDLE = WorkerStatus(worker="w01", agent="tuner", state="idle", finished={"t/one": "exhausted"})
PLANNER = PlannerStatus(assignments=(ROW,), finished={"w01": IDLE.finished})


def snapshot(
    daemon: DaemonStatus | None = None, planner: PlannerStatus | None = None, worker: WorkerStatus | None = IDLE
) -> Snapshot:
    """Return a snapshot without remaining work, except for the given fields."""
    return Snapshot(daemon or DaemonStatus(judges=(READY,)), planner or PLANNER, {"w01": worker}, 1.0, ())


@pytest.mark.parametrize(
    "snapshot",
    [
        snapshot(),
        snapshot(planner=PLANNER.model_copy(update={"assignments": ()})),
        snapshot(planner=PLANNER.model_copy(update={"assignments": (ROW.model_copy(update={"state": "paused"}),)})),
        snapshot(worker=IDLE.model_copy(update={"state": "spent", "finished": {}})),
        snapshot(DaemonStatus(judges=(READY, JudgeStatus(device="cuda", state="given up")))),
    ],
)
def test_nothing_is_left_when_workers_and_judges_have_nothing_to_do(snapshot: Snapshot) -> None:
    assert nothing_left(snapshot)


def test_the_run_ends_with_the_limit_that_ended_its_workers() -> None:
    spent = IDLE.model_copy(update={"state": "spent", "last_message": "the limit of 3 USD for the run main is reached"})
    assert out_of_budget(snapshot(worker=spent)) == "the limit of 3 USD for the run main is reached"
    assert out_of_budget(snapshot()) is None


def test_what_keeps_workers_from_the_model_is_shown_while_it_does(site: Site) -> None:
    assert model_messages(site.workspace) == ()
    reason = "the model cannot be reached: ClientConnectorError"
    api_backoff.back_off(site.workspace, GatewayConfig(), after_s=60, reason=reason)
    assert model_messages(site.workspace) == (f"{reason}: all workers wait and try again",)
    api_backoff.stop_requests(site.workspace, "the model API refuses the credential (401)")
    assert model_messages(site.workspace) == ("the model API refuses the credential (401)",)


# Sends a request to the model as an agent does, and ends after the answer.
ASK = """
import os, urllib.request
body = b'{"model": "claude-opus-4-5", "max_tokens": 10, "messages": [], "tools": [1]}'
urllib.request.urlopen(os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages", body).read()
"""


def ask_the_model(site: Site) -> None:
    script = site.scratch / "ask.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(ASK)
    command = f"agent: {{kind: command, command: python3 {script}, binds: [{script}]}}"
    with site.workspace.config_file.open("a") as file:
        file.write(f"\n{command}\n")


@pytest.mark.slow
def test_a_refused_credential_is_shown_at_once_and_ends_the_run(site: Site) -> None:
    ask_the_model(site)
    with scripted(lambda _: [Fail(401, times=9, kind="authentication_error")]) as model:
        run = site.start(*START, "--max-minutes", "5", extra=environment(model))
        assert run.stdout is not None
        first_line = next(line for line in run.stdout if "refuses the credential (401)" in line)
        shown_at = time.monotonic()
        output = first_line + run.stdout.read()  # the first line may be the message of the end
        logging.getLogger(__name__).info("shown after %.2f s", shown_at - model.requests[0].at)
        assert run.wait(120) == 2
        assert len(model.requests) == 1
    assert "the worker-w01 cannot work" in output
    assert "export a valid key" in output


@pytest.mark.slow
def test_an_unreachable_endpoint_is_shown_long_before_sessions_pause_by_it(site: Site) -> None:
    ask_the_model(site)
    unreachable = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "ANTHROPIC_API_KEY": "k"}
    run = site.start(*START, "--max-minutes", "5", extra=unreachable)
    assert run.stdout is not None
    line = next(line for line in run.stdout if "the model cannot be reached: " in line)
    assert "all workers wait and try again" in line
    status = read_status(site.workspace, WorkerStatus, "w01")
    assert status is not None
    assert status.state != "waiting for the model", "its session has not paused yet"
    run.terminate()
    assert run.wait(120) == 0


@pytest.mark.parametrize(
    "snapshot",
    [
        Snapshot(None, PLANNER, {"w01": IDLE}, 1.0, ()),
        Snapshot(DaemonStatus(judges=(READY,)), None, {"w01": IDLE}, 1.0, ()),
        snapshot(planner=PlannerStatus(assignments=(ROW,))),  # it may still move the worker, which has just finished
        snapshot(worker=None),
        snapshot(worker=IDLE.model_copy(update={"state": "working"})),
        snapshot(worker=IDLE.model_copy(update={"finished": {}})),
        snapshot(DaemonStatus(judges=(READY,), queued=1)),
        snapshot(DaemonStatus(judges=(READY.model_copy(update={"state": "busy", "problem": "t/one"}),))),
        snapshot(DaemonStatus(judges=(JudgeStatus(device="cpu", state="starting"),))),
        snapshot(DaemonStatus(judges=(JudgeStatus(device="cpu", state="waiting", failure="it ended"),))),
    ],
)
def test_something_is_left_while_any_process_may_go_on(snapshot: Snapshot) -> None:
    assert not nothing_left(snapshot)


@pytest.mark.slow
def test_a_machine_that_lets_no_judge_work_is_an_error_with_the_reason(site: Site) -> None:
    fault = site.scratch / "fault"
    site.scratch.mkdir(parents=True, exist_ok=True)
    fault.write_text("75 no C++ compiler\n  apt-get install g++")
    extra = {"STUB_JUDGE_FAULT": str(fault)}
    code, output = ended(site.start(*START, "--max-minutes", "0.2", extra=extra))
    assert code == 2, output
    assert "paused: no C++ compiler; fix: apt-get install g++; tried again until it works" in output
    assert "this machine let no judge work, so nothing was evaluated: no C++ compiler" in output
    assert not site.entries()
    site.no_strays()
