"""Judges that are lost, hang, do not start or answer wrongly: the daemon goes on, or says why it cannot."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.errors import ConfigurationError
from harness.model.config import Config, JudgeConfig
from harness.model.judging import PROTOCOL_FIX
from harness.model.verdict import EntryKind, Verdict
from harness.workspace import judge_client
from tests.daemon.conftest import Daemon, Once, of
from tests.site import Site, git, write_problem
from tests.waiting import wait_until


def test_a_candidate_that_kills_its_judge_twice_gets_a_verdict_and_the_others_go_on(site: Site, once: Once) -> None:
    killer = site.submit("w01", "t/one", "stub: die")
    honest = site.submit("w02", "t/one", "honest")
    once()
    entries = site.entries()
    (entry,) = of(entries, killer)
    assert entry.verdict is Verdict.RUNTIME_ERROR
    assert entry.reason is not None
    assert entry.reason.startswith("judging this candidate has ended the judge twice; the last time, ")
    assert "SIGKILL" in entry.reason
    assert [other.verdict for other in of(entries, honest)] == [Verdict.PASSED]
    asked = Counter(asked["solution_dir"] for asked in site.requests())
    assert asked[str(site.workspace.cache / "candidates" / killer.tree)] == 2


def test_one_lost_judge_is_forgiven(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "stub: die-once")
    once()
    (entry,) = of(site.entries(), commit)
    assert entry.verdict is Verdict.PASSED
    assert not list((site.workspace.state / "attempts").iterdir())


def test_attempts_are_remembered_over_a_restart(
    site: Site, once: Once, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = site.submit("w01", "t/one", "stub: die")
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 60.0)
    with daemon():
        attempts = site.workspace.state / "attempts"
        wait_until(lambda: attempts.is_dir() and list(attempts.glob("*.json")), what="the first loss")
    monkeypatch.undo()
    for name, value in site.environment().items():
        if name.startswith(("HARNESS_", "STUB_")):
            monkeypatch.setenv(name, value)
    once()
    (entry,) = of(site.entries(), commit)
    assert entry.verdict is Verdict.RUNTIME_ERROR
    assert len([asked for asked in site.requests() if asked["kind"] == "evaluation"]) == 2


def test_a_candidate_that_hangs_its_judge_times_out(site: Site, once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "MARGIN_S", 0.2)
    commit = site.submit("w01", "t/one", "stub: hang")
    once(Config(judge=JudgeConfig(max_judge_s=0.1)))
    (entry,) = of(site.entries(), commit)
    assert entry.verdict is Verdict.TIMEOUT
    assert "did not answer within 0 s" in str(entry.reason)


def test_a_reference_that_kills_the_judge_is_invalid_and_its_candidates_are_told(site: Site, once: Once) -> None:
    write_problem(site.root, "t/one", description="stub: die")
    git(site.root, "commit", "--quiet", "-am", "A bad reference")
    bad = site.submit("w01", "t/one", "honest")
    good = site.submit("w01", "t/two", "honest")
    once()
    entries = site.entries()
    (baseline,) = [entry for entry in entries if entry.kind is EntryKind.BASELINE and entry.problem == "t/one"]
    assert baseline.verdict is Verdict.INVALID_REFERENCE
    assert "ended the judge twice" in str(baseline.reason)
    (entry,) = of(entries, bad)
    assert entry.verdict is Verdict.INVALID_REFERENCE
    assert entry.cites == baseline.seq
    assert [other.verdict for other in of(entries, good)] == [Verdict.PASSED]


def test_a_judge_that_never_becomes_ready_ends_the_daemon_with_the_reason(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", "sh -c 'echo bubblewrap is missing >&2; exit 2'")
    site.submit("w01", "t/one")
    with pytest.raises(ConfigurationError, match="bubblewrap is missing") as raised:
        once()
    assert raised.value.where == str(site.workspace.logs / "judge-cpu.log")


def test_a_judge_that_cannot_be_started_at_all_ends_the_daemon_too(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", str(site.scratch / "no-such-judge"))
    with pytest.raises(ConfigurationError, match=r"cannot be started: .*No such file"):
        once()


def test_a_judge_of_another_protocol_ends_the_daemon_at_once_with_the_fix(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_JUDGE_PROTOCOL", "2")
    with pytest.raises(ConfigurationError, match="speaks judge protocol 2, and this process speaks judge") as raised:
        once()
    assert raised.value.remedy == PROTOCOL_FIX
    assert (site.workspace.logs / "judge-cpu.log").exists()


def test_an_answer_of_another_judge_version_is_no_answer(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_JUDGE_ANSWERS_AS", "2")
    commit = site.submit("w01", "t/one", "honest")
    once()
    baseline = site.entries()[0]
    assert baseline.verdict is Verdict.INVALID_REFERENCE
    assert [entry.verdict for entry in of(site.entries(), commit)] == [Verdict.INVALID_REFERENCE]
