"""The ledger enters each document once, in a chain, also after crashes and concurrent changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from harness.errors import ConfigurationError, LedgerError, RepositoryError
from harness.formats.ledger_documents import HEADER, hash_of, parse_entry, split
from harness.formats.ledger_heads import read_heads
from harness.git.repo import Repo
from harness.ledger.ledger import Ledger, read_documents, read_records
from harness.ledger.spool import segments
from harness.model.entry import EntryDraft
from harness.model.paths import DECISIONS, HEADS, ledger_file
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import PROBLEM, START, draft, git, make_workspace, required_small_disk, ticking

FILE = ledger_file(PROBLEM)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path / "a workspace")


def open_ledger(workspace: Workspace, repo: Repo, **options: object) -> Ledger:
    return Ledger(workspace, repo, branch="main", **{"clock": ticking(), **options})  # type: ignore[arg-type]


def committed(workspace: Workspace, file: str = FILE) -> list[int]:
    content = git(workspace.root, "show", f"main:{file}").encode() + b"\n"
    documents = split(content, file)
    previous = None
    for document in documents:
        assert yaml.safe_load(document.raw)["prev"] == previous
        previous = document.hash
    return [document.seq for document in documents]


def test_entries_form_a_chain_on_the_branch(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as ledger:
        first = ledger.append(draft())
        second = ledger.append(draft(tree="e" * 40))
        assert ledger.recovered == []
    content = (workspace.root / FILE).read_bytes()  # the checkout is on the branch: refreshed
    assert content.startswith(HEADER)
    documents = split(content, FILE)
    assert [parse_entry(document.raw, FILE) for document in documents] == [first, second]
    assert (first.seq, first.prev, first.at) == (1, None, "2026-11-21T02:00:00.000Z")
    assert (second.seq, second.prev, second.at) == (2, hash_of(documents[0].raw), "2026-11-21T02:00:01.000Z")
    heads = read_heads((workspace.root / HEADS).read_bytes())
    assert heads == {FILE: heads[FILE]}
    assert (heads[FILE].seq, heads[FILE].hash) == (2, documents[1].hash)
    assert git(workspace.root, "status", "--porcelain") == ""
    assert git(workspace.root, "log", "-1", "--format=%B").startswith(f"Enter 2 ledger documents\n\n{PROBLEM}: 2")


def test_the_spool_holds_entries_until_a_flush(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as ledger:
        ledger.append(draft())
        assert git(workspace.root, "log", "--format=%s") == "start"
        assert [document.seq for document in read_documents(workspace, repo, FILE, branch="main")] == [1]
        assert ledger.flush() is not None
        assert segments(workspace.spool / "daemon") == []
        assert [document.seq for document in read_documents(workspace, repo, FILE, branch="main")] == [1]


def test_at_most_one_commit_a_minute_unless_forced(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as ledger:
        assert ledger.flush(force=True) is None  # nothing to commit is no commit
        ledger.append(draft())
        assert ledger.flush() is not None
        ledger.append(draft())
        assert ledger.flush() is None
        assert ledger.flush(force=True) is not None
    with open_ledger(workspace, repo, flush_every_s=0.0) as ledger:
        ledger.append(draft())
        assert ledger.flush() is not None
    assert committed(workspace) == [1, 2, 3]


def test_a_later_ledger_goes_on_where_the_chain_ends(workspace: Workspace, repo: Repo) -> None:
    for _ in range(3):
        with open_ledger(workspace, repo) as ledger:
            ledger.append(draft())
            ledger.append(draft(problem="starter/swiglu"))
    assert committed(workspace) == [1, 2, 3]
    assert committed(workspace, "ledger/starter/swiglu.yaml") == [1, 2, 3]


def test_what_was_not_flushed_is_committed_by_the_next(workspace: Workspace, repo: Repo) -> None:
    ledger = open_ledger(workspace, repo)
    ledger.append(draft())
    ledger.close()
    with open_ledger(workspace, repo) as ledger:
        assert ledger.recovered == ["1 ledger documents wait in the spool; the next flush commits them"]
        assert ledger.append(draft()).seq == 2
    assert committed(workspace) == [1, 2]


def test_two_writers_share_the_heads(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as daemon, open_ledger(workspace, repo, writer="planner") as planner:
        for _ in range(3):
            daemon.append(draft())
            planner.append_record(DECISIONS, {"policy": "p/1", "assignments": [{"worker": "w01"}], "cost": 1e-5})
            planner.flush(force=True)
            daemon.flush(force=True)
    heads = read_heads((workspace.root / HEADS).read_bytes())
    assert {file: head.seq for file, head in heads.items()} == {FILE: 3, DECISIONS: 3}
    assert committed(workspace) == committed(workspace, DECISIONS) == [1, 2, 3]
    records = read_records(workspace, repo, DECISIONS, branch="main")
    assert [record["seq"] for record in records] == [1, 2, 3]
    assert records[0]["cost"] == 1e-5


def test_writers_keep_to_their_own_files(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as daemon, open_ledger(workspace, repo, writer="planner") as planner:
        with pytest.raises(LedgerError, match=r"the daemon does not write ledger/decisions.yaml"):
            daemon.append_record(DECISIONS, {})
        with pytest.raises(LedgerError, match="the planner enters records, not entries"):
            planner.append(draft())
        for file in (FILE, HEADS, "ledger/../x.yaml", "ledger/lessons/../../x.yaml", "COORDINATION.md"):
            with pytest.raises(LedgerError, match="the planner does not write"):
                planner.append_record(file, {})
        with pytest.raises(LedgerError, match="a record must not have seq, at: the ledger sets it"):
            planner.append_record(DECISIONS, {"seq": 1, "at": "now"})
        planner.append_record("ledger/lessons/starter/rmsnorm_h4096.yaml", {"text": "vectorise first"})
    assert committed(workspace, "ledger/lessons/starter/rmsnorm_h4096.yaml") == [1]


def test_the_same_writer_twice_names_the_holder(workspace: Workspace, repo: Repo) -> None:
    with (
        open_ledger(workspace, repo),
        pytest.raises(ConfigurationError, match=rf"held by pid {os.getpid()} \(harness daemon \(ledger\)\)"),
    ):
        open_ledger(workspace, repo)
    with open_ledger(workspace, repo):
        pass  # the lock was released


def test_the_clock_never_goes_backward_in_the_ledger(workspace: Workspace, repo: Repo) -> None:
    clock_times = [START]
    with open_ledger(workspace, repo, clock=lambda: clock_times[0]) as ledger:
        first = ledger.append(draft())
        clock_times[0] = START - timedelta(hours=1)
        second, third = ledger.append(draft()), ledger.append(draft(problem="starter/swiglu"))
        clock_times[0] = START + timedelta(seconds=1)
        fourth = ledger.append(draft())
        clock_times[0] = START - timedelta(hours=2)
        ledger.append(draft())
        assert first.at == second.at == third.at == "2026-11-21T02:00:00.000Z"
        assert fourth.at == "2026-11-21T02:00:01.000Z"
        assert len(ledger.recovered) == 2  # one message per step back
        assert "the clock shows 2026-11-21T01:00:00.000Z, before the ledger's last entry" in ledger.recovered[0]
    with open_ledger(workspace, repo, clock=lambda: START - timedelta(days=1)) as ledger:
        assert ledger.append(draft()).at == fourth.at


def test_threads_share_a_ledger(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo, flush_every_s=0.0) as ledger:
        threads = [threading.Thread(target=lambda: [ledger.append(draft()) for _ in range(5)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        ledger.flush()
        for thread in threads:
            thread.join(timeout=120)
    assert committed(workspace) == list(range(1, 16))


def test_a_person_on_another_branch_is_not_disturbed(workspace: Workspace, repo: Repo) -> None:
    git(workspace.root, "switch", "-q", "-c", "mine")
    (workspace.root / "half done").write_text("work")
    with open_ledger(workspace, repo) as ledger:
        ledger.append(draft())
    assert committed(workspace) == [1]
    assert git(workspace.root, "status", "--porcelain") == '?? "half done"'
    assert not (workspace.root / "ledger").exists()


def test_a_branch_reset_past_entries_gets_them_back(workspace: Workspace, repo: Repo) -> None:
    for problem in (PROBLEM, "starter/swiglu", PROBLEM):
        with open_ledger(workspace, repo) as ledger:
            ledger.append(draft(problem=problem))
    git(workspace.root, "reset", "-q", "--hard", "main~2")
    with open_ledger(workspace, repo) as ledger:
        assert ledger.recovered == [
            f"main had been reset past ledger entries: restored in {FILE}, ledger/starter/swiglu.yaml"
        ]
        assert ledger.append(draft()).seq == 3
        git(workspace.root, "reset", "-q", "--hard", "main~1")  # while it is open, too
    assert committed(workspace) == [1, 2, 3]
    heads = read_heads((workspace.root / HEADS).read_bytes())
    assert {file: head.seq for file, head in heads.items()} == {FILE: 3, "ledger/starter/swiglu.yaml": 1}


def test_entries_that_a_person_changed_stop_the_writer_and_lose_nothing(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as ledger:
        ledger.append(draft())
    ledger = open_ledger(workspace, repo)
    ledger.append(draft())
    content = (workspace.root / FILE).read_text()
    (workspace.root / FILE).write_text(content.replace("EPYC", "Xeon"))
    git(workspace.root, "commit", "-q", "-am", "prettier")
    with pytest.raises(LedgerError, match="committed entries were removed from the branch or changed"):
        ledger.flush(force=True)
    ledger.close()
    with pytest.raises(LedgerError, match="the spool keeps its documents"):
        open_ledger(workspace, repo)
    git(workspace.root, "revert", "--no-edit", "HEAD")
    with open_ledger(workspace, repo):
        pass
    assert committed(workspace) == [1, 2]


def test_a_flush_that_git_refuses_keeps_the_spool(workspace: Workspace, repo: Repo) -> None:
    ledger = open_ledger(workspace, repo)
    ledger.append(draft())
    git(workspace.root, "branch", "-m", "main", "elsewhere")
    with pytest.raises(RepositoryError, match="there is no branch main"):
        ledger.flush(force=True)
    git(workspace.root, "branch", "-m", "elsewhere", "main")
    ledger.append(draft())
    assert ledger.flush(force=True) is not None
    ledger.close()
    assert committed(workspace) == [1, 2]


def fill_up(path: Path) -> None:
    """Fill the file system of `path`."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 4096):
            pass


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    with required_small_disk(tmp_path / "disk", "1200k"):
        workspace = make_workspace(tmp_path / "disk" / "w")
        with Repo(workspace) as repo:
            ledger = open_ledger(workspace, repo)
            entered = [ledger.append(draft())]
            filler = workspace.root / "filler"
            fill_up(filler)
            with pytest.raises(LedgerError, match="no space left to write the ledger's spool"):
                entered.extend(ledger.append(draft()) for _ in range(5))
            with pytest.raises((LedgerError, RepositoryError), match=r"No space left|cannot be committed"):
                ledger.flush(force=True)
            filler.unlink()
            entered.append(ledger.append(draft()))
            assert ledger.flush(force=True) is not None
            ledger.close()
            assert [entry.seq for entry in entered] == committed(workspace)


def test_heads_are_found_in_the_files_where_no_heads_file_is(workspace: Workspace, repo: Repo) -> None:
    with open_ledger(workspace, repo) as ledger:
        ledger.append(draft())
    git(workspace.root, "rm", "-q", HEADS)
    git(workspace.root, "commit", "-q", "-m", "tidy")
    with open_ledger(workspace, repo) as ledger:
        assert ledger.append(draft()).seq == 2
    assert committed(workspace) == [1, 2]


def test_an_entry_needs_what_its_kind_needs() -> None:
    with pytest.raises(ValueError, match="an entry of kind confirmation needs cites"):
        draft("confirmation")
    with pytest.raises(ValueError, match="the verdict TIMEOUT needs a reason"):
        EntryDraft.model_validate({**dict(draft()), "verdict": "TIMEOUT"})
    assert EntryDraft.model_validate({**dict(draft()), "reason": " two\nlines "}).reason == "two lines"


_WRITE = """
import sys
from pathlib import Path
from harness.ledger.ledger import Ledger
from harness.git.repo import Repo
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import draft
workspace = Workspace(Path(sys.argv[1]))
with Repo(workspace) as repo, Ledger(workspace, repo, branch="main", flush_every_s=0.0) as ledger:
    for number in range(int(sys.argv[2]), 5):
        print(ledger.append(draft(tree=f"{number:040x}")).seq, flush=True)
        if number % 2:
            ledger.flush()
"""

LEDGER_FAILPOINTS = (
    "ledger.after_lock",
    "ledger.after_open",
    "ledger.before_append:2",
    "ledger.after_append:2",
    "ledger.before_commit",
    "ledger.after_commit",
    "ledger.after_flush",
    "ledger.before_append:4",
    "ledger.after_commit:2",
    "spool.half_written:2",
    "spool.after_sync:3",
    "spool.after_close_segment:2",
    "spool.before_drop",
    "spool.after_drop_one",
    "spool.after_drop:2",
)


OFTEN = {
    "ledger.after_commit",
    "spool.half_written:2",
    "spool.before_drop",
}
"""Failpoints that `make test` covers; `make test-long` covers all."""


@pytest.mark.parametrize(
    "failpoint", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in LEDGER_FAILPOINTS]
)
def test_killed_anywhere_nothing_is_lost_and_nothing_entered_twice(
    workspace: Workspace, repo: Repo, failpoint: str
) -> None:
    command = [sys.executable, "-c", _WRITE, str(workspace.root)]
    environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
    killed = subprocess.run([*command, "0"], env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert killed.returncode == -signal.SIGKILL
    acknowledged = len(killed.stdout.split())
    done = [document.seq for document in read_documents(workspace, repo, FILE, branch="main")]
    # One entry more than the acknowledged ones may exist, after a kill between the sync and the acknowledgement.
    assert done == list(range(1, len(done) + 1))
    assert acknowledged <= len(done) <= acknowledged + 1
    subprocess.run([*command, str(len(done))], capture_output=True, check=True, timeout=240)
    assert committed(workspace) == [1, 2, 3, 4, 5]
    trees = [
        parse_entry(document.raw, FILE).candidate for document in read_documents(workspace, repo, FILE, branch="main")
    ]
    assert [candidate.tree if candidate else "" for candidate in trees] == [f"{number:040x}" for number in range(5)]


def test_killed_while_dropping_what_was_committed(workspace: Workspace, repo: Repo) -> None:
    """Killed after the commit, then again while recovery clears the spool."""
    command = [sys.executable, "-c", _WRITE, str(workspace.root)]
    for failpoint, start in (("ledger.after_commit", "0"), ("ledger.before_recovery_drop", "2")):
        environment = {**os.environ, "HARNESS_FAILPOINT": failpoint}
        ran = subprocess.run([*command, start], env=environment, capture_output=True, check=False, timeout=240)
        assert ran.returncode == -signal.SIGKILL
    with open_ledger(workspace, repo) as ledger:
        assert len(ledger.recovered) == 1
        assert ledger.recovered[0].startswith("2 spooled ledger documents were already on main (a crash between")
    assert committed(workspace) == [1, 2]
