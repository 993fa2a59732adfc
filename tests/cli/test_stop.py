"""A running `harness start`, from another terminal: a second one is refused, and `harness stop` ends the first."""

from __future__ import annotations

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


def test_the_process_id_of_a_dead_start_is_never_signalled(site: Site) -> None:
    process = site.start("start", "--workers", "1", "--device", "cpu")
    wait_until((site.workspace.status / "start.json").exists, event="the start")
    process.kill()
    process.wait(timeout=120)
    site.no_strays()
    assert (site.workspace.status / "start.json").exists()
    assert site.call("stop").returncode == 1
