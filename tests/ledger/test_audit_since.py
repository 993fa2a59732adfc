"""An audit of new entries examines only those, and still verifies the whole chain."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.ledger.audit.audit import audit
from harness.ledger.audit.history import since_when
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import git

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        place.enter(place.healthy())
        yield place


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2d", "2026-11-19T12:00:00.000Z"),
        ("90m", "2026-11-21T10:30:00.000Z"),
        ("2026-11-20", "2026-11-20T00:00:00.000Z"),
        ("2026-11-20T08:00:00+02:00", "2026-11-20T06:00:00.000Z"),
    ],
)
def test_an_age_and_a_date_are_moments(place: Place, text: str, moment: str) -> None:
    assert since_when(place.repo, text, present=NOW) == moment


def test_a_commit_is_a_moment_and_a_word_is_none(place: Place) -> None:
    at = int(git(place.workspace.root, "log", "-1", "--format=%ct", "main"))
    assert since_when(place.repo, "main") == datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    with pytest.raises(ConfigurationError, match="`yesterday` is not an age"):
        since_when(place.repo, "yesterday")


@pytest.mark.parametrize("text", ["99999999999d", "9999999w", "9" * 5000 + "s", "0001-01-01T00:00:00+05:00"])
def test_a_time_outside_the_calendar_is_refused(place: Place, text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an age") as raised:
        since_when(place.repo, text)
    assert raised.value.where == "--since"


def test_numbers_before_it_are_left_alone_and_chains_are_not(place: Place) -> None:
    place.forge(lambda documents: documents[1]["summary"].update(speedup=9.0))
    moments = [entry["at"] for entry in _entries(place)]

    def break_messages(since: str | None) -> list[str]:
        return [break_.message for break_ in audit(place.workspace, place.repo, branch="main", since=since).breaks]

    assert len(break_messages(None)) == 1
    assert break_messages(moments[1]) == break_messages(None)
    assert break_messages(moments[2]) == []
    place.commit({FILE: place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    assert any("chain broken" in message for message in break_messages(moments[-1]))


def test_the_examined_range_is_reported(place: Place) -> None:
    result = audit(place.workspace, place.repo, branch="main", since="2026-11-21T02:00:06.000Z")
    assert any(line.startswith("3 entries: format") for line in result.checked), result.checked
    assert any(line.startswith("9 documents: each one's hash") for line in result.checked)
    assert result.notes == []


def test_commits_of_others_on_the_ledger_are_a_note(place: Place) -> None:
    place.commit({FILE: place.content() + b""})
    assert audit(place.workspace, place.repo, branch="main").notes == []
    place.commit({FILE: place.content() + b"# mine\n"})
    (note,) = audit(place.workspace, place.repo, branch="main").notes
    assert note.startswith("1 commit on ledger/ by p@x, not by the harness")


def _entries(place: Place) -> list[dict[str, str]]:
    from harness.formats.ledger_documents import parse, split

    return [parse(document.raw, FILE) for document in split(place.content(), FILE)]
