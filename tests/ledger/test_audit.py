"""The audit names the file, the document, the expected value and the actual value of every break."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from harness.formats.ledger_documents import HEADER, parse, parse_entry, render_entry, split
from harness.formats.ledger_heads import Head, read_heads, render_heads
from harness.formats.problems import problem_digest
from harness.ledger.audit.audit import audit
from harness.ledger.audit.entries import entry_faults
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry
from harness.model.paths import HEADS
from harness.model.verdict import Verdict
from tests.ledger.audited_place import FILE, Json, Place, changed
from tests.ledger.ledgers import PROBLEM, draft, git, ticking, workload


def test_a_healthy_ledger_is_whole(place: Place) -> None:
    place.enter(place.healthy())
    with Ledger(place.workspace, place.repo, branch="main", writer="planner") as planner:
        planner.append_record("ledger/decisions.yaml", {"policy": "p"})
    ledger = Ledger(place.workspace, place.repo, branch="main", clock=ticking())
    ledger.append(place.draft("note"))
    progress_calls: list[tuple[int, int]] = []
    result = audit(
        place.workspace, place.repo, branch="main", progress=lambda done, of: progress_calls.append((done, of))
    )
    ledger.close()
    assert result.breaks == []
    assert (result.files, result.entries, result.records, result.spooled) == (2, 10, 1, 1)
    assert progress_calls[-1] == (11, 11)


def test_an_empty_ledger_is_whole(place: Place) -> None:
    assert place.breaks() == []


def test_a_changed_byte_breaks_the_chain(place: Place) -> None:
    place.enter(place.healthy())
    before = split(place.content(), FILE)[1].hash
    place.commit({FILE: place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    breaks = place.breaks()
    assert [(break_.file, break_.seq, break_.message.partition(" ")[0]) for break_ in breaks] == [(FILE, 3, "chain")]
    assert breaks[0].message == "chain broken: prev is not the hash of the document before"
    assert breaks[0].actual == before
    assert breaks[0].expected == split(place.content(), FILE)[1].hash


def test_a_changed_last_document_is_seen_in_the_heads(place: Place) -> None:
    place.enter(place.healthy())
    place.commit({FILE: place.content().replace(b"the device was replaced", b"nothing happened")})
    break_messages = [break_.message for break_ in place.breaks()]
    assert f"{HEADS} has another end of the file" in break_messages
    assert any(message.startswith("rewritten since commit ") for message in break_messages)


def test_a_cut_tail_is_seen_even_with_heads_to_match(place: Place) -> None:
    place.enter(place.healthy())
    documents = split(place.content(), FILE)
    place.commit({FILE: place.content()[: documents[-1].start]})
    breaks = place.breaks()
    assert (breaks[0].seq, breaks[0].message) == (8, f"{HEADS} has another end of the file")
    heads = read_heads((place.workspace.root / HEADS).read_bytes())
    end = documents[-2]
    heads[FILE] = Head(seq=end.seq, hash=end.hash, at=parse(end.raw, "")["at"])
    place.commit({HEADS: render_heads(heads)})
    breaks = place.breaks()
    assert [(break_.seq, break_.actual) for break_ in breaks] == [(9, None)]
    assert breaks[0].message.startswith("rewritten since commit ")


def test_a_removed_file_and_a_removed_document(place: Place) -> None:
    place.enter(place.healthy())
    content = place.content()
    third = split(content, FILE)[2]
    place.commit({FILE: content.replace(third.raw, b"")})
    breaks = place.breaks()
    assert ("seq does not count on", 3, 4) in [(break_.message, break_.expected, break_.actual) for break_ in breaks]
    git(place.workspace.root, "rm", "-q", FILE)
    git(place.workspace.root, "commit", "-q", "-m", "rm")
    assert any(
        break_.message == f"{HEADS} has another end of the file" and break_.actual == "no such file"
        for break_ in place.breaks()
    )


def test_a_branch_that_was_reset_is_named(place: Place) -> None:
    place.enter(place.healthy())
    git(place.workspace.root, "reset", "-q", "--hard", "HEAD~1")
    breaks = place.breaks()
    assert [break_.file for break_ in breaks] == [FILE]
    assert "entries committed before are missing on main (it was reset)" in breaks[0].message


def test_a_spool_that_does_not_follow_is_named(place: Place) -> None:
    place.enter(place.healthy())
    ledger = Ledger(place.workspace, place.repo, branch="main", clock=ticking())
    ledger.append(place.draft("note"))
    ledger.close()
    place.commit({FILE: place.content().replace(b"the device was replaced", b"nothing happened")})
    assert (FILE, 10, "in the spool: chain broken: prev is not the hash of the document before") in [
        (break_.file, break_.seq, break_.message) for break_ in place.breaks()
    ]


@pytest.mark.parametrize(
    ("content", "beginning"),
    [
        (HEADER.replace(b"1", b"9"), "the ledger file has format 9, and this harness reads format 1"),
        (b"seq: 1\n", "not a ledger file: its first line must be `# kernel-harness ledger, format 1`"),
        (HEADER + b"stray\n---\nseq: 1\nprev: null\n", "bytes before the first document"),
        (HEADER + b"---\nseq: 1\nprev: null\n  bad: [\n", "format: not YAML: "),
        (HEADER + b"---\nseq: 1\nprev: null\n", "format: kind: Field required"),
        (HEADER + b"---\nseq: 1\nprev: null\n", "at goes backward"),
    ],
)
def test_what_is_no_ledger_file_is_named(place: Place, content: bytes, beginning: str) -> None:
    (place.workspace.root / FILE).parent.mkdir(parents=True)
    place.commit({FILE: content})
    assert any(break_.message.startswith(beginning) and break_.file == FILE for break_ in place.breaks()), (
        place.breaks()
    )


def test_broken_heads_are_named(place: Place) -> None:
    place.enter(place.healthy())
    place.commit({HEADS: b"nonsense"})
    assert [(break_.file, break_.message) for break_ in place.breaks()] == [
        (HEADS, "its first line must be `# kernel-harness heads, format 1`")
    ]


def forged(place: Place, change: Callable[[list[Json]], object]) -> list[tuple[int | None, str]]:
    place.enter(place.healthy())
    place.forge(change)
    return [(break_.seq, break_.message) for break_ in place.breaks()]


def test_the_forger_in_these_tests_leaves_no_other_trace(place: Place) -> None:
    assert forged(place, list) == []


FIRST = "00000000-0000-0000-0000-000000000001"


@pytest.mark.parametrize(
    ("seq", "path", "value", "beginning"),
    [
        (2, ("workloads", 0, "speedup"), 9.0, f"workload {FIRST}: speedup is not exp(mean of log_ratios)"),
        (2, ("workloads", 0, "speedup_ci95", 0), 0.1, f"workload {FIRST}: speedup_ci95 does not follow from"),
        (2, ("workloads", 0, "latency_us"), 1.0, f"workload {FIRST}: speedup is not baseline_us / latency_us"),
        (2, ("workloads", 0, "score"), 0.99, f"workload {FIRST}: score does not follow from latency_us"),
        (2, ("workloads", 0, "score"), None, f"workload {FIRST}: score does not follow from latency_us"),
        (2, ("workloads", 0, "sol_us"), 2.9, f"workload {FIRST}: score does not follow from latency_us"),
        (2, ("workloads", 0, "blocks"), 20, f"workload {FIRST}: blocks is not the number of log_ratios"),
        (2, ("workloads", 0, "log_ratios"), [0.18, 0.19], f"workload {FIRST}: blocks is not the number of"),
        (2, ("workloads", 0, "log_ratios"), [], f"workload {FIRST}: a speedup without the log_ratios that it"),
        (2, ("workloads", 0, "checked"), 999, f"workload {FIRST}: more calls checked than made"),
        (2, ("workloads", 1, "uuid"), FIRST, f"workload {FIRST} occurs twice"),
        (2, ("summary", "speedup"), 2.0, "summary.speedup is not the geometric mean of the workloads'"),
        (2, ("summary", "speedup_ci95", 1), 2.0, "summary.speedup_ci95 does not follow from log_ratios"),
        (2, ("workloads", 0, "process_error"), 0.5, f"workload {FIRST}: speedup_ci95 does not follow from log_ratios"),
        (2, ("summary", "score"), 0.9, "summary.score is not the mean of the workloads'"),
        (2, ("summary", "of"), 3, "summary counts"),
        (5, ("summary", "passed"), 2, "summary counts"),
        (5, ("verdict",), "PASSED", "PASSED, but not every workload passed"),
        (
            5,
            ("reason",),
            None,
            "format: entry: Value error, the verdict INCORRECT_NUMERICAL needs a reason, in one line",
        ),
        (5, ("workloads", 1, "reason"), None, "workload 00000000-0000-0000-0000-000000000002: the verdict"),
        (2, ("cites",), 7, "cites an entry that does not precede it"),
        (2, ("cites",), 2, "cites an entry that does not precede it"),
        (3, ("cites",), 1, "cites seq 1, which is of another kind"),
        (7, ("cites",), 5, "cites seq 5, which did not pass"),
        (7, ("cites",), 2, "cites seq 2 of another candidate"),
        (7, ("target",), "h200", "cites seq 6 of another target"),
        (8, ("cites",), 3, "measured twice: the same key already has an entry"),
        (8, ("cites",), 3, "a champion that its confirmation does not make"),
        (4, ("kind",), "judgement", "format: kind: Input should be"),
        (6, ("problem",), "starter/swiglu", "an entry of another problem"),
        (6, ("problem_digest",), "sha256:0", "no version of problems/starter/rmsnorm_h4096 in the history"),
        (6, ("candidate", "commit"), "0" * 40, "the candidate's commit is not in the repository"),
        (6, ("candidate", "tree"), "0" * 40, "commit "),
        (6, ("at",), "2026-11-20T00:00:00.000Z", "at goes backward"),
        (6, ("seq",), 9, "seq does not count on"),
        (9, ("surprise",), 1, "format: surprise: Extra inputs are not permitted"),
    ],
)
def test_what_a_forger_changes_is_named(
    place: Place, seq: int, path: tuple[str | int, ...], value: object, beginning: str
) -> None:
    faults = forged(place, changed(seq, path, value))
    shown = value if path == ("seq",) else seq
    assert any(fault[0] == shown and fault[1].startswith(beginning) for fault in faults), faults


def test_a_measurement_entered_twice_is_named(place: Place) -> None:
    place.enter([place.draft("baseline"), place.draft(cites=1), place.draft(cites=1, worker="w02")])
    assert [(break_.seq, break_.message, break_.actual) for break_ in place.breaks()] == [
        (3, "measured twice: the same key already has an entry", "seq 2")
    ]
    place.enter([place.draft(cites=1, judge="sha256:another")])  # by another judge version: a measurement of its own
    assert len(place.breaks()) == 1


def test_earlier_forms_of_a_problem_count(place: Place) -> None:
    place.enter(place.healthy())
    problem = f"problems/{PROBLEM}"
    place.commit({f"{problem}/definition.json": b'{"name": "new"}'})
    place.commit({f"{problem}/README.md": b"other words"})
    assert place.breaks() == []
    place.enter([place.draft("note", digest=problem_digest(place.workspace.root / problem))])
    assert place.breaks() == []


def test_a_suspect_workload_keeps_its_numbers_and_the_summary_does_not(place: Place) -> None:
    suspect = workload(8.0).model_copy(update={"verdict": Verdict.SUSPECT, "reason": "below the floor"})
    place.enter([place.draft("baseline"), place.draft(verdict=Verdict.SUSPECT, workloads=[suspect], cites=1)])
    latency, baseline, sol = suspect.latency_us, suspect.baseline_us, suspect.sol_us
    assert latency is not None
    assert baseline is not None
    assert sol is not None
    assert math.isclose(suspect.score or 0, 1 / (1 + (latency - sol) / (baseline - sol)))
    assert place.breaks() == []


def test_a_break_is_plain_data(place: Place) -> None:
    place.enter(place.healthy())
    place.commit({FILE: place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    assert json.dumps([vars(break_) for break_ in place.breaks()], default=str)


def test_a_whole_entry_stands_as_it_was_rendered(place: Place) -> None:
    place.enter(place.healthy())
    for document in split(place.content(), FILE):
        assert render_entry(parse_entry(document.raw, FILE)) == document.raw


@pytest.mark.parametrize("protocols", [(1, 2), (2, 1), (2, 2)])
def test_champions_of_different_judge_protocols_are_not_held_against_each_other(protocols: tuple[int, int]) -> None:
    entries: list[Entry] = []
    for tree, speedup, protocol in zip("ab", (1.5, 1.2), protocols, strict=True):
        seq = len(entries)
        fixed: dict[str, Any] = {"tree": tree * 40, "speedup": speedup, "judge_protocol": protocol}
        drafts = [draft(**fixed), draft("confirmation", **fixed, cites=seq + 1)]
        drafts.append(draft("champion", tree=tree * 40, cites=seq + 2))
        for number, entry_draft in enumerate(drafts, seq + 1):
            place = {"seq": number, "prev": None, "at": "2026-11-21T02:00:00.000Z"}
            entries.append(Entry.model_validate({**dict(entry_draft), **place}))
    faults = [(seq, message) for seq, message, _, _ in entry_faults(PROBLEM, entries)]
    worse = (6, "a champion that its confirmation does not make")
    assert faults == ([worse] if protocols == (2, 2) else [])
