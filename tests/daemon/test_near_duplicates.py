"""Nearly identical candidates are counted; a sealed one with the code of a measured one is answered from the ledger."""

from __future__ import annotations

import json

import pytest

from harness.agents.answers import outcome_text
from harness.git.repo import Repo
from harness.ledger.audit.audit import audit
from harness.ledger.index import Index
from harness.ledger.standings import standings
from harness.model.entry import Entry
from harness.model.verdict import EntryKind, Verdict
from tests.daemon.conftest import Once, entries_of, kinds
from tests.site import SOLUTION, Commit, Site

SEALED = """language: cuda
entry: kernel.cu::increment
launch:
  - {kernel: increment, grid: [1], block: [n], args: [x, y]}
"""


def submit(site: Site, worker: str, text: str) -> Commit:
    return site.submit(worker, "t/one", text, solution=SEALED, file="kernel.cu")


def requests(site: Site) -> list[str]:
    return [request["kind"] for request in site.requests()]


def entry_of(site: Site, commit: Commit) -> Entry:
    (entry,) = entries_of(site.entries(), commit)
    return entry


def breaks(site: Site) -> list[str]:
    with Repo(site.workspace) as repo:
        return [item.message for item in audit(site.workspace, repo, branch="main").breaks]


def test_a_sealed_candidate_with_the_code_of_a_measured_one_is_answered_from_the_ledger(site: Site, once: Once) -> None:
    first = submit(site, "w01", "stub: binary=A stub: speedup=1.4")
    once()
    measured = entry_of(site, first)
    second = submit(site, "w02", "another comment stub: binary=A stub: speedup=1.6")
    third = submit(site, "w02", "stub: binary=B stub: speedup=0.95")
    once()
    repeated = entry_of(site, second)
    assert (measured.answered_from, repeated.answered_from) == (None, measured.seq)
    assert repeated.candidate is not None
    assert (repeated.candidate.worker, repeated.candidate.tree) == ("w02", second.tree)
    assert (repeated.verdict, repeated.workloads, repeated.summary, repeated.cites, repeated.device) == (
        Verdict.PASSED,
        measured.workloads,
        measured.summary,
        measured.cites,
        measured.device,
    )
    assert entry_of(site, third).answered_from is None
    # One baseline, three requests for evaluations, and the confirmation of the measured one only.
    assert kinds(site) == {
        EntryKind.BASELINE: 1,
        EntryKind.EVALUATION: 3,
        EntryKind.CONFIRMATION: 1,
        EntryKind.CHAMPION: 1,
    }
    assert requests(site).count("evaluation") == 3
    assert breaks(site) == []
    with Repo(site.workspace) as repo, Index(site.workspace, branch="main") as index:
        index.refresh(repo)
        (standing,) = standings(index, ["t/one"], "cpu", "main")
    assert (standing.evaluations, standing.duplicates, standing.near_duplicates, standing.answered_from_ledger) == (
        3,
        0,
        2,
        1,
    )  # all three differ in comments only
    assert standing.champion is not None
    assert standing.champion.cites == measured.seq


@pytest.mark.parametrize("verdict", [Verdict.INCORRECT_NUMERICAL, Verdict.RUNTIME_ERROR])
def test_only_verdicts_that_follow_from_the_code_are_repeated(site: Site, once: Once, verdict: Verdict) -> None:
    first = submit(site, "w01", f"stub: binary=A stub: verdict={verdict}")
    once()
    second = submit(site, "w02", "another comment stub: binary=A stub: speedup=0.9")
    once()
    repeats = verdict is Verdict.INCORRECT_NUMERICAL
    entry = entry_of(site, second)
    assert entry.answered_from == (entry_of(site, first).seq if repeats else None)
    assert entry.verdict is (verdict if repeats else Verdict.PASSED)
    assert breaks(site) == []


def test_host_code_is_measured_again_and_counted(site: Site, once: Once) -> None:
    first = site.submit("w01", "t/one", "stub: binary=A stub: speedup=0.9")
    once()
    comment = site.submit("w02", "t/one", "a stub: speedup=0.91")
    changed_solution = SOLUTION.replace("WIDTH: 1", "WIDTH: 2")
    code = site.submit("w02", "t/one", "stub: binary=A stub: speedup=0.92", solution=changed_solution)
    once()
    entries = [entry_of(site, commit) for commit in (first, comment, code)]
    prints = [entry.fingerprint for entry in entries]
    assert all(prints)
    assert [entry.answered_from for entry in entries] == [None] * 3
    assert len({fingerprint.source for fingerprint in prints if fingerprint}) == 2
    assert [fingerprint.binary is None for fingerprint in prints if fingerprint] == [False, True, False]
    standing = json.loads(site.call("status", "--json").stdout)["problems"][0]
    assert (standing["near_duplicates"], standing["answered_from_ledger"]) == (2, 0)


def test_what_repeats_a_measurement_is_shown(site: Site, once: Once) -> None:
    first = submit(site, "w01", "stub: binary=A stub: speedup=0.9")
    once()
    second = submit(site, "w02", "another comment stub: binary=A")
    once()
    seq = entry_of(site, first).seq
    status = site.call("status").stdout
    assert "2 evaluations, 1 of candidates nearly identical to an earlier one (1 answered from the ledger)" in status
    assert f"as seq {seq} (same code and launches): Try another comment" in site.call("log").stdout
    answer = outcome_text(entry_of(site, second), best=None, axes={})
    assert f"not measured: code and launches are those of entry {seq}" in answer
