"""Full disks, truncated files, clocks set back, switched branches: a clear message, and no entry is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from harness.daemon.run import run_daemon
from harness.ledger.ledger import Ledger
from harness.ledger.spool import segments
from harness.model.config import Config
from harness.model.verdict import EntryKind
from tests.integration.kills import check
from tests.site import Commit, Site, git, site_in, write_problem
from tests.waiting import wait_until

DAEMON = [sys.executable, "-m", "harness", "daemon"]
EVERYTHING = ["bwrap", "--dev-bind", "/", "/"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as site:
        yield site


def judged(site: Site, commit: Commit) -> None:
    """Wait for a candidate's outcome."""
    file = site.workspace.outcome_file(commit.problem, "cpu", commit.tree)
    wait_until(file.exists, event=f"the outcome of {commit.text}")


def wait_for_message(site: Site, words: str) -> str:
    """Wait until the daemon shows a message with these words."""
    messages = wait_until(
        lambda: [message for message in site.daemon().messages if words in message], event=f"a message with {words!r}"
    )
    return str(messages[0])


def end(process: subprocess.Popen[str], pid: int | None = None) -> str:
    """Stop a daemon cleanly, and return its output."""
    os.kill(pid or process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


def evaluations(site: Site) -> Counter[str]:
    return Counter(
        entry.candidate.commit for entry in site.entries() if entry.kind is EntryKind.EVALUATION and entry.candidate
    )


def fill(directory: Path) -> Path:
    """Fill a small file system to the last byte, and return the file that fills it."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_a_full_disk_keeps_the_answer_until_there_is_space(site: Site) -> None:
    site.workspace.spool.mkdir(parents=True, exist_ok=True)
    small = ["--size", str(1 << 20), "--tmpfs", str(site.workspace.spool)]
    process = site.start_program([*EVERYTHING, *small, *DAEMON])
    judged(site, site.submit("w01", "t/one", "stub: speedup=0.9"))
    # The first entries are committed at once, the next one removes their segment, and no other commit follows for 60 s.
    wait_until(lambda: "t/one" in git(site.root, "ls-tree", "-r", "--name-only", "main", "ledger"), event="the commit")
    judged(site, site.submit("w01", "t/one", "stub: speedup=0.7"))
    pid = site.daemon().pid
    # Only the daemon's mount namespace has the small file system at its spool.
    filler = fill(Path(f"/proc/{pid}/root{site.workspace.spool}"))
    second = site.submit("w01", "t/one", "stub: speedup=1.5")
    assert "no space left" in wait_for_message(site, "kept and tried again")
    third = site.submit("w02", "t/one", "stub: speedup=0.8")
    filler.unlink()
    judged(site, second)
    judged(site, third)
    wait_until(lambda: not site.daemon().messages, event="the end of the message")
    end(process, pid)
    assert max(evaluations(site).values()) == 1
    assert len([request for request in site.requests() if request["kind"] == "evaluation"]) == 4
    assert site.call("daemon", "--once").returncode == 0
    check(site)


def test_a_read_only_ledger_is_named_and_repaired_without_loss(site: Site) -> None:
    site.submit("w01", "t/one", "stub: speedup=1.5")
    assert site.call("daemon", "--once").returncode == 0
    waiting = site.submit("w01", "t/two", "stub: speedup=1.2")
    spool = str(site.workspace.spool)
    refused = site.run_program([*EVERYTHING, "--ro-bind", spool, spool, *DAEMON, "--once"])
    assert refused.returncode == 2
    assert refused.stdout.startswith(f"harness: {spool}")
    assert "Read-only file system" in refused.stdout
    assert waiting.id not in evaluations(site)
    assert site.call("daemon", "--once").returncode == 0
    check(site)


def test_an_unreadable_index_is_rebuilt(site: Site) -> None:
    process = site.start("daemon")
    judged(site, site.submit("w01", "t/one", "stub: speedup=1.5"))
    end(process)  # under a running daemon, sqlite may continue with its journal without reading the file
    site.workspace.index_file.write_bytes(b"this is not a database" * 1000)
    process = site.start("daemon")
    judged(site, site.submit("w01", "t/one", "stub: speedup=0.8"))
    assert "rebuilt from the ledger" in wait_for_message(site, "index")
    end(process)
    site.workspace.index_file.unlink()
    site.workspace.index_file.mkdir()
    blocked = site.start("daemon")
    assert str(site.workspace.index_file) in wait_for_message(site, "comparing refs with the ledger failed")
    site.workspace.index_file.rmdir()
    judged(site, site.submit("w01", "t/two", "stub: speedup=0.8"))
    end(blocked)
    check(site)


def test_a_torn_tail_is_cut_set_aside_and_reported(site: Site) -> None:
    site.submit("w01", "t/one", "stub: speedup=1.5")
    killed = site.run("daemon", "--once", extra={"HARNESS_FAILPOINT": "daemon.after_entry:2"})
    assert killed.returncode == -signal.SIGKILL
    segment = segments(site.workspace.spool / "daemon")[-1]  # a commit of an earlier segment may be in progress
    os.truncate(segment, segment.stat().st_size - 7)
    second_run = site.call("daemon", "--once")
    assert second_run.returncode == 0
    assert "torn by a crash" in second_run.stdout
    check(site)


def test_a_clock_that_steps_back_is_reported_and_keeps_the_ledgers_order(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ahead() -> datetime:
        return datetime.now(UTC) + timedelta(hours=2)

    for name, value in site.environment().items():
        monkeypatch.setenv(name, value)
    defaults = Ledger.__init__.__kwdefaults__
    assert defaults is not None
    site.submit("w01", "t/one", "stub: speedup=1.5")
    with monkeypatch.context() as patched:
        patched.setitem(defaults, "clock", ahead)
        run_daemon(site.workspace, Config(), once=True, stop=threading.Event())
    site.submit("w01", "t/one", "stub: speedup=0.8")
    stepped = site.call("daemon", "--once")
    assert stepped.returncode == 0
    assert "the clock shows" in stepped.stdout
    times = [entry.at for entry in site.entries("t/one")]
    assert times == sorted(times)
    check(site)


def test_a_person_works_in_the_checkout_while_the_harness_runs(site: Site) -> None:
    process = site.start("daemon")
    judged(site, site.submit("w01", "t/one", "stub: speedup=1.1"))
    git(site.root, "switch", "--quiet", "-c", "mine")
    (site.root / "notes.txt").write_text("mine\n")
    git(site.root, "add", "notes.txt")
    (site.root / "harness.yaml").write_text("run: main  # edited, not committed\n")
    judged(site, site.submit("w01", "t/one", "stub: speedup=1.3"))
    git(site.root, "stash", "push", "--quiet")
    git(site.root, "gc", "--quiet", "--prune=now")
    judged(site, site.submit("w02", "t/two", "stub: speedup=0.8"))
    git(site.root, "stash", "pop", "--quiet", "--index")
    end(process)
    assert git(site.root, "rev-parse", "--abbrev-ref", "HEAD") == "mine"
    assert git(site.root, "status", "--porcelain").split("\n") == ["M harness.yaml", "A  notes.txt"]
    assert git(site.root, "show", "main:ledger/t/two.yaml")
    git(site.root, "commit", "--quiet", "-am", "Mine")
    git(site.root, "switch", "--quiet", "main")
    assert (site.root / "ledger/t/one.yaml").is_file()
    assert site.call("daemon", "--once").returncode == 0
    check(site)


@pytest.mark.slow
def test_a_killed_daemon_is_restarted_by_start_and_keeps_the_limit(site: Site) -> None:
    write_problem(site.root, "t/one", tunable=True)
    git(site.root, "add", "--all")
    git(site.root, "commit", "--quiet", "-m", "Something to tune")
    killed_after_outcome = {
        "HARNESS_FAILPOINT": "daemon.after_outcome:2",
        "HARNESS_FAILPOINT_MARK": str(site.scratch / "died"),
    }
    start = ("start", "--workers", "1", "--agent", "tuner", "--device", "cpu", "--problem", "t/one")
    completed = site.run(*start, "--max-evaluations", "3", extra=killed_after_outcome)
    assert completed.returncode == 0, completed.stdout
    assert "the daemon ended (SIGKILL) and is started again" in completed.stdout
    assert sum(evaluations(site).values()) == 3
    second_run = site.run(*start, "--max-evaluations", "1")
    assert second_run.returncode == 0, second_run.stdout
    assert sum(evaluations(site).values()) == 4
