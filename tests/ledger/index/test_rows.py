"""Rows of the index: the entries of the branch and of the spools, and queries."""

from __future__ import annotations

import pytest

from harness.errors import LedgerError
from harness.formats.ledger_documents import render_entry
from harness.git.repo import Repo
from harness.ledger.entry_rows import row_of
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.interval import geometric_mean
from harness.model.judging import Cost, JudgeStage
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import DIGEST, JUDGE, PROBLEM, draft, fill, workload
from tests.whole_entries import whole_entries


def test_an_entry_is_found_before_and_after_its_commit(ledger: Ledger, index: Index, repo: Repo) -> None:
    entry = ledger.append(draft())
    key = (DIGEST, "d" * 40, "cpu", JUDGE)
    assert index.refresh(repo) == []
    assert index.find(*key) is not None
    for position in range(4):
        assert index.find(*(part if place != position else "other" for place, part in enumerate(key))) is None
    assert index.entry(PROBLEM, 1) == entry
    before = index.rows()
    ledger.flush(force=True)
    assert index.refresh(repo) == []
    assert index.rows() == before
    assert index.entry(PROBLEM, 1) == entry
    assert index.query("SELECT committed FROM entries") == [(1,)]
    assert index.entry(PROBLEM, 2) is None


def test_a_row_has_the_values_of_its_entry(ledger: Ledger, index: Index, repo: Repo) -> None:
    entry = ledger.append(draft(verdict=Verdict.PASSED))
    index.refresh(repo)
    row = index.row(PROBLEM, 1)
    assert row is not None
    assert entry.candidate is not None
    assert entry.summary is not None
    assert (row.commit, row.tree, row.worker) == (entry.candidate.commit, entry.candidate.tree, "w01")
    assert (row.speedup, row.score, row.passed, row.of) == (entry.summary.speedup, entry.summary.score, 2, 2)
    assert (row.speedup_ci95_low, row.speedup_ci95_high) == entry.summary.speedup_ci95
    assert (row.verdict, row.kind, row.trust, row.judge, row.cost_s) == ("PASSED", "evaluation", "bounded", JUDGE, 3.0)
    assert row.baseline_us == pytest.approx(12.0)
    first, second = (work.latency_us for work in entry.workloads)
    assert row.latency_us == pytest.approx(((first or 0) * (second or 0)) ** 0.5)
    assert row.bound_us == pytest.approx(geometric_mean([work.sol_us or 0 for work in entry.workloads]))


def test_a_row_has_the_stages_of_its_cost(ledger: Ledger, index: Index, repo: Repo) -> None:
    stages = {JudgeStage.BUILD: 0.5, JudgeStage.COMPARISON: 1e-3, JudgeStage.OTHER: 2.0}
    entry = ledger.append(draft().model_copy(update={"cost": Cost(build_s=0.5, judge_s=2.001, stages=stages)}))
    ledger.append(draft(tree="e" * 40))
    assert index.refresh(repo) == []
    row, without_stages = index.rows()
    assert row.stages == stages
    assert row.cost_s == pytest.approx(2.501)
    assert without_stages.stages == {}
    assert index.entry(PROBLEM, 1) == entry
    raw = render_entry(entry)
    assert b"stages: {build: 0.5, comparison: 0.001, other: 2.0}" in raw
    assert b"stages" not in render_entry(entry.model_copy(update={"cost": Cost(judge_s=1.0)}))
    with pytest.raises(LedgerError, match="not a ledger entry"):
        row_of(raw.replace(b"comparison: ", b"nothing: "), "x")


def test_a_row_has_no_bound_unless_each_workload_has_one(ledger: Ledger) -> None:
    bounded, unbounded = workload(), workload().model_copy(update={"sol_us": None, "score": None})
    entry = ledger.append(draft(workloads=[bounded, unbounded]))
    assert row_of(render_entry(entry), "x").bound_us is None


def test_a_row_ignores_numbers_in_texts(ledger: Ledger) -> None:
    failed = workload(verdict=Verdict.INCORRECT_NUMERICAL).model_copy(
        update={"reason": 'said "baseline_us: 1e9,\n- {latency_us: 3}\nkind: champion'}
    )
    entry = ledger.append(draft(verdict=Verdict.INCORRECT_NUMERICAL, workloads=[workload(), failed]))
    row = row_of(render_entry(entry), "x")
    assert row.baseline_us == pytest.approx(12.0)
    assert row.latency_us == pytest.approx(entry.workloads[0].latency_us)
    assert row.kind == "evaluation"


def test_a_document_laid_out_by_another_hand_is_read_whole(ledger: Ledger) -> None:
    entry = ledger.append(draft())
    raw = render_entry(entry)
    changed_raw = (
        raw.replace(b"workloads:\n- {", b"workloads: [{").replace(b"\n- {", b", {").replace(b"\nsummary", b"]\nsummary")
    )
    assert row_of(changed_raw, "x") == row_of(raw, "x")


def test_filters_and_limits(ledger: Ledger, index: Index, repo: Repo) -> None:
    fill(ledger, 4)
    ledger.append(draft("baseline"))
    ledger.append(draft("confirmation", cites=1, worker="w02"))
    ledger.append(draft(problem="starter/swiglu", run="other"))
    index.refresh(repo)
    assert [row.seq for row in index.rows(PROBLEM)] == [1, 2, 3, 4, 5, 6]
    assert [row.seq for row in index.rows(PROBLEM, limit=2)] == [5, 6]
    assert [row.problem for row in index.rows(run="other")] == ["starter/swiglu"]
    assert [(row.problem, row.seq) for row in index.rows(limit=2)] == [(PROBLEM, 6), ("starter/swiglu", 1)]
    assert [row.seq for row in index.rows(kind="confirmation", target="cpu")] == [6]
    assert index.count() == 7
    assert index.count(run="main", kind="evaluation") == 4
    baseline = index.find_baseline(PROBLEM, DIGEST, "cpu", JUDGE)
    assert baseline is not None
    assert baseline.seq == 5
    assert baseline.baseline_us == pytest.approx(12.0)
    assert index.find_baseline(PROBLEM, "other", "cpu", JUDGE) is None
    assert [entry.seq for entry in whole_entries(index, PROBLEM, limit=1)] == [6]


def test_the_planners_files_are_not_entries(workspace: Workspace, index: Index, repo: Repo) -> None:
    with Ledger(workspace, repo, branch="main", writer="planner") as planner:
        planner.append_record("ledger/decisions.yaml", {"policy": "p"})
        planner.append_record("ledger/lessons/starter/x.yaml", {"text": "t"})
        assert index.refresh(repo) == []
        planner.flush(force=True)
        assert index.refresh(repo) == []
    assert index.rows() == []


def test_a_query_before_the_first_refresh_is_an_error(index: Index) -> None:
    with pytest.raises(LedgerError, match="the ledger's index cannot be read: the file is missing"):
        index.count()


def test_the_problems_that_changed_since_a_revision_are_named(ledger: Ledger, index: Index, repo: Repo) -> None:
    fill(ledger)
    index.refresh(repo)
    before = index.revision()
    assert index.changed_since(before) == set()
    ledger.append(draft(problem="starter/swiglu"))
    index.refresh(repo)
    assert index.changed_since(before) == {"starter/swiglu"}
    between = index.revision()
    ledger.flush(force=True)  # the entries are the same before and after their commit
    index.refresh(repo)
    assert index.changed_since(between) == set()
    fill(ledger, 1)
    index.refresh(repo)
    assert index.changed_since(between) == {PROBLEM}
    assert index.changed_since(before) == {PROBLEM, "starter/swiglu"}


def test_a_rebuilt_index_has_no_earlier_revision(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo)
    before = index.revision()
    with workspace.index_file.open("rb"):  # the inode is not used again while a process has the old file open
        workspace.index_file.unlink()
        index.refresh(repo)
    assert index.changed_since(before) is None
