"""A person's uncommitted change below ledger/ is a break; a file that the harness has not refreshed yet is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.git import checkout
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import git


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        place.enter(place.healthy()[:4])
        place.enter(place.healthy()[4:])
        yield place


@pytest.fixture
def behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Return a place whose checkout a commit of the harness could not refresh, since git's index was locked."""
    monkeypatch.setattr(checkout, "LOCK_WAIT_S", 0.01)
    lock = place.workspace.root / ".git" / "index.lock"
    lock.touch()
    before = place.content()
    place.enter([place.draft("note")])
    lock.unlink()
    assert place.content() == before, "the checkout shows the former version"
    return place


def write(place: Place, name: str, content: bytes) -> None:
    (place.workspace.root / name).write_bytes(content)


def an_edit(place: Place) -> None:
    write(place, FILE, place.content().replace(b'worker: "w01"', b'worker: "w09"'))


def a_staged_edit(place: Place) -> None:
    an_edit(place)
    git(place.workspace.root, "add", FILE)


def a_staged_edit_with_the_file_put_back(place: Place) -> None:
    before = place.content()
    a_staged_edit(place)
    write(place, FILE, before)


def an_earlier_version(place: Place) -> None:
    git(place.workspace.root, "checkout", "-q", "HEAD~1", "--", FILE)


def a_removed_file(place: Place) -> None:
    (place.workspace.root / FILE).unlink()


def a_staged_removal(place: Place) -> None:
    git(place.workspace.root, "rm", "-q", "--cached", FILE)


def a_new_file(place: Place) -> None:
    write(place, "ledger/mine.yaml", b"x")


def a_staged_new_file(place: Place) -> None:
    a_new_file(place)
    git(place.workspace.root, "add", "-A")


def a_hidden_edit(place: Place) -> None:
    git(place.workspace.root, "update-index", "--assume-unchanged", FILE)
    an_edit(place)


def a_merge_in_conflict(place: Place) -> None:
    entry = git(place.workspace.root, "ls-files", "--stage", FILE).split()
    lines = "".join(f"{entry[0]} {entry[1]} {stage}\t{FILE}\n" for stage in (1, 2, 3))
    forget = f"0 {'0' * 40}\t{FILE}\n"
    git(place.workspace.root, "update-index", "--index-info", stdin=(forget + lines).encode())


@pytest.mark.parametrize(
    ("change", "file", "kind"),
    [
        (an_edit, FILE, "modified"),
        (a_staged_edit, FILE, "staged"),
        (a_staged_edit_with_the_file_put_back, FILE, "staged"),
        (an_earlier_version, FILE, "staged"),
        (a_removed_file, FILE, "deleted"),
        (a_staged_removal, FILE, "deleted"),
        (a_new_file, "ledger/mine.yaml", "untracked"),
        (a_staged_new_file, "ledger/mine.yaml", "staged"),
        (a_hidden_edit, FILE, "modified"),
        (a_merge_in_conflict, FILE, "in conflict"),
    ],
)
def test_an_uncommitted_change_is_a_break_with_the_way_out(
    place: Place, change: Callable[[Place], None], file: str, kind: str
) -> None:
    assert place.breaks() == []
    change(place)
    (break_,) = place.breaks()
    assert break_.file == file
    assert break_.message.startswith(f"{kind} in the checkout, and not committed on main: ")
    assert kind == "untracked" or f"'{file}'" in break_.message, "the command names the file"


@pytest.mark.parametrize("change", [an_edit, a_staged_edit, an_earlier_version, a_removed_file])
def test_the_command_that_a_break_names_takes_the_change_back(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    (break_,) = place.breaks()
    command = break_.message[break_.message.index("`git restore") + 1 :].partition("`")[0]
    git(place.workspace.root, *(part.strip("'") for part in command.split(" ")[1:]))
    assert place.breaks() == []


def test_what_the_harness_has_still_to_refresh_is_no_break(behind: Place) -> None:
    assert git(behind.workspace.root, "status", "--porcelain") != ""
    assert behind.breaks() == []


def test_a_persons_change_of_what_is_to_be_refreshed_is_a_break(behind: Place) -> None:
    an_edit(behind)
    (break_,) = behind.breaks()
    assert (break_.file, break_.message.partition(" ")[0]) == (FILE, "modified")
    a_staged_edit(behind)
    (break_,) = behind.breaks()
    assert (break_.file, break_.message.partition(" ")[0]) == (FILE, "staged")


def test_changes_elsewhere_and_files_without_a_writer_are_no_breaks(place: Place) -> None:
    write(place, "notes.md", b"mine")
    write(place, "harness.yaml", b"run: other\n")
    write(place, "ledger/.heads.yaml.0123456789ab.tmp", b"of a refresh that was killed")
    git(place.workspace.root, "add", "harness.yaml")
    assert place.breaks() == []


@pytest.mark.parametrize("where", [("-c", "mine"), ("--detach",)])
def test_a_checkout_of_something_else_is_not_looked_at(place: Place, where: tuple[str, ...]) -> None:
    git(place.workspace.root, "switch", "-q", *where)
    an_edit(place)
    assert place.breaks() == []
