"""A history that was replaced is a break, also when the content is the same; a rebase, a clone and a reset are none."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from harness.git.repo import Repo
from harness.ledger.audit.audit import Audit, audit
from harness.ledger.ledger import Ledger
from harness.workspace.directories import Workspace
from tests.ledger.audited_place import Place
from tests.ledger.ledgers import START, git, ticking

WRITTEN = "refs/harness/written/main"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        place.enter(place.healthy()[:4])
        place.enter(place.healthy()[4:])
        assert place.breaks() == []
        yield place


def break_messages(place: Place) -> list[str]:
    breaks = place.breaks()
    assert {break_.file for break_ in breaks} <= {"ledger/"}
    return [break_.message for break_ in breaks]


def forget_written(place: Place) -> None:
    git(place.workspace.root, "update-ref", "-d", WRITTEN)


def forget_reflogs(place: Place) -> None:
    git(place.workspace.root, "reflog", "expire", "--expire=all", "--all")


def test_an_orphan_with_the_same_content_is_a_break(place: Place) -> None:
    old = git(place.workspace.root, "rev-parse", "main")
    place.replace_history()
    messages = break_messages(place)
    assert messages[0].startswith("the history of main was replaced: ")
    assert f"has commit {old[:12]}, and the history shares no commit with it" in messages[0]
    assert len(messages) == 2, "and its first commit is no beginning of a ledger"


def test_a_replaced_history_is_seen_in_the_reflog_when_the_ref_is_gone(place: Place) -> None:
    place.replace_history()
    forget_written(place)
    assert "replaced: the reflog of main has commit" in break_messages(place)[0]


def test_a_replaced_history_is_seen_in_the_ref_when_the_reflog_is_gone(place: Place) -> None:
    place.replace_history()
    forget_reflogs(place)
    assert f"replaced: {WRITTEN} has commit" in break_messages(place)[0]


def test_a_replaced_history_is_seen_in_the_copy_when_all_records_are_gone(place: Place) -> None:
    git(place.workspace.root, "update-ref", "refs/remotes/origin/main", "main")
    place.replace_history()
    forget_written(place)
    forget_reflogs(place)
    assert "replaced: origin/main has commit" in break_messages(place)[0]


def test_a_replaced_history_is_seen_in_its_first_commit_when_nothing_else_is_left(place: Place) -> None:
    place.replace_history()
    forget_written(place)
    forget_reflogs(place)
    (message,) = break_messages(place)
    assert message.startswith("the history was replaced: its first commit ")
    assert "already holds 9 ledger documents" in message


def test_a_replaced_history_stays_a_break_after_commits_of_the_harness(place: Place) -> None:
    place.replace_history()
    place.enter([place.draft("note")])
    assert any(
        "the reflog of main has commit" in message and "shares no commit" in message
        for message in break_messages(place)
    )


def test_commits_that_were_made_one_are_a_break(place: Place) -> None:
    place.replace_history(place.root_commit())
    (message,) = break_messages(place)
    assert "lacks 1 of the heads that were committed up to there" in message


# --- changes that replace no history ---


def test_a_persons_rebase_is_no_break(place: Place) -> None:
    root = place.workspace.root
    git(root, "switch", "-q", "-c", "upstream", place.root_commit())
    (root / "notes.md").write_text("mine")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "notes")
    git(root, "update-ref", "refs/remotes/origin/main", "main")
    git(root, "switch", "-q", "main")
    git(root, "rebase", "-q", "upstream")
    assert git(root, "rev-list", "--count", "main", "--not", "refs/remotes/origin/main") == "3"
    assert break_messages(place) == []
    place.enter([place.draft("note")])
    assert break_messages(place) == []


def test_an_amended_commit_is_no_break(place: Place) -> None:
    git(place.workspace.root, "commit", "-q", "--amend", "-m", "other words")
    assert break_messages(place) == []


def test_a_reset_that_the_harness_has_made_good_is_no_break(place: Place) -> None:
    git(place.workspace.root, "reset", "-q", "--hard", "HEAD~1")
    place.enter([place.draft("note")])
    assert break_messages(place) == []


def test_a_branch_behind_its_copy_is_no_replacement(place: Place) -> None:
    root = place.workspace.root
    (root / "notes.md").write_text("mine")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "notes")
    git(root, "update-ref", "refs/remotes/origin/main", "main")
    git(root, "reset", "-q", "--hard", "HEAD~1")
    assert break_messages(place) == []


def audit_clone(place: Place, to: Path, *options: str) -> Audit:
    git(place.workspace.root, "clone", "-q", *options, f"file://{place.workspace.root}", str(to))
    workspace = Workspace(to)
    with Repo(workspace) as repo:
        return audit(workspace, repo, branch="main")


def test_a_fresh_clone_is_whole(place: Place, tmp_path: Path) -> None:
    result = audit_clone(place, tmp_path / "clone")
    assert (result.breaks, result.notes) == ([], [])
    assert result.entries == 9


def test_a_clone_of_a_replaced_history_is_a_break(place: Place, tmp_path: Path) -> None:
    place.replace_history()
    (break_,) = audit_clone(place, tmp_path / "clone").breaks
    assert "its first commit" in break_.message


def test_a_shallow_clone_is_reported(place: Place, tmp_path: Path) -> None:
    result = audit_clone(place, tmp_path / "clone", "--depth", "1")
    assert result.breaks == []
    (note,) = result.notes
    assert note.startswith("this is a shallow clone: whether the history was replaced was not checked")
    assert "of 7 entries" in note, "those that name a candidate"
    assert "`git fetch --unshallow`" in note


def test_documents_of_many_hours_in_one_commit_are_a_note(place: Place) -> None:
    later = ticking(START + timedelta(days=1), step_s=3600 * 4)
    with Ledger(place.workspace, place.repo, branch="main", clock=later) as ledger:
        for _ in range(3):
            ledger.append(place.draft("note"))
    result = audit(place.workspace, place.repo, branch="main")
    assert result.breaks == []
    (note,) = result.notes
    assert "entered documents that were written over 8 hours" in note
