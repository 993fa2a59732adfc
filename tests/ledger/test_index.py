"""The index has the entries of the branch and of the spools, and is rebuilt after any damage."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LedgerError
from harness.formats.ledger_documents import render, render_entry
from harness.git.branch_commits import AppendedFile
from harness.git.repo import Repo
from harness.ledger.entry_rows import BaselineOf, row_of
from harness.ledger.index import Index
from harness.ledger.ledger import Ledger
from harness.model.geometric_mean import geometric_mean
from harness.model.paths import ledger_file
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from harness.workspace.files import file_lock
from tests.ledger.ledgers import DIGEST, JUDGE, PROBLEM, draft, git, make_workspace, ticking, workload

FILE = ledger_file(PROBLEM)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "a workspace")


@pytest.fixture
def ledger(workspace: Workspace, repo: Repo) -> Iterator[Ledger]:
    with Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        yield ledger


@pytest.fixture
def index(workspace: Workspace) -> Iterator[Index]:
    with Index(workspace, branch="main") as index:
        yield index


def fill(ledger: Ledger, count: int = 3) -> None:
    for number in range(count):
        ledger.append(draft(tree=f"{number:040x}"))


def test_an_entry_is_found_before_and_after_its_commit(ledger: Ledger, index: Index, repo: Repo) -> None:
    entry = ledger.append(draft())
    key = (DIGEST, "d" * 40, "cpu", JUDGE)
    assert index.refresh(repo) == []
    assert index.has(*key)
    for position in range(4):
        assert not index.has(*(part if place != position else "other" for place, part in enumerate(key)))
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
    assert [row.seq for row in index.rows(kind="confirmation", worker="w02", target="cpu")] == [6]
    assert index.count() == 7
    assert index.count(run="main", kind="evaluation") == 4
    baseline = index.find_baseline(PROBLEM, DIGEST, "cpu", JUDGE)
    assert baseline is not None
    assert baseline.seq == 5
    assert baseline.baseline_us == pytest.approx(12.0)
    assert index.find_baseline(PROBLEM, "other", "cpu", JUDGE) is None
    assert [entry.seq for entry in index.entries(PROBLEM, limit=1)] == [6]


def test_only_what_was_appended_is_read(
    ledger: Ledger, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    index.refresh(repo)
    parsed: list[str] = []
    from harness.ledger import index_filling

    def counted(raw: bytes, where: str, baseline_of: BaselineOf) -> object:
        parsed.append(where)
        return row_of(raw, where, baseline_of)

    monkeypatch.setattr(index_filling, "row_of", counted)
    ledger.append(draft())
    ledger.flush(force=True)
    assert index.refresh(repo) == []
    assert parsed == [f"{FILE} seq 4"]
    ledger.append(draft())
    index.refresh(repo)
    ledger.flush(force=True)
    index.refresh(repo)
    assert parsed == [f"{FILE} seq 4", f"{FILE} seq 5"]  # read from the spool before, so not read again from the branch
    assert index.count() == 5


def test_the_planners_files_are_not_entries(workspace: Workspace, index: Index, repo: Repo) -> None:
    with Ledger(workspace, repo, branch="main", writer="planner") as planner:
        planner.append_record("ledger/decisions.yaml", {"policy": "p"})
        planner.append_record("ledger/lessons/starter/x.yaml", {"text": "t"})
        assert index.refresh(repo) == []
        planner.flush(force=True)
        assert index.refresh(repo) == []
    assert index.rows() == []


@pytest.mark.parametrize("damage", ["garbage", "empty", "older", "truncated", "directory gone", "table gone"])
def test_an_unusable_index_is_rebuilt(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, damage: str
) -> None:
    fill(ledger, 40)
    ledger.flush(force=True)
    assert index.refresh(repo) == []  # the first time there is no message
    rows = index.rows()
    index.close()
    path = workspace.index_file
    if damage == "garbage":
        path.write_bytes(b"not a database" * 1000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "directory gone":
        shutil.rmtree(workspace.derived)
    else:
        statement = "UPDATE meta SET value = 'kernel-harness index 0' WHERE name = 'schema'"
        with sqlite3.connect(path) as database:
            database.execute(statement if damage == "older" else "DROP TABLE files")
        database.close()
    if damage in {"truncated", "table gone"}:
        fill(ledger, 1)  # damage in unread pages is detected with the next entry
        ledger.flush(force=True)
        rows = [*rows, *rows[-1:]]
    messages = index.refresh(repo)
    if damage != "directory gone":
        assert len(messages) == 1
        assert messages[0].startswith("the ledger's index could not be used (")
        assert messages[0].endswith("): rebuilt from the ledger")
    assert len(index.rows()) == len(rows)
    assert index.refresh(repo) == []


def test_a_locked_index_is_replaced(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ledger)
    index.refresh(repo)
    index.close()
    monkeypatch.setattr("harness.ledger.index._BUSY_S", 0.1)
    holder = sqlite3.connect(workspace.index_file, isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        fill(ledger, 1)
        assert index.refresh(repo) == [
            "the ledger's index could not be used (database is locked): rebuilt from the ledger"
        ]
    finally:
        holder.close()
    assert index.count() == 4


def test_an_unwritable_index_is_reported(workspace: Workspace, index: Index, repo: Repo) -> None:
    workspace.derived.mkdir()
    workspace.index_file.with_name("index.rebuilding.sqlite").mkdir()
    with pytest.raises(LedgerError, match="the index cannot be written") as caught:
        index.refresh(repo)
    assert "the index can be deleted" in str(caught.value)


def test_a_query_before_the_first_refresh_is_an_error(index: Index) -> None:
    with pytest.raises(LedgerError, match="the ledger's index cannot be read: the file is missing"):
        index.count()


def test_an_index_replaced_by_another_process_is_opened_again(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo)
    workspace.index_file.unlink()
    with Index(workspace, branch="main") as second_index:
        fill(ledger, 2)
        second_index.refresh(repo)
    assert index.count() == 5


def test_a_reader_without_a_wait_reads_the_index_while_another_refreshes_it(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo, patience_s=0)
    fill(ledger, 2)
    with file_lock(workspace.index_file.with_name("index.lock"), owner="another process"):
        assert index.refresh(repo, patience_s=0) == []
        assert index.count() == 3
    assert index.refresh(repo, patience_s=0) == []
    assert index.count() == 5


def test_readers_in_threads_while_it_grows(ledger: Ledger, index: Index, repo: Repo) -> None:
    index.refresh(repo)
    sizes: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            sizes.append(index.count())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        ledger.append(draft())
        index.refresh(repo)
    done.set()
    reader.join(timeout=120)
    assert sizes == sorted(sizes)
    assert index.count() == 10


def test_a_rewritten_file_is_read_again_and_reported(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    index.refresh(repo)
    path = workspace.root / FILE
    path.write_text(path.read_text().replace('worker: "w01"', 'worker: "w99"'))
    git(workspace.root, "commit", "-q", "-am", "tamper")
    assert index.refresh(repo) == [f"{FILE} was rewritten, not appended to: `harness audit` shows the difference"]
    assert {row.worker for row in index.rows()} == {"w99"}


def test_a_file_cut_by_a_reset_keeps_its_rows_until_it_is_put_back(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    ledger.append(draft(problem="starter/swiglu"))
    ledger.append(draft())
    ledger.flush(force=True)
    index.refresh(repo)
    git(workspace.root, "reset", "-q", "--hard", "main~1")
    assert index.refresh(repo) == []
    assert index.count() == 5
    ledger.append(draft())
    ledger.flush(force=True)
    assert index.refresh(repo) == []
    assert [row.seq for row in index.rows(PROBLEM)] == [1, 2, 3, 4, 5]


def test_a_document_that_cannot_be_read_is_named_and_left_out(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    ledger.flush(force=True)
    path = workspace.root / FILE
    with path.open("ab") as file:
        file.write(render({"seq": 4, "prev": None, "at": "never"}))
        file.write(render_entry(ledger.append(draft(problem="starter/swiglu"))))
    git(workspace.root, "commit", "-q", "-am", "append by hand")
    messages = index.refresh(repo)
    assert len(messages) == 2
    assert messages[0].startswith(f"{FILE} seq 4: not a ledger entry: KeyError('problem')")
    assert messages[1].startswith(f"{FILE} seq 1: an entry of starter/swiglu in another problem's file")
    assert [row.seq for row in index.rows(PROBLEM)] == [1, 2, 3]


def test_a_deleted_spooled_record_leaves_the_index(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo
) -> None:
    fill(ledger)
    index.refresh(repo)
    for path in (workspace.spool / "daemon").glob("*.spool"):
        path.unlink()
    index.refresh(repo)
    assert index.rows() == []


def test_progress_comes_to_its_end(ledger: Ledger, index: Index, repo: Repo) -> None:
    fill(ledger, 5)
    ledger.flush(force=True)
    progress_calls: list[tuple[int, int]] = []
    index.refresh(repo, lambda done, of: progress_calls.append((done, of)))
    assert progress_calls[-1][0] == progress_calls[-1][1] > 5000


_REFRESH = """
import sys
from pathlib import Path
from harness.ledger.index import Index
from harness.git.branch_commits import AppendedFile
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
workspace = Workspace(Path(sys.argv[1]))
with Repo(workspace) as repo, Index(workspace, branch="main") as index:
    index.refresh(repo)
"""


@pytest.mark.parametrize(
    ("failpoint", "before"),
    [
        *[
            (f"index.{place}", before)
            for place in ("before_rebuild", "rebuild_before_commit", "rebuilt_beside", "old_removed", "replaced")
            for before in ("absent", "garbage")
        ],
        ("index.before_commit", "whole"),
        ("index.after_commit", "whole"),
    ],
)
def test_killed_while_refreshing(
    workspace: Workspace, ledger: Ledger, index: Index, repo: Repo, failpoint: str, before: str
) -> None:
    fill(ledger)
    if before == "whole":
        index.refresh(repo)
        index.close()
    elif before == "garbage":
        workspace.derived.mkdir()
        workspace.index_file.write_bytes(b"garbage")
    fill(ledger, 1)
    environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
    command = [sys.executable, "-c", _REFRESH, str(workspace.root)]
    ran = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=240)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    index.refresh(repo)
    assert index.count() == 4
    assert index.query("PRAGMA integrity_check") == [("ok",)]


def test_what_a_commit_appends_is_not_read_again(
    workspace: Workspace, index: Index, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger(workspace, repo, branch="main", clock=ticking(), before_move=index.expect) as ledger:
        fill(ledger)
        index.refresh(repo)
        ledger.flush(force=True)
        assert index.refresh(repo) == []
        fill(ledger, 2)
        index.refresh(repo)
        ledger.flush(force=True)
        with Index(workspace, branch="main") as second_index, monkeypatch.context() as patched:
            patched.setattr(Repo, "read", lambda *_: pytest.fail("a ledger file was read"))
            assert second_index.refresh(repo) == []
        assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(1, 5)]
        assert index.query("SELECT * FROM appended") == []
        # The index has the file's digest too, so it treats an append by another writer as an append, not as a rewrite.
        fill(ledger, 1)
    index.query("SELECT 1")
    assert index.refresh(repo) == []
    assert index.count() == 6


def test_a_note_of_a_commit_that_was_not_made_changes_nothing(workspace: Workspace, index: Index, repo: Repo) -> None:
    with Ledger(workspace, repo, branch="main", clock=ticking()) as ledger:
        fill(ledger)
        ledger.flush(force=True)
        index.refresh(repo)
        fill(ledger, 1)
        blob = repo.tree_of(repo.tip("main"), FILE) or ""
        index.expect([AppendedFile(FILE, blob, "1" * 40, b"", 7, "0" * 64)])
        assert index.refresh(repo) == []
        assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(0, 1), (1, 3)]
    assert index.refresh(repo) == []
    assert index.query("SELECT committed, count(*) FROM entries GROUP BY committed") == [(1, 4)]


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
