"""`harness start --detach` and `harness attach`: a run continues without its terminal."""

from __future__ import annotations

import os
import signal

import pytest

from harness.model.process_status import StartStatus
from harness.workspace.files import atomic_write
from harness.workspace.status import read_run_result, recorded_result, running_processes
from tests.site import Site, git
from tests.waiting import wait_until

START = ("start", "--detach", "--workers", "1", "--agent", "tuner", "--device", "cpu")


def pids(site: Site) -> dict[str, int]:
    return {name: status.pid for name, status in running_processes(site.workspace).items()}


def evaluations(site: Site) -> int:
    return len(site.entries(kind="evaluation"))


def test_a_detached_run_survives_a_hangup_and_is_followed_to_its_end(site: Site) -> None:
    # The stub answers for the first candidate when the file exists, so the run cannot end before.
    release_file = site.scratch / "go"
    source = site.root / "problems/t/one/solutions/cpu/kernel.cpp"
    source.write_text(f"{source.read_text()}// stub: hold={release_file}\n")
    git(site.root, "commit", "--quiet", "--all", "-m", "Hold candidates back")
    started = site.run(*START, "--problem", "t/one", "--max-evaluations", "2")
    assert started.returncode == 0, started.stdout
    running = pids(site)
    pid = running["start"]
    assert f"the run is up: process {pid}, log {site.workspace.logs}/start.out" in started.stdout
    assert {"start", "daemon", "planner", "worker-w01"} <= running.keys(), "it returned when all of it was up"
    assert os.getsid(pid) == pid, "no terminal can end it"
    second_start = site.call(*START)
    assert second_start.returncode == 2
    assert f"held by pid {pid}" in second_start.stdout

    follower = site.start("attach")
    assert follower.stdout is not None
    assert f"of process {pid}" in follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    output, _ = follower.communicate(timeout=120)
    assert follower.returncode == 130, output
    assert "the run continues" in output
    for process_id in pids(site).values():
        os.kill(process_id, signal.SIGHUP)

    follower = site.start("attach")
    assert follower.stdout is not None
    follower.stdout.readline()
    release_file.touch()
    output, _ = follower.communicate(timeout=240)
    assert follower.returncode == 0, output
    assert "w01: " in output
    assert "ended: the limit of 2 evaluations is reached" in output
    assert output.endswith("the run has ended: the limit of 2 evaluations is reached (exit code 0)\n")
    assert evaluations(site) == 2
    site.no_strays()
    ended = site.call("attach")
    assert ended.returncode == 1
    assert "the last one ended: the limit of 2 evaluations is reached (exit code 0)" in ended.stdout


def test_a_run_that_cannot_work_reports_the_reason_and_its_exit_code(site: Site) -> None:
    log = site.workspace.logs / "start.out"
    log.parent.mkdir(parents=True)
    log.write_text("of the run before\n")
    completed = site.run(*START, "--problem", "nowhere/*")
    assert completed.returncode == 2
    assert "nowhere/*" in completed.stdout, "the reason of the run"
    assert "the run has ended (exit code 2)" in completed.stdout
    assert "of the run before" not in log.read_text()
    assert log.with_name("start.out.1").read_text() == "of the run before\n"
    assert site.call("attach").returncode == 1


def test_the_result_of_an_earlier_run_is_not_that_of_a_killed_one(site: Site) -> None:
    with recorded_result(site.workspace) as record:
        record("3 evaluations are made", 0)
    earlier = site.call("attach")
    assert earlier.returncode == 1
    assert "the last one ended: 3 evaluations are made (exit code 0)" in earlier.stdout
    killed = StartStatus(pid=os.getpid(), process_start_ticks=1, children=())  # the present process has started later
    atomic_write(site.workspace.status / "start.json", killed.model_dump_json())
    completed = site.call("attach")
    assert completed.returncode == 1
    expected = f"no `harness start` runs in this workspace; the last one (process {os.getpid()}) was killed"
    assert expected in completed.stdout
    assert "3 evaluations" not in completed.stdout


@pytest.mark.slow
def test_a_run_on_a_terminal_of_its_own_is_not_followed_and_a_killed_one_has_no_result(site: Site) -> None:
    process = site.start(*(word for word in START if word != "--detach"))
    wait_until(lambda: "start" in pids(site), event="the start")
    refused = site.call("attach")
    assert refused.returncode == 1, refused.stdout
    assert "was not started with --detach" in refused.stdout
    assert "harness status --watch" in refused.stdout
    process.kill()
    process.wait(timeout=120)
    site.no_strays()
    assert read_run_result(site.workspace) is None
