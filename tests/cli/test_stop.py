"""`harness stop`: ends a running start cleanly, from another terminal."""

from __future__ import annotations

from tests.site import Site, git
from tests.waiting import wait_until


def test_stop_ends_a_running_start_and_waits_for_it(site: Site) -> None:
    process = site.start("start", "--workers", "1", "--device", "cpu")
    wait_until(site.entries, what="a first entry")
    stopped = site.call("stop")
    assert stopped.returncode == 0, stopped.stdout
    assert "harness start` to go on" in stopped.stdout
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    site.no_strays()
    assert git(site.root, "status", "--porcelain") == ""
    again = site.call("stop")
    assert again.returncode == 1
    assert "no `harness start` runs" in again.stdout


def test_the_process_id_of_a_dead_start_is_never_signalled(site: Site) -> None:
    process = site.start("start", "--workers", "1", "--device", "cpu")
    wait_until((site.workspace.status / "start.json").exists, what="the start")
    process.kill()
    process.wait(timeout=120)
    site.no_strays()
    assert (site.workspace.status / "start.json").exists()
    assert site.call("stop").returncode == 1
