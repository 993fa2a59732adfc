"""Kinds of tampering with a ledger, each detected by the audit; an unchanged ledger has no breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.formats.ledger_documents import HEADER, hash_of, parse, render, split
from harness.formats.ledger_heads import Head, read_heads, render_heads
from harness.model.paths import HEADS
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import PROBLEM, git

Json = dict[str, Any]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        place.enter(place.healthy()[:4])
        place.enter(place.healthy()[4:])  # two commits: the history holds a head in the middle
        yield place


def documents(place: Place) -> list[bytes]:
    return [document.raw for document in split(place.content(), FILE)]


def put(place: Place, raws: list[bytes], *, heads: bool = False) -> None:
    files = {FILE: HEADER + b"".join(raws)}
    if heads:
        end = parse(raws[-1], FILE)
        former_heads = read_heads((place.workspace.root / HEADS).read_bytes())
        files[HEADS] = render_heads({**former_heads, FILE: Head(seq=end["seq"], hash=hash_of(raws[-1]), at=end["at"])})
    place.commit(files)


def linked(documents: list[Json]) -> list[bytes]:
    """Return documents as a forger writes them: numbered and chained again."""
    raws: list[bytes] = []
    for number, document in enumerate(documents, 1):
        prev = hash_of(raws[-1]) if raws else None
        raws.append(render({**document, "seq": number, "prev": prev}))
    return raws


def parsed(place: Place) -> list[Json]:
    return [parse(raw, FILE) for raw in documents(place)]


def an_edit(place: Place) -> None:
    raws = documents(place)
    put(place, [*raws[:1], raws[1].replace(b'worker: "w01"', b'worker: "w09"'), *raws[2:]])


def a_deletion(place: Place) -> None:
    raws = documents(place)
    put(place, [*raws[:4], *raws[5:]])


def a_removed_file(place: Place) -> None:
    git(place.workspace.root, "rm", "-q", FILE)
    place.commit({})


def a_reordering(place: Place) -> None:
    raws = documents(place)
    put(place, [*raws[:4], raws[5], raws[4], *raws[6:]])


def a_truncation(place: Place) -> None:
    put(place, documents(place)[:-2])


def a_truncation_with_heads_to_match(place: Place) -> None:
    put(place, documents(place)[:-2], heads=True)


def an_insertion(place: Place) -> None:
    raws = documents(place)
    put(place, [*raws[:4], raws[1], *raws[4:]])


def a_recomputed_chain(place: Place) -> None:
    documents = parsed(place)
    del documents[4]
    for document in documents[4:]:
        document["cites"] = document.get("cites", 1) - (document.get("cites", 1) > 4)
    put(
        place,
        linked([{key: value for key, value in document.items() if value != 0} for document in documents]),
        heads=True,
    )


def a_rewritten_history(place: Place) -> None:
    """Replace the branch, the chain, the heads and the harness' own records; only the pushed copy is unchanged."""
    root = place.workspace.root
    git(root, "update-ref", "refs/remotes/origin/main", "main")
    place.forge(lambda documents: documents[-1].update(note="nothing happened"))


def a_missing_commit(place: Place) -> None:
    place.forge(lambda documents: documents[5]["candidate"].update(commit="1" * 40))


def another_tree(place: Place) -> None:
    place.forge(lambda documents: documents[5]["candidate"].update(tree=place.trees[0]))


def below_the_floor(place: Place) -> None:
    def faster(documents: list[Json]) -> None:
        for number in (5, 6):
            for workload in documents[number]["workloads"]:
                workload["floor_us"] = workload["latency_us"] * 1.1

    place.forge(faster)


def arithmetic_that_does_not_follow(place: Place) -> None:
    place.forge(lambda documents: documents[6]["summary"].update(speedup=2.5))


def a_measurement_entered_twice(place: Place) -> None:
    place.forge(lambda documents: documents.append({**documents[5], "seq": 10, "at": documents[-1]["at"]}))


def a_clock_that_goes_back(place: Place) -> None:
    place.forge(lambda documents: documents[6].update(at="2026-11-20T00:00:00.000Z"))


def wrong_heads(place: Place) -> None:
    heads = read_heads((place.workspace.root / HEADS).read_bytes())
    place.commit({HEADS: render_heads({FILE: heads[FILE].model_copy(update={"hash": "sha256:" + "0" * 64})})})


def another_form_of_the_problem(place: Place) -> None:
    place.forge(lambda documents: [document.update(problem_digest="sha256:" + "f" * 64) for document in documents])


@pytest.mark.parametrize(
    ("tamper", "sentence"),
    [
        (an_edit, "chain broken: prev is not the hash of the document before"),
        (a_deletion, "seq does not count on"),
        (a_removed_file, f"{HEADS} has another end of the file"),
        (a_reordering, "seq does not count on"),
        (a_truncation, f"{HEADS} has another end of the file"),
        (a_truncation_with_heads_to_match, "rewritten since commit "),
        (an_insertion, "chain broken: prev is not the hash of the document before"),
        (a_recomputed_chain, "rewritten since commit "),
        (a_rewritten_history, "rewritten since the copy at origin/main, commit "),
        (a_missing_commit, "the candidate's commit is not in the repository"),
        (another_tree, f"has another tree at problems/{PROBLEM}/solutions/cpu"),
        (below_the_floor, "PASSED below the floor that the hardware allows"),
        (arithmetic_that_does_not_follow, "summary.speedup is not the geometric mean of the workloads'"),
        (a_measurement_entered_twice, "measured twice: the same key already has an entry"),
        (a_clock_that_goes_back, "at goes backward"),
        (wrong_heads, f"{HEADS} has another end of the file"),
        (another_form_of_the_problem, f"no version of problems/{PROBLEM} in the history"),
    ],
)
def test_tampering_is_found(place: Place, tamper: Callable[[Place], None], sentence: str) -> None:
    assert place.breaks() == []
    tamper(place)
    messages = [break_.message for break_ in place.breaks()]
    assert any(sentence in message for message in messages), messages


def test_a_pushed_copy_that_lags_behind_is_no_break(place: Place) -> None:
    git(place.workspace.root, "update-ref", "refs/remotes/origin/main", "main~1")
    place.enter([place.draft("note")])
    assert place.breaks() == []
