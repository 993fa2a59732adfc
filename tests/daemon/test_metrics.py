"""The figures that the daemon serves to Prometheus, and its check of the free disk space."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from harness.daemon import disk_watch
from harness.daemon.disk_watch import DiskWatch
from harness.daemon.metrics import DaemonMetrics, MetricsServer
from harness.errors import ConfigurationError
from harness.model.process_status import DaemonStatus, JudgeStatus
from tests.daemon.conftest import Daemon, kinds
from tests.ledger.ledgers import required_small_disk
from tests.site import Site
from tests.waiting import wait_until


def figures(port: int) -> dict[str, float]:
    """Return name with labels -> value, as Prometheus reads them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.fixture
def free_port() -> int:
    with socket.socket() as busy_socket:
        busy_socket.bind(("127.0.0.1", 0))
        return int(busy_socket.getsockname()[1])


def test_figures_of_a_running_daemon(site: Site, daemon: Daemon, free_port: int) -> None:
    site.submit("w01", "t/one", "stub: speedup=1.5")
    site.submit("w02", "t/one", "stub: speedup=0.8")
    with daemon(metrics_port=free_port):
        wait_until(lambda: site.daemon().evaluations_done == 2, event="two evaluations")

        def ended() -> dict[str, float] | None:
            served = figures(free_port)
            is_idle = served.get('harness_judges{state="idle"}') == 1
            return served if is_idle and served["harness_entries_total"] == 5 else None

        served = wait_until(ended, event="five entries and an idle judge")
    assert sum(kinds(site).values()) == 5
    assert served["harness_evaluations_total"] == 2
    assert served["harness_queue_wait_seconds_count"] == 3  # the confirmation waited too
    assert served['harness_queue_wait_seconds_bucket{le="+Inf"}'] == 3
    assert served["harness_disk_free_bytes"] > 0
    assert served["harness_resident_bytes"] > 1e6
    with pytest.raises(OSError, match="refused"):
        figures(free_port)


def test_waits_are_counted_by_length_and_states_have_labels() -> None:
    metrics = DaemonMetrics(status=DaemonStatus(judges=(JudgeStatus(device="cpu", state="given up"),), paused="x"))
    for seconds in (0.05, 0.1, 1.5, 1e6):
        metrics.waited(seconds)
    with MetricsServer(metrics, 0) as server:
        served = figures(server.port)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=60)
        with pytest.raises(ConfigurationError, match=f"port {server.port}"):
            MetricsServer(metrics, server.port)
    buckets = {name.split('"')[1]: count for name, count in served.items() if "_bucket" in name}
    assert (buckets["0.1"], buckets["1.0"], buckets["2.0"], buckets["300.0"], buckets["+Inf"]) == (2, 2, 3, 3, 4)
    assert served['harness_judges{state="given_up"}'] == served["harness_paused"] == 1


def test_judging_pauses_before_the_disk_is_full_and_goes_on(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "LEAST_FREE_BYTES", 10**18)
    monkeypatch.setattr(disk_watch, "LEAST_FREE_SHARE", 2.0)  # a requirement of twice the disk's size is never met
    monkeypatch.setattr(disk_watch, "_LOOK_EVERY_S", 0.05)
    with daemon() as running:
        commit = site.submit("w01", "t/one", "stub: speedup=0.9")
        assert "MB free, and judging pauses below" in running.wait_for_message("paused: the disk of")
        wait_until(lambda: site.daemon().queued == 1, event="a candidate in the queue")
        assert site.daemon().paused is not None
        assert site.requests() == []
        monkeypatch.setattr(disk_watch, "LEAST_FREE_SHARE", 0.0)
        running.entry_of(commit)
        wait_until(lambda: site.daemon().paused is None, event="the end of the pause")


def test_a_disk_that_fills_and_empties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watch, "_LOOK_EVERY_S", 0.0)
    with required_small_disk(tmp_path / "disk", "4m"):
        watch = DiskWatch((tmp_path / "disk", tmp_path / "not there"))
        assert watch.fault() is None
        file = tmp_path / "disk" / "large"
        file.write_bytes(bytes(4 * 2**20 - 2**15))
        assert str(tmp_path / "disk") in (watch.fault() or "")
        file.write_bytes(bytes(4 * 2**20 - 2**16 - 2**15))
        assert watch.fault() is not None, "judging resumes only with a margin of free space"
        file.unlink()
        assert watch.fault() is None
