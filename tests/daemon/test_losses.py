"""Judges that are lost, hang, do not start or answer wrongly: the daemon continues, or reports the reason."""

from __future__ import annotations

import shlex
import sys
from collections import Counter

import pytest

from harness.errors import ConfigurationError
from harness.model.config import Config, JudgeConfig
from harness.model.judging import PROTOCOL_FIX
from harness.model.verdict import EntryKind, Verdict
from harness.workspace import judge_client
from tests.daemon.conftest import Daemon, Once, entries_of
from tests.site import STUB, Site, git, write_problem
from tests.waiting import wait_until


def test_a_candidate_that_kills_its_judge_twice_gets_a_verdict_and_the_others_go_on(site: Site, once: Once) -> None:
    killer = site.submit("w01", "t/one", "stub: kill")
    honest = site.submit("w02", "t/one", "honest")
    once()
    entries = site.entries()
    (entry,) = entries_of(entries, killer)
    assert entry.verdict is Verdict.RUNTIME_ERROR
    assert entry.reason is not None
    assert entry.reason.startswith("judging this candidate has ended the judge twice; the last time, ")
    assert "SIGKILL" in entry.reason
    assert [entry.verdict for entry in entries_of(entries, honest)] == [Verdict.PASSED]
    request_counts = Counter(request["solution_dir"] for request in site.requests())
    assert request_counts[str(site.workspace.cache / "candidates" / killer.tree)] == 2


def test_one_lost_judge_is_forgiven(site: Site, once: Once) -> None:
    commit = site.submit("w01", "t/one", "stub: kill-once")
    once()
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.PASSED
    assert not list((site.workspace.state / "attempts").iterdir())


def test_attempts_are_remembered_over_a_restart(
    site: Site, once: Once, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = site.submit("w01", "t/one", "stub: kill")
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 60.0)
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 60.0)
    with daemon():
        attempts = site.workspace.state / "attempts"
        wait_until(lambda: attempts.is_dir() and list(attempts.glob("*.json")), event="the first loss")
    monkeypatch.undo()
    for name, value in site.environment().items():
        if name.startswith(("HARNESS_", "STUB_")):
            monkeypatch.setenv(name, value)
    once()
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.RUNTIME_ERROR
    assert len([request for request in site.requests() if request["kind"] == "evaluation"]) == 2


def test_a_candidate_that_hangs_its_judge_times_out(site: Site, once: Once, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_client, "MARGIN_S", 0.2)
    commit = site.submit("w01", "t/one", "stub: hang")
    once(Config(judge=JudgeConfig(max_judge_s=0.1)))
    (entry,) = entries_of(site.entries(), commit)
    assert entry.verdict is Verdict.TIMEOUT
    assert "did not answer within 0 s" in str(entry.reason)


def test_a_reference_that_kills_the_judge_is_invalid_and_its_candidates_get_the_reason(site: Site, once: Once) -> None:
    write_problem(site.root, "t/one", description="stub: kill")
    git(site.root, "commit", "--quiet", "-am", "A bad reference")
    bad = site.submit("w01", "t/one", "honest")
    honest = site.submit("w01", "t/two", "honest")
    once()
    entries = site.entries()
    (baseline,) = [entry for entry in entries if entry.kind is EntryKind.BASELINE and entry.problem == "t/one"]
    assert baseline.verdict is Verdict.INVALID_REFERENCE
    assert "ended the judge twice" in str(baseline.reason)
    (entry,) = entries_of(entries, bad)
    assert entry.verdict is Verdict.INVALID_REFERENCE
    assert entry.cites == baseline.seq
    assert [entry.verdict for entry in entries_of(entries, honest)] == [Verdict.PASSED]


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


@pytest.mark.parametrize("message", ["STUB_JUDGE_PROTOCOL", "STUB_JUDGE_ANSWERS_IN"])
def test_a_judge_of_an_older_protocol_ends_the_daemon_at_once_with_the_fix(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    monkeypatch.setenv(message, "1")
    site.submit("w01", "t/one", "honest")
    with pytest.raises(ConfigurationError, match="uses judge protocol 1, and this process uses judge") as raised:
        once()
    assert not site.entries()
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
    assert [entry.verdict for entry in entries_of(site.entries(), commit)] == [Verdict.INVALID_REFERENCE]


def only_for(devices: str) -> str:
    """Return the command of a stub judge that fails for all devices except these."""
    stub = shlex.join([sys.executable, str(STUB)])
    return shlex.join(["sh", "-c", f'case " $* " in *" {devices} "*) exec {stub} "$@";; esac; exit 3', "judge"])


def test_a_judge_that_never_becomes_ready_is_given_up_and_the_others_go_on(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", only_for("cpu"))
    commit = site.submit("w01", "t/one", "honest")
    once(Config(devices=("cpu", "cpu:1")))
    assert [entry.verdict for entry in entries_of(site.entries(), commit)] == [Verdict.PASSED]
    message = "the judge of cpu:1 is given up: it failed 5 times in a row and never became ready"
    assert message in site.daemon().messages
    states = {judge.device: (judge.became_ready, judge.failure) for judge in site.daemon().judges}
    assert states["cpu"] == (True, None)
    assert states["cpu:1"] == (False, "the judge of cpu:1 ended with exit code 3")


def test_the_last_judge_of_a_target_takes_its_candidates_along(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge of cpu becomes ready only once; the run ends although a candidate for cpu is left."""
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(judge_client, "LONGEST_PAUSE_S", 0.01)
    stub, mark = shlex.join([sys.executable, str(STUB)]), shlex.quote(str(site.scratch / "started"))
    script = f'case " $* " in *" cpu "*) mkdir {mark} || exit 3;; esac; exec {stub} "$@"'
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", shlex.join(["sh", "-c", script, "judge"]))
    site.submit("w01", "t/one", "stub: kill")
    once(Config(devices=("cpu", "cuda")))
    message = "the judge of cpu is given up: it failed 16 times in a row and did not become ready again"
    assert message in site.daemon().messages
    assert site.daemon().queued == 0, "no judge is left for the remaining candidate"


def test_a_daemon_whose_every_judge_is_lost_for_good_ends_with_the_reason(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", only_for("no device"))
    with pytest.raises(ConfigurationError, match="5 times in a row and never became ready") as raised:
        once(Config(devices=("cpu", "cpu:1")))
    assert str(raised.value.where).startswith(str(site.workspace.logs / "judge-cpu"))
