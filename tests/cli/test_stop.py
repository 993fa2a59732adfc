"""A running `harness start`, from another terminal: a second one is refused, and `harness stop` ends the first."""

from __future__ import annotations

from harness.model.process_status import StartStatus
from harness.workspace.files import atomic_write
from harness.workspace.processes import start_ticks
from harness.workspace.status import no_run
from tests.site import Site, git
from tests.waiting import wait_until


def test_a_second_start_is_refused_by_name_and_stop_ends_the_first(site: Site) -> None:
    start = ("start", "--workers", "1", "--agent", "tuner", "--device", "cpu")
    process = site.start(*start)
    wait_until(site.entries, event="a first entry")
    second = site.call(*start)
    assert second.returncode == 2
    assert f"held by pid {process.pid} (harness start)" in second.stdout
    daemon = site.call("daemon")
    assert daemon.returncode == 2
    assert f"held by pid {site.daemon().pid} (harness daemon)" in daemon.stdout
    running = {file.stem for file in site.workspace.status.glob("*.json")}
    assert running >= {"daemon", "planner", "start", "worker-w01"}, "the first run continues"
    stopped = site.call("stop")
    assert stopped.returncode == 0, stopped.stdout
    assert "harness start` continues the run" in stopped.stdout
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    site.no_strays()
    assert git(site.root, "status", "--porcelain") == ""
    second_stop = site.call("stop")
    assert second_stop.returncode == 1
    assert "no `harness start` runs" in second_stop.stdout


def test_a_start_that_does_not_end_in_time_gets_a_remedy_that_helps(site: Site) -> None:
    process = site.start_program(["sleep", "600"])
    status = StartStatus(pid=process.pid, process_start_ticks=start_ticks(process.pid) or 0, children=())
    atomic_write(site.workspace.status / "start.json", status.model_dump_json())
    with no_run(site.workspace, "harness start"):
        completed = site.call("stop", "--within", "0.001")
    assert completed.returncode == 2
    error, fix = completed.stdout.splitlines()
    assert f"harness start (process {process.pid}) has not ended within" in error
    assert fix == f"  wait and try again: `harness stop --within 300`; or `kill -9 {process.pid}`: no data is lost"


def test_the_process_id_of_a_dead_start_is_never_signalled(site: Site) -> None:
    process = site.start("start", "--workers", "1", "--device", "cpu")
    wait_until((site.workspace.status / "start.json").exists, event="the start")
    process.kill()
    process.wait(timeout=120)
    site.no_strays()
    assert (site.workspace.status / "start.json").exists()
    assert site.call("stop").returncode == 1
