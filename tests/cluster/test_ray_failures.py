"""Failures of a cluster, each with its outcome; no sandbox reaches the ports of Ray."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness
from harness.agents.confinement import command_line, empty_view
from tests.cluster.ray_nodes import RayNodes, ray_nodes
from tests.cluster.ray_site import RaySite, evaluations_asked, needs_ray, no_judge_left, ray_site
from tests.judge.confined import stderr_of
from tests.site import Site, git, site_in
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, needs_ray, pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]

CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#define AHEAD 3600
int clock_gettime(clockid_t id, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, at);
    if (id == CLOCK_REALTIME && result == 0) at->tv_sec += AHEAD;
    return result;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library that sets the clock of a process an hour ahead."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayNodes]:
    """A cluster with one device, on the node n1."""
    directory = tmp_path_factory.mktemp("nodes")
    environment = Site(directory / "none", directory / "scratch").environment()
    with ray_nodes(environment) as created_nodes:
        created_nodes.start_head()
        created_nodes.add("n1")
        yield created_nodes


@pytest.fixture
def run(tmp_path: Path, nodes: RayNodes) -> Iterator[RaySite]:
    with site_in(tmp_path) as site, ray_site(site, nodes) as created_site:
        yield created_site
        created_site.close()
        site.no_strays()
    no_judge_left(nodes)


@contextlib.contextmanager
def further_node(nodes: RayNodes, name: str, **options: object) -> Iterator[None]:
    """Run a further node until the end of the block."""
    nodes.add(name, **options)  # type: ignore[arg-type]
    try:
        yield
    finally:
        nodes.signal_node(name, signal.SIGCONT)
        nodes.kill_node(name)


@contextlib.contextmanager
def replaced(nodes: RayNodes, name: str, **options: object) -> Iterator[None]:
    """Run a node in place of n1 until the end of the block."""
    nodes.kill_node("n1")
    try:
        with further_node(nodes, name, **options):
            yield
    finally:
        nodes.add("n1")


def test_a_node_that_joins_is_used(run: RaySite, nodes: RayNodes) -> None:
    run.start()
    run.wait_for_judges(1)
    commits = [run.site.submit("w01", "t/one", f"{number} stub: speedup=0.9 stub: takes=0.3") for number in range(60)]
    run.wait_for_evaluations(1)
    with further_node(nodes, "n2"):
        joined = time.monotonic()
        wait_until(lambda: any(judge.state == "busy" for judge in run.site.daemon().judges[1:]), event="its first work")
        print(f"used {time.monotonic() - joined:.1f} s after `ray start` had returned")  # noqa: T201 - a figure
        run.wait_for_evaluations(len(commits))
    run.end()
    run.assert_each_passed_once(commits)


@pytest.mark.serial
def test_a_node_that_joins_is_used_within_15_s(run: RaySite, nodes: RayNodes) -> None:
    run.start()
    run.wait_for_judges(1)
    with further_node(nodes, "n2"):
        joined = time.monotonic()
        run.wait_for_judges(2)
        assert time.monotonic() - joined < 15
    run.end()


def test_a_host_that_is_cut_off_loses_its_work_to_another_and_its_late_answer_is_ignored(
    run: RaySite, nodes: RayNodes
) -> None:
    run.start()
    run.wait_for_judges(1)
    before, go = evaluations_asked(nodes), run.site.scratch / "go"
    commit = run.site.submit("w01", "t/one", f"stub: speedup=0.9 stub: hold={go}")
    wait_until(lambda: evaluations_asked(nodes) == before + 1, event="the evaluation on n1")
    with further_node(nodes, "n2"):
        nodes.signal_node("n1", signal.SIGSTOP)  # no process of that host answers now
        wait_until(lambda: evaluations_asked(nodes) == before + 2, event="the evaluation on n2", deadline_s=240)
        go.touch()
        run.wait_for_evaluations(1)
        nodes.signal_node("n1", signal.SIGCONT)  # now it answers, too late
        nodes.kill_node("n1")
        nodes.add("n1")
        run.wait_for_judges(2)
        second = run.site.submit("w01", "t/two", "stub: speedup=0.9")
        run.wait_for_evaluations(2)
    run.end()
    run.assert_each_passed_once([commit, second])
    run.assert_audited()


def test_a_raylet_that_hangs_is_given_up_and_its_work_goes_on(run: RaySite, nodes: RayNodes) -> None:
    run.start()
    run.wait_for_judges(1)
    (raylet,) = nodes.processes("n1", "raylet")
    with further_node(nodes, "n2"):
        run.wait_for_judges(2)
        subprocess.run(["kill", "-STOP", str(raylet)], check=True)
        hosts = len(run.site.daemon().hosts)
        wait_until(lambda: len(run.site.daemon().hosts) < hosts, event="the loss of n1")
        commit = run.site.submit("w01", "t/one", "stub: speedup=0.9")
        run.wait_for_evaluations(1)
        nodes.signal_node("n1", signal.SIGCONT)
        nodes.kill_node("n1")
        nodes.add("n1")
    run.end()
    run.assert_each_passed_once([commit])


def test_a_host_with_a_full_disk_is_out_of_service_with_the_reason(run: RaySite, nodes: RayNodes) -> None:
    cache = nodes.cache_of("full")
    cache.mkdir()
    small = ["bwrap", "--dev-bind", "/", "/", "--size", "4000000", "--tmpfs", str(cache), "--"]
    run.start()
    run.wait_for_judges(1)
    with further_node(nodes, "full", inside=small):
        reason = wait_until(
            lambda: next((judge.failure for judge in run.site.daemon().judges if judge.failure), None),
            event="the reason",
        )
        assert "the disk is full: 0.0 GB are free" in reason
        commits = [run.site.submit("w01", "t/one", f"{number} stub: speedup=0.9") for number in range(4)]
        run.wait_for_evaluations(4)
        assert run.site.daemon().paused is None
    run.end()
    run.assert_each_passed_once(commits)


def test_a_host_whose_clock_is_an_hour_ahead_judges_as_others_do(run: RaySite, nodes: RayNodes, tmp_path: Path) -> None:
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    with replaced(nodes, "ahead", extra={"LD_PRELOAD": str(library)}):
        run.start()
        run.wait_for_judges(1)
        skews = [host.clock_skew_s for host in run.site.daemon().hosts]
        assert max(skews) == pytest.approx(3600, abs=60)
        commits = [run.site.submit("w01", "t/one", f"{number} stub: speedup=0.9") for number in range(3)]
        run.wait_for_evaluations(3)
        doctor = run.site.call("doctor", "--cluster", nodes.address, extra=nodes.ray_environment())
        run.end()
    assert re.search(r"its clock differs by \+3[56]\d\d s", doctor.stdout)
    run.assert_each_passed_once(commits)
    run.assert_audited()
    assert [entry.candidate.tree for entry in run.evaluations() if entry.candidate] == [
        commit.tree for commit in commits
    ]
    assert all(abs(time.time() - entry_time(entry.at)) < 900 for entry in run.evaluations()), "the head's clock counts"


def entry_time(at: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(at).timestamp()


def test_a_second_head_is_refused(run: RaySite, nodes: RayNodes, tmp_path: Path) -> None:
    run.start()
    run.wait_for_judges(1)
    clone = Site(tmp_path / "clone", tmp_path / "clone scratch")
    git(tmp_path, "clone", "--quiet", str(run.site.root), str(clone.root))
    second = clone.run("daemon", "--cluster", nodes.address, extra=nodes.ray_environment())
    assert second.returncode == 2
    assert "another head uses this cluster: process" in second.stdout
    assert str(run.site.root) in second.stdout
    same = run.site.run("daemon", "--cluster", nodes.address, extra=nodes.ray_environment())
    assert same.returncode == 2
    assert "held by" in same.stdout
    run.site.submit("w01", "t/one", "stub: speedup=0.9")
    run.wait_for_evaluations(1)
    run.end()


def test_a_host_of_another_version_is_refused_with_the_reason(run: RaySite, nodes: RayNodes, tmp_path: Path) -> None:
    other_version = tmp_path / "other version"
    shutil.copytree(
        Path(harness.__file__).parent, other_version / "harness", ignore=shutil.ignore_patterns("__pycache__")
    )
    with (other_version / "harness/judge/verdict.py").open("a") as source:
        source.write("\n# another judge\n")
    with further_node(nodes, "old", extra={"PYTHONPATH": str(other_version)}):
        doctor = run.site.call("doctor", "--cluster", nodes.address, extra=nodes.ray_environment())
    assert doctor.returncode == 1
    assert "it has judge version sha256:" in doctor.stdout


def test_a_wrong_token_is_refused(run: RaySite, nodes: RayNodes) -> None:
    wrong = {**nodes.ray_environment(), "RAY_AUTH_TOKEN": "0" * 32}
    started = run.site.run("start", "--agent", "tuner", "--cluster", nodes.address, extra=wrong)
    assert started.returncode == 2
    assert "refuses the token of this host" in started.stdout


def test_a_whole_run_judges_on_the_cluster(tmp_path: Path, nodes: RayNodes) -> None:
    with site_in(tmp_path, tunable=True) as site:
        options = ("--agent", "tuner", "--workers", "1", "--cluster", nodes.address, "--max-evaluations", "3")
        completed = site.run("start", *options, extra=nodes.ray_environment())
        assert completed.returncode == 0, completed.stdout
        assert "ended: the limit of 3 evaluations is reached" in completed.stdout
        entries = [entry for entry in site.entries() if entry.device is not None]
        assert {entry.device.model_dump()["host"] for entry in entries if entry.device} == {socket.gethostname()}
        site.no_strays()
    no_judge_left(nodes)


def test_a_real_judge_of_a_node_judges_from_content(tmp_path: Path, nodes: RayNodes) -> None:
    real = {"HARNESS_JUDGE_COMMAND": f"{sys.executable} -m harness.judge", "HARNESS_LOCK_DIR": str(tmp_path / "locks")}
    with site_in(tmp_path, stub=False) as site, ray_site(site, nodes) as run, replaced(nodes, "real", extra=real):
        commits = [run.site.submit("w01", "t/one", f"number {number}") for number in range(2)]
        run.start()
        run.wait_for_evaluations(len(commits))
        run.end()
        run.assert_audited()
        entries = run.evaluations()
        assert {entry.candidate.tree for entry in entries if entry.candidate} == {commit.tree for commit in commits}
        assert {str(entry.verdict) for entry in entries} == {"PASSED"}
        content = nodes.cache_of("real") / "kernel-harness/cluster/content"
        assert len(list((content / "trees").glob("*[0-9a-f]"))) == 3, "the problem and two candidates"
        assert (nodes.cache_of("real") / "kernel-harness/cluster/judge").is_dir()


def test_no_port_of_ray_is_reached_from_a_sandbox(run: RaySite, nodes: RayNodes, tmp_path: Path) -> None:
    run.start()
    run.wait_for_judges(1)
    ports = listening_ports([pid for name in nodes.names for pid in nodes.processes(name)])
    assert int(nodes.address.rpartition(":")[2]) in ports
    addresses = [(host, port) for host in ("127.0.0.1", nodes.address.rpartition(":")[0]) for port in sorted(ports)]
    reached = [address for address in addresses if connects(address)]
    assert len(reached) >= len(ports), "from outside of a sandbox each port is reached"
    attempt = f"""
import os, socket, sys
for address in {addresses!r}:
    try:
        socket.create_connection(address, timeout=2).close()
        print("reached", address, file=sys.stderr)
    except OSError:
        pass
print([name for name in os.environ if "RAY" in name], os.path.exists({str(nodes.directory)!r}), file=sys.stderr)
"""
    assert stderr_of(attempt, tmp_path) == "[] False"
    agent = command_line(empty_view(tmp_path / "view"), [sys.executable, "-I", "-c", attempt], {})
    environment = nodes.ray_environment()
    completed = subprocess.run(agent, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (completed.returncode, completed.stderr.strip()) == (0, "[] False")
    run.end()


def connects(address: tuple[str, int]) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address, timeout=5):
        return True
    return False


def listening_ports(pids: list[int]) -> set[int]:
    """Return the TCP ports on which these processes listen.

    Source: proc(5), /proc/net/tcp; state 0A is LISTEN.
    """
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                sockets.add(str(descriptor.readlink()).removeprefix("socket:[").rstrip("]"))
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and fields[9] in sockets:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
