"""Faults of the machine give no verdict: the candidate stays queued, and the run pauses until the fault is over."""

from __future__ import annotations

import time

import pytest

from harness.daemon import daemon as daemon_module
from harness.daemon import lost_work
from harness.daemon.lost_work import PostponedWork
from harness.errors import EXIT_HOST_FAULT, EXIT_OUT_OF_MEMORY, ConfigurationError
from harness.model.verdict import EntryKind, Verdict
from harness.workspace import judge_client
from tests.daemon.conftest import Daemon, Once, entries_of
from tests.site import Site
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(lost_work, "LONGEST_PAUSE_S", 0.05)


@pytest.mark.parametrize(
    ("code", "message", "shown"),
    [
        (EXIT_HOST_FAULT, "no C++ compiler\n  apt-get install g++", "no C++ compiler; fix: apt-get install g++"),
        (EXIT_OUT_OF_MEMORY, "this machine is out of memory: MemoryError", "this machine is out of memory"),
    ],
)
def test_a_run_pauses_with_the_reason_and_goes_on(
    site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, code: int, message: str, shown: str
) -> None:
    fault = site.scratch / "fault"
    fault.write_text(f"{code} {message}")
    monkeypatch.setenv("STUB_JUDGE_FAULT", str(fault))
    commit = site.submit("w01", "t/one", "honest")
    with daemon() as running:
        message = running.wait_for_message(f"paused: {shown}")
        assert message.endswith("; tried again until it works")
        wait_until(lambda: len(site.requests()) >= 6, event="more tries than a candidate has")
        status = site.daemon()
        assert status.paused is not None
        assert status.paused.startswith(shown)
        assert status.queued == 1
        fault.unlink()
        assert running.entry_of(commit).verdict is Verdict.PASSED
        wait_until(lambda: not site.daemon().paused, event="the end of the pause")
        assert not [line for line in site.daemon().messages if line.startswith("paused")]
    assert not list((site.workspace.state / "attempts").glob("*.json")), "no loss is counted"
    verdicts = [entry.verdict for entry in site.entries() if entry.kind is not EntryKind.CHAMPION]
    assert set(verdicts) == {Verdict.PASSED}


def test_harness_status_shows_the_pause(site: Site, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = site.scratch / "fault"
    fault.write_text(f"{EXIT_HOST_FAULT} the GPU's driver does not work: GPU is lost")
    monkeypatch.setenv("STUB_JUDGE_FAULT", str(fault))
    site.submit("w01", "t/one", "honest")
    with daemon() as running:
        running.wait_for_message("paused")
        shown = site.call("status").stdout
        assert "): paused: the GPU's driver does not work: GPU is lost (1 queued)" in shown
        fault.unlink()
        wait_until(lambda: not site.daemon().queued, event="the end of the queue")


def test_others_are_judged_while_one_candidate_waits(site: Site, daemon: Daemon) -> None:
    """A candidate with a fault of its own does not delay others, and is judged after the fault."""
    fault = site.scratch / "no-nvcc"
    special = site.submit("w01", "t/one", f"stub: fault={fault}")
    honest = [site.submit("w02", "t/two", f"honest {number}") for number in range(4)]
    fault.write_text(f"{EXIT_HOST_FAULT} language cuda_cpp needs nvcc\n  set CUDA_HOME")
    with daemon() as running:
        for commit in honest:
            assert running.entry_of(commit).verdict is Verdict.PASSED
        place = str(site.workspace.cache / "candidates" / special.tree)

        def tries() -> int:
            return sum(request["solution_dir"] == place for request in site.requests())

        before = tries()
        wait_until(lambda: tries() >= before + 2, event="more tries")
        assert entries_of(site.entries(), special) == []
        fault.unlink()
        assert running.entry_of(special).verdict is Verdict.PASSED


def test_a_daemon_that_is_to_end_by_itself_does_not_wait_for_ever(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = site.scratch / "fault"
    fault.write_text(f"{EXIT_HOST_FAULT} no C++ compiler")
    monkeypatch.setenv("STUB_JUDGE_FAULT", str(fault))
    monkeypatch.setattr(daemon_module, "LONGEST_FAULT_S", 0.5)
    site.submit("w01", "t/one", "honest")
    with pytest.raises(ConfigurationError, match=r"this machine lets no judge work: no C\+\+ compiler"):
        once()
    assert site.entries() == []


def test_a_candidate_that_alone_exhausts_memory_gets_its_verdict(site: Site, once: Once) -> None:
    fault = site.scratch / "memory"
    greedy = site.submit("w01", "t/one", f"stub: fault={fault}")
    honest = [site.submit("w02", "t/two", f"honest {number}") for number in range(8)]
    fault.write_text(f"{EXIT_OUT_OF_MEMORY} this machine lets nothing more start")
    once()
    entries = site.entries()
    (entry,) = entries_of(entries, greedy)
    assert entry.verdict is Verdict.RUNTIME_ERROR
    assert "this machine lets nothing more start" in str(entry.reason)
    assert [entries_of(entries, commit)[0].verdict for commit in honest] == [Verdict.PASSED] * 8


def test_a_judge_that_the_kernel_kills_for_memory_is_no_loss_of_the_candidate(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL while the kernel's count of such kills rises; a plain SIGKILL counts, as before."""
    kills = iter(range(10**6))
    monkeypatch.setattr(judge_client, "oom_kills", lambda: next(kills))
    commit = site.submit("w01", "t/one", "stub: kill-once")
    once()
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.PASSED
    assert not (site.workspace.state / "attempts").exists()


def test_the_same_work_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(lost_work, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(lost_work, "LONGEST_PAUSE_S", 4.0)
    work = PostponedWork()
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert not work.postpone(["evaluation", "a"])
        assert work.waits(["evaluation", "a"])
        assert not work.waits(["evaluation", "b"])
        clock_s[0] += pause_s
        assert not work.waits(["evaluation", "a"])
    work.count_answer(["evaluation", "b"])
    for _ in range(2):
        assert not work.postpone(["evaluation", "a"])
        work.count_answer(["evaluation", "b"])
    assert work.postpone(["evaluation", "a"]), "others were answered between its last three faults"
    work.count_answer(["evaluation", "a"])
    assert not work.postpone(["evaluation", "a"])
