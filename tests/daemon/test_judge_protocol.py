"""A ledger of the former judge protocol: its champions do not count until they are measured again."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harness.errors import AnswerIsNo
from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.ledger.champions import champion, why_none
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.ledger.standings import Standing, standings
from harness.ledger.standings_table import cells, for_scripts, outdated_note
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.verdict import EntryKind, Verdict
from harness.report.proof import check_proof
from harness.report.review import review
from tests.daemon.conftest import Once, entries_of
from tests.ledger.ledgers import draft
from tests.site import Commit, Site, git

OLD = JUDGE_PROTOCOL - 1


def enter_old_champion(site: Site, commit: Commit, speedup: float) -> None:
    """Enter the documents of a champion as a daemon with a judge of the former protocol wrote them."""
    digest = problem_digest(site.root / "problems" / commit.problem)
    fixed = {
        "problem": commit.problem,
        "digest": digest,
        "tree": commit.tree,
        "commit": commit.id,
        "worker": commit.worker,
        "judge": "sha256:" + "0" * 64,
        "judge_protocol": OLD,
    }
    with Repo(site.workspace) as repo, Ledger(site.workspace, repo, branch="main") as ledger:
        baseline = ledger.append(draft("baseline", **fixed))  # type: ignore[arg-type]
        evaluation = ledger.append(draft(**fixed, speedup=speedup, cites=baseline.seq))  # type: ignore[arg-type]
        second = draft("confirmation", **fixed, speedup=speedup, cites=evaluation.seq)  # type: ignore[arg-type]
        confirmation = ledger.append(second)
        ledger.append(draft("champion", **fixed, cites=confirmation.seq))  # type: ignore[arg-type]


def standing_of(site: Site, problem: str = "t/one") -> Standing:
    with Repo(site.workspace) as repo, Index(site.workspace, branch="main") as index:
        index.refresh(repo)
        return standings(index, [problem], "cpu", "main")[0]


@pytest.fixture
def old(site: Site, monkeypatch: pytest.MonkeyPatch) -> Commit:
    """Return a champion of 3.0x by the former judge protocol and 1.4x by the present one, without its branch."""
    monkeypatch.setenv("STUB_JUDGE_VERSION", "of this protocol")
    commit = site.submit("w01", "t/one", "stub: speedup=1.4")
    enter_old_champion(site, commit, 3.0)
    git(site.root, "update-ref", "refs/kept/w01", commit.id)
    git(site.root, "branch", "-D", commit.branch)
    return commit


def test_a_champion_of_an_older_protocol_is_history_until_it_is_measured_again_first(
    site: Site, old: Commit, once: Once, caplog: pytest.LogCaptureFixture
) -> None:
    before = standing_of(site)
    assert (before.champion, before.best, before.gains, before.since_gain) == (None, None, (), 0)
    assert [row.tree for row in before.outdated] == [old.tree]
    shown = site.call("status").stdout
    assert "(judge protocol 1)" in shown
    assert "0 of 2 problems have a confirmed speed-up" in shown
    assert "to be measured again: t/one seq 3: of judge protocol 1, so they do not count" in shown
    assert "] (judge 1)" in site.call("log", "t/one").stdout
    fresh = site.submit("w02", "t/one", "stub: speedup=1.2")
    enter_old_champion(site, site.submit("w03", "t/two", "stub: speedup=1.5"), 2.0)
    with caplog.at_level(logging.INFO, logger="harness.daemon.due_work"):
        once()
    messages = [record.getMessage() for record in caplog.records if "measured again" in record.getMessage()]
    assert messages == [
        "t/one seq 3 is measured again: it is of judge protocol 1, and only protocol 2 counts",
        "t/two seq 3 is measured again: it is of judge protocol 1, and only protocol 2 counts",
    ]
    requests = [(request["kind"], request["problem"]) for request in site.requests()]
    assert [problem for kind, problem in requests if kind == "evaluation"] == ["t/one", "t/two", "t/one"]
    after = standing_of(site)
    assert after.outdated == ()
    assert after.champion is not None
    assert (after.champion.tree, after.champion.judge_protocol) == (old.tree, JUDGE_PROTOCOL)
    assert after.champion.speedup == pytest.approx(1.4, rel=0.01)
    assert cells(after)[3].startswith("1.4")
    assert "judge protocol" not in site.call("status").stdout
    assert len(entries_of(site.entries(), fresh)) == 1
    with Repo(site.workspace) as repo:
        break_messages = [request.message for request in audit(site.workspace, repo, branch="main").breaks]
    assert [
        message for message in break_messages if "champion" in message or "protocol" in message or "twice" in message
    ] == []
    count = len(site.requests())
    once()
    assert len(site.requests()) == count, "measured again once"


def test_a_runner_up_is_measured_again_and_takes_the_place_of_a_champion_that_fails(
    site: Site, once: Once, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_JUDGE_VERSION", "of this protocol")
    third = site.submit("w01", "t/one", "third stub: speedup=1.1")
    second = site.submit("w01", "t/one", "second stub: speedup=1.3")
    first = site.submit("w01", "t/one", "stub: verdict=REWARD_HACK")
    for commit, speedup in ((third, 1.5), (second, 2.0), (first, 9.0)):
        enter_old_champion(site, commit, speedup)
    git(site.root, "update-ref", "refs/kept/w01", first.id)
    git(site.root, "branch", "-D", first.branch)
    assert [row.tree for row in standing_of(site).outdated] == [first.tree, second.tree]
    fresh = site.submit("w02", "t/one", "stub: speedup=0.9")
    once()
    evaluated = [Path(request["solution_dir"]).name for request in site.requests() if request["kind"] == "evaluation"]
    assert evaluated == [first.tree, second.tree, fresh.tree], "both go first, though one worker made both"
    entries = [entry for entry in site.entries() if entry.judge_protocol == JUDGE_PROTOCOL]
    assert [entry.verdict for entry in entries_of(entries, first)] == [Verdict.REWARD_HACK]
    assert entries_of(entries, third) == []
    assert len(entries_of(entries, second, EntryKind.CONFIRMATION)) == 1
    after = standing_of(site)
    assert after.champion is not None
    assert after.champion.tree == second.tree
    assert (after.outdated, outdated_note([after])) == ((), [])


def test_candidates_that_cannot_be_measured_again_stay_marked_and_delay_no_other(
    site: Site, old: Commit, once: Once
) -> None:
    git(site.root, "update-ref", "-d", "refs/kept/w01")
    git(site.root, "reflog", "expire", "--expire=now", "--all")
    git(site.root, "prune", "--expire=now")
    fresh = site.submit("w02", "t/one", "stub: speedup=1.2")
    once()
    assert len(entries_of(site.entries(), fresh, EntryKind.CONFIRMATION)) == 1
    assert f"t/one seq 3 cannot be measured again: its commit {old.id} is missing" in site.daemon().messages
    after = standing_of(site)
    assert after.champion is not None
    assert after.champion.tree == fresh.tree
    assert [row["judge_protocol"] for row in for_scripts(after)["outdated"]] == [OLD]


def test_displays_of_a_history_give_the_reason_why_it_does_not_count(site: Site, old: Commit) -> None:
    reason = "of judge protocol 1 and does not count: numbers of different judge protocols are not compared"
    with Repo(site.workspace) as repo, Index(site.workspace, branch="main") as index:
        index.refresh(repo)
        digest = problem_digest(site.root / "problems/t/one")
        assert champion(index, "t/one", digest, "cpu") is None
        refused = why_none(index, "t/one", digest, "cpu", "main")
        assert isinstance(refused, AnswerIsNo)
        assert reason in refused.message
        shown = review(repo, index, "t/one", base="main", target="cpu", run="main")
        assert (shown.tree, reason in shown.warnings[0]) == (old.tree, True)
        proof = check_proof(repo, "main", old.id)
        assert [fault for fault in proof.faults if reason in fault]
        assert proof.measured is None
