"""The daemon with judges of other hosts: hosts join, leave and answer late, and each candidate has one entry."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cli import cluster as cluster_command
from harness.cli.display.status_lines import running_lines
from harness.cluster import connection
from harness.cluster.cluster_judges import ClusterJudges
from harness.cluster.messages import BridgeFailed, HostsChanged
from harness.daemon.attempts import Attempts, Loss
from harness.daemon.run import run_daemon
from harness.errors import ConfigurationError
from harness.model.config import Config
from harness.model.process_status import DaemonStatus, HostStatus, JudgeStatus
from harness.model.verdict import EntryKind
from harness.workspace import judge_client
from harness.workspace.judge_endpoint import JudgeNotice
from tests.site import Site, site_in
from tests.waiting import wait_until

BRIDGE = (sys.executable, str(Path(__file__).parent / "local_bridge.py"))


def host(name: str, *, refused: str | None = None) -> HostStatus:
    devices = () if refused else (f"{name}/cpu",)
    return HostStatus(name=name, node=name, address="192.0.2.1", devices=devices, refused=refused)


class Cluster:
    """Hosts that join and leave on a test's request, and a daemon in a thread that uses them."""

    def __init__(self, site: Site, directory: Path) -> None:
        self.site, self.directory = site, directory
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.attempts: list[Loss] = []
        """Losses that count against a candidate."""
        self.thread = threading.Thread(target=self._run)

    def set_hosts(self, *hosts: HostStatus) -> None:
        """Replace the hosts of the cluster."""
        whole = self.directory / "hosts.new"
        whole.write_text(json.dumps([host.model_dump() for host in hosts]))
        whole.replace(self.directory / "hosts.json")

    def open(self, post: object) -> ClusterJudges:
        return ClusterJudges(self.site.workspace, Config(), "auto", post, command=BRIDGE)  # type: ignore[arg-type]

    def once(self) -> None:
        run_daemon(self.site.workspace, Config(), open_judges=self.open, once=True, stop=threading.Event())

    def _run(self) -> None:
        try:
            run_daemon(self.site.workspace, Config(), open_judges=self.open, stop=self.stop)
        except BaseException as error:  # noqa: BLE001 - reported to the test
            self.error = error

    def close(self) -> None:
        self.stop.set()
        if self.thread.ident is not None:
            self.thread.join(timeout=120)
        assert not self.thread.is_alive()
        assert self.error is None

    def request_kinds(self) -> list[str]:
        """Return the kinds of the requests that judges have received."""
        return [request["kind"] for request in self.site.requests()]

    def entry_kinds(self) -> Counter[EntryKind]:
        return Counter(entry.kind for entry in self.site.entries())


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with site_in(tmp_path) as site:
        for name, value in site.environment().items():
            if name.startswith(("HARNESS_", "STUB_")):
                monkeypatch.setenv(name, value)
        monkeypatch.setattr(judge_client, "oom_kills", lambda: 0)
        monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 0.2)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "hosts"))
        for name in ("HOSTS", "FAILURE", "DELAY"):
            monkeypatch.setenv(f"LOCAL_BRIDGE_{name}", str(tmp_path / f"{name.lower()}.json"))
        created_cluster = Cluster(site, tmp_path)
        monkeypatch.setattr(Attempts, "lost", lambda _, __, loss: created_cluster.attempts.append(loss))
        try:
            yield created_cluster
        finally:
            created_cluster.close()
        site.no_strays()


def test_candidates_are_judged_on_hosts_and_entries_name_them(cluster: Cluster) -> None:
    cluster.set_hosts(host("gpu-a"), host("gpu-b"))
    for number in range(4):
        cluster.site.submit("w01", "t/one", f"number {number} stub: speedup=0.9")
    cluster.once()
    entries = [entry for entry in cluster.site.entries() if entry.kind is EntryKind.EVALUATION]
    assert len(entries) == 4
    assert all(entry.device and entry.device.model_dump()["host"] in {"gpu-a", "gpu-b"} for entry in entries)


def test_a_candidate_whose_host_leaves_is_judged_by_another_and_a_late_answer_is_ignored(cluster: Cluster) -> None:
    cluster.set_hosts(host("gpu-a"))
    hold, delay = cluster.directory / "go", cluster.directory / "delay.json"
    cluster.thread.start()
    commit = cluster.site.submit("w01", "t/one", f"stub: speedup=0.9 stub: hold={hold}")
    wait_until(lambda: "evaluation" in cluster.request_kinds(), event="the evaluation on the first host")
    delay.write_text("gpu-a/cpu")
    hold.touch()  # the judge answers, and the bridge delays the answer
    cluster.set_hosts(host("gpu-b"))
    wait_until(lambda: cluster.request_kinds().count("evaluation") >= 2, event="the evaluation on the second host")
    delay.unlink()
    wait_until(lambda: cluster.entry_kinds()[EntryKind.EVALUATION], event="the entry")
    cluster.close()
    (entry,) = [entry for entry in cluster.site.entries() if entry.kind is EntryKind.EVALUATION]
    assert entry.candidate is not None
    assert entry.candidate.tree == commit.tree
    assert entry.device is not None
    assert entry.device.model_dump()["host"] == "gpu-b"
    assert not cluster.attempts, "a lost host is no failed attempt of the candidate"


def test_a_lost_bridge_is_started_again_and_no_candidate_is_lost(cluster: Cluster) -> None:
    cluster.set_hosts(host("gpu-a"))
    hold = cluster.directory / "go"
    cluster.thread.start()
    cluster.site.submit("w01", "t/one", f"stub: speedup=0.9 stub: hold={hold}")
    wait_until(lambda: "evaluation" in cluster.request_kinds(), event="the evaluation")
    (bridge,) = [pid for pid, command in cluster.site.strays().items() if "local_bridge" in command]
    os.kill(bridge, signal.SIGKILL)
    wait_until(lambda: cluster.request_kinds().count("evaluation") >= 2, event="the second evaluation")
    hold.touch()
    wait_until(lambda: cluster.entry_kinds()[EntryKind.EVALUATION], event="the entry")
    cluster.close()
    assert cluster.entry_kinds()[EntryKind.EVALUATION] == 1
    assert not cluster.attempts


def test_a_host_that_joins_is_used_and_a_refused_one_is_named(cluster: Cluster) -> None:
    cluster.set_hosts(host("gpu-a", refused="it has Python 3.12, and the head has 3.11"))
    cluster.thread.start()
    cluster.site.submit("w01", "t/one", "stub: speedup=0.9")
    paused = wait_until(lambda: cluster.site.daemon().hosts and cluster.site.daemon().paused, event="the pause")
    assert paused == "every host is refused: gpu-a: it has Python 3.12, and the head has 3.11"
    cluster.set_hosts(host("gpu-b"))
    wait_until(lambda: cluster.entry_kinds()[EntryKind.EVALUATION], event="the entry")
    wait_until(lambda: cluster.site.daemon().paused is None, event="the end of the pause")


def test_a_cluster_that_cannot_be_used_ends_the_daemon(cluster: Cluster) -> None:
    cluster.set_hosts()
    failure = BridgeFailed(message="another head uses this cluster: process 1 on b", fix="end it there", final=True)
    (cluster.directory / "failure.json").write_text(failure.model_dump_json())
    with pytest.raises(ConfigurationError, match="another head uses this cluster"):
        cluster.once()


def test_a_cluster_that_was_usable_is_waited_for(cluster: Cluster) -> None:
    judges = ClusterJudges(cluster.site.workspace, Config(), "auto", lambda _: None, command=("true",))
    judges._take_in(HostsChanged(hosts=(host("gpu-a"),)))  # noqa: SLF001
    judges._take_in(BridgeFailed(message="the token is wrong", final=True))  # noqa: SLF001
    judges.tick()
    judges.close()


def test_a_judge_without_a_connection_is_lost_at_once(cluster: Cluster) -> None:
    notices: list[JudgeNotice] = []
    judges = ClusterJudges(cluster.site.workspace, Config(), "auto", notices.append, command=("true",))
    judges._take_in(HostsChanged(hosts=(host("gpu-a"),)))  # noqa: SLF001
    judges._start_at = float("inf")  # noqa: SLF001
    judges.tick()
    judges.clients()["gpu-a/cpu"].start()
    assert "connection to the Ray cluster" in str(notices[0])
    judges.close()


def test_a_missing_ray_is_named_with_the_fix(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "find_spec", lambda _: None)
    for command in (["daemon"], ["start", "--agent", "tuner"]):
        completed = cluster.site.call(*command, "--cluster", "auto")
        assert completed.returncode == 2
        assert "Ray is not installed, and --cluster needs it" in completed.stdout
        assert "pip install 'kernel-harness[cluster]'" in completed.stdout


def test_status_shows_hosts_and_their_devices() -> None:
    hosts = (host("gpu-a"), host("gpu-b", refused="it has Python 3.12, and the head has 3.11"))
    judges = (JudgeStatus(device="gpu-a/cpu", state="busy", problem="t/one"),)
    lines = running_lines({"daemon": DaemonStatus(pid=1, hosts=hosts, judges=judges)})
    assert lines[1:] == [
        "host gpu-a (192.0.2.1): cpu t/one",
        "host gpu-b (192.0.2.1): it has Python 3.12, and the head has 3.11",
    ]


def test_the_target_of_a_run_is_that_of_the_clusters_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (
        HostStatus(name="head", node="1"),
        HostStatus(name="gpu-a", node="2", devices=("gpu-a/cuda:0", "gpu-a/cuda:1"), gpus=("NVIDIA H200",) * 2),
    )
    monkeypatch.setattr(cluster_command, "cluster_hosts", lambda _: hosts)
    chosen = cluster_command.choose_cluster(Config(), "auto")
    assert (chosen.target, chosen.devices, chosen.cluster) == ("h200", ("cuda",), "auto")
    assert chosen.reason == "2 devices of 1 of 2 hosts of the cluster"
    checks = {check.name: check for check in cluster_command.cluster_checks("auto")}
    assert checks["host gpu-a"].result.endswith("cuda:0, cuda:1")
    monkeypatch.setattr(cluster_command, "cluster_hosts", lambda _: hosts[:1])
    with pytest.raises(ConfigurationError, match="no host of the Ray cluster at auto has a device"):
        cluster_command.choose_cluster(Config(), "auto")


def test_a_clock_that_differs_by_an_hour_is_a_note_and_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    late = HostStatus(name="gpu-a", node="1", devices=("gpu-a/cpu",), clock_skew_s=-3600.0)
    monkeypatch.setattr(cluster_command, "cluster_hosts", lambda _: (late,))
    (check,) = [check for check in cluster_command.cluster_checks("auto") if check.name == "host gpu-a"]
    assert (check.state, "its clock differs by -3600 s" in check.result) == ("note", True)


def test_judges_that_give_way_to_other_programs_are_a_note_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    low_priority_host = HostStatus(name="gpu-a", node="1", devices=("gpu-a/cpu",), niceness=15)
    monkeypatch.setattr(cluster_command, "cluster_hosts", lambda _: (low_priority_host,))
    (check,) = [check for check in cluster_command.cluster_checks("auto") if check.name == "host gpu-a"]
    assert (check.state, check.fix) == ("note", "start Ray there with RAY_worker_niceness=0")
