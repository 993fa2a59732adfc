"""`harness daemon`, started by a person or by the supervisor."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from harness.model.verdict import EntryKind
from harness.workspace.processes import PARENT_VARIABLE
from tests.site import Site, git
from tests.waiting import wait_until

EVENT_TO_QUEUED_S = 0.3
DAEMON_MB = 120.0
"""The limit of the daemon's memory, of 200 MB for the daemon and the planner."""


def ready(site: Site) -> None:
    """Wait until the daemon's judge is ready."""
    wait_until(lambda: any(judge.state == "idle" for judge in site.daemon().judges), event="a judge that is ready")


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(site: Site, number: signal.Signals) -> None:
    done = site.submit("w01", "t/one", "stub: speedup=0.9")
    process = site.start("daemon")
    wait_until(site.workspace.outcome_file("t/one", "cpu", done.tree).exists, event="the outcome")
    site.submit("w01", "t/two", f"stub: hold={site.scratch}/never")
    wait_until(lambda: site.judging().problem == "t/two", event="a judge at work")
    process.send_signal(number)
    code, output = outcome(process)
    assert code == 0, output
    site.no_strays()
    assert git(site.root, "status", "--porcelain") == ""
    assert 'kind: "evaluation"' in git(site.root, "show", "main:ledger/t/one.yaml")


def test_it_counts_its_limit_and_ends_when_nothing_is_left(site: Site) -> None:
    for number in range(3):
        site.submit("w01", "t/one", f"{number} stub: speedup=0.9")
    first = site.run("daemon", "--once", "--max-evaluations", "2", "--device", "cpu")
    assert first.returncode == 0, first.stdout
    assert Counter(entry.kind for entry in site.entries())[EntryKind.EVALUATION] == 2
    second = site.run("daemon", "--once", "--run", "main")
    assert second.returncode == 0, second.stdout
    assert Counter(entry.kind for entry in site.entries())[EntryKind.EVALUATION] == 3


def test_another_run_has_branches_of_its_own(site: Site) -> None:
    site.submit("w01", "t/one", "elsewhere", run="night")
    assert site.run("daemon", "--once", "--run", "night").returncode == 0
    assert {entry.run for entry in site.entries()} == {"night"}


def test_the_daemon_and_its_judge_end_with_the_supervisor(site: Site) -> None:
    supervisor = subprocess.Popen(["sleep", "60"])
    try:
        # The supervisor is not the parent: it ended before the daemon requested its parent-death signal.
        orphan = site.run("daemon", extra={PARENT_VARIABLE: str(supervisor.pid)})
        assert orphan.returncode == 2
    finally:
        supervisor.kill()
        supervisor.wait()
    process = site.start("daemon", extra={PARENT_VARIABLE: str(os.getpid())})
    ready(site)
    process.kill()
    process.wait()
    site.no_strays()


def test_its_log_has_what_it_did_and_its_judge_a_log_of_its_own(site: Site) -> None:
    commit = site.submit("w01", "t/one", "stub: kill-once")
    assert site.run("daemon", "--once").returncode == 0
    log = (site.workspace.logs / "daemon.log").read_text()
    assert re.search(rf"INFO .*queued {commit.tree} of w01 for t/one", log)
    assert "the judge of cpu was ended by SIGKILL" in log
    assert (site.workspace.logs / "judge-cpu.log").exists()


@pytest.mark.slow
@pytest.mark.serial
def test_a_commit_is_queued_soon_and_the_daemon_stays_small(site: Site) -> None:
    process = site.start("daemon")
    ready(site)
    site.submit("w00", "t/one", f"stub: hold={site.scratch}/go")  # keeps the judge busy
    wait_until(lambda: site.judging().kind == "evaluation", event="a judge at work")
    queue_times_s = []
    for number in range(5):
        commit = site.submit(f"w{number}", "t/two", f"number {number}", publish=False)
        started = time.monotonic()
        git(site.root, "update-ref", f"refs/heads/{commit.branch}", commit.id)
        wait_until(partial(_queued, site, commit.tree), event="the candidate in the queue", poll_s=0.002)
        queue_times_s.append(time.monotonic() - started)
    assert statistics.median(queue_times_s) <= EVENT_TO_QUEUED_S, queue_times_s
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident_mb = int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) / 1024
    assert resident_mb <= DAEMON_MB
    process.terminate()
    assert outcome(process)[0] == 0


def _queued(site: Site, tree: str) -> bool:
    return f"queued {tree}" in (site.workspace.logs / "daemon.log").read_text()
