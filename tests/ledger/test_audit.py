"""The audit names every break: file, document, what was expected and what was found."""

from __future__ import annotations

import functools
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.formats.ledger_documents import HEADER, hash_of, parse, parse_entry, render, render_entry, split
from harness.formats.ledger_heads import Head, read_heads, render_heads
from harness.formats.problems import problem_digest
from harness.git.repo import Repo
from harness.ledger.audit.audit import Break, audit
from harness.ledger.audit.entries import entry_faults
from harness.ledger.ledger import Ledger
from harness.model.entry import Entry, EntryDraft, Fingerprint
from harness.model.judging import Cost
from harness.model.paths import HEADS, ledger_file
from harness.model.verdict import Verdict
from harness.workspace.directories import Workspace
from tests.kept_directory import kept_directory
from tests.ledger.ledgers import PROBLEM, draft, git, make_workspace, ticking, workload

FILE = ledger_file(PROBLEM)
Json = dict[str, Any]


@functools.cache
def _template() -> tuple[Path, tuple[str, ...], tuple[str, ...]]:
    """A repository with a problem and a candidate's branch, made once a process: its place, commits and trees."""
    root, problem = kept_directory("place") / "place", f"problems/{PROBLEM}"
    files = {f"{problem}/definition.json": "{}", f"{problem}/README.md": "words", f"{problem}/baseline/run.py": ""}
    make_workspace(root, files)
    git(root, "switch", "-q", "-c", f"agents/main/w01/{PROBLEM}")
    solution = root / problem / "solutions" / "cpu" / "solution.yaml"
    solution.parent.mkdir(parents=True)
    commits, trees = [], []
    for number in range(3):
        solution.write_text(f"notes: {number}\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"try {number}")
        commits.append(git(root, "rev-parse", "HEAD"))
        trees.append(git(root, "rev-parse", f"HEAD:{problem}/solutions/cpu"))
    git(root, "switch", "-q", "main")
    return root, tuple(commits), tuple(trees)


class Place:
    """A workspace with a real problem and a real candidate, and a ledger about them."""

    def __init__(self, root: Path) -> None:
        template, commits, trees = _template()
        shutil.copytree(template, root, symlinks=True, dirs_exist_ok=True)
        self.workspace = Workspace(root)
        self.repo = Repo(self.workspace)
        self.digest = problem_digest(root / "problems" / PROBLEM)
        self.commits, self.trees = [*commits], [*trees]
        self._entered = False

    def draft(self, kind: str = "evaluation", number: int = 0, **fields: Any) -> EntryDraft:
        candidate_fields = {"digest": self.digest, "tree": self.trees[number], "commit": self.commits[number], **fields}
        return draft(kind, **candidate_fields)

    def healthy(self) -> list[EntryDraft]:
        return [
            self.draft("baseline"),
            self.draft(number=0, speedup=1.2, cites=1),
            self.draft("confirmation", number=0, speedup=1.2, cites=2),
            self.draft("champion", number=0, cites=3),
            self.draft(number=1, verdict=Verdict.INCORRECT_NUMERICAL, cites=1),
            self.draft(number=2, speedup=1.5, cites=1),
            self.draft("confirmation", number=2, speedup=1.45, cites=6),
            self.draft("champion", number=2, cites=7),
            self.draft("note"),
        ]

    def enter(self, drafts: list[EntryDraft]) -> None:
        if not self._entered and drafts == self.healthy():
            shutil.copytree(_healthy_template(), self.workspace.root, symlinks=True, dirs_exist_ok=True)
        else:
            self._append(drafts)
        self._entered = True

    def _append(self, drafts: list[EntryDraft]) -> None:
        with Ledger(self.workspace, self.repo, branch="main", clock=ticking()) as ledger:
            for entry_draft in drafts:
                ledger.append(entry_draft)

    def breaks(self) -> list[Break]:
        return audit(self.workspace, self.repo, branch="main").breaks

    def content(self) -> bytes:
        return (self.workspace.root / FILE).read_bytes()

    def commit(self, files: dict[str, bytes], message: str = "by hand") -> None:
        for name, data in files.items():
            (self.workspace.root / name).write_bytes(data)
        git(self.workspace.root, "add", "-A")
        git(self.workspace.root, "commit", "-q", "--allow-empty", "-m", message)

    def forge(self, change: Callable[[list[Json]], object]) -> None:
        """Rewrite the whole file with a valid chain and matching heads, as a forger with knowledge of the format."""
        documents = [parse(document.raw, FILE) for document in split(self.content(), FILE)]
        change(documents)
        raws: list[bytes] = []
        for document in documents:
            document["prev"] = hash_of(raws[-1]) if raws else None
            raws.append(render(document))
        last = documents[-1]
        head = Head(seq=last["seq"], hash=hash_of(raws[-1]), at=last["at"])
        # An amended root leaves no former heads to compare with: what remains are the numbers themselves.
        self.commit({FILE: HEADER + b"".join(raws), HEADS: render_heads({FILE: head})})
        self.forget_history()

    def replace_history(self, *parents: str) -> None:
        """Put main's present content into one new commit."""
        root = self.workspace.root
        parent_options = [part for parent in parents for part in ("-p", parent)]
        new_commit = git(root, "commit-tree", "main^{tree}", *parent_options, "-m", "x")
        git(root, "update-ref", "refs/heads/main", new_commit)

    def root_commit(self) -> str:
        return git(self.workspace.root, "rev-list", "--max-parents=0", "main")

    def forget_history(self) -> None:
        """Replace the history, and remove every record of the former one from this repository."""
        self.replace_history(self.root_commit())
        git(self.workspace.root, "reflog", "expire", "--expire=all", "--all")
        written_refs = git(self.workspace.root, "for-each-ref", "--format=%(refname)", "refs/harness/written")
        for name in written_refs.split():
            git(self.workspace.root, "update-ref", "-d", name)


@functools.cache
def _healthy_template() -> Path:
    """A place with a healthy ledger, made once a process."""
    root = kept_directory("place") / "place"
    place = Place(root)
    with place.repo:
        place._append(place.healthy())  # noqa: SLF001 - the class above, which would copy what is made here
    return root


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "a workspace")
    with place.repo:
        yield place


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
    whats = [break_.message for break_ in place.breaks()]
    assert f"{HEADS} has another end of the file" in whats
    assert any(message.startswith("rewritten since commit ") for message in whats)


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
        (HEADER.replace(b"2", b"9"), "the ledger file has format 9, and this harness reads formats 1 to 2"),
        (b"seq: 1\n", "not a ledger file: its first line must be `# kernel-harness ledger, format 2`"),
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
        (HEADS, "its first line must be `# kernel-harness heads, format 2`")
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
    def change(documents: list[Json]) -> None:
        inner: Any = documents[seq - 1]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    faults = forged(place, change)
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


def repeating(place: Place) -> list[EntryDraft]:
    """A baseline, an evaluation of compiled code, one that was answered from it, and one of other code."""
    measured = place.draft(number=0, cites=1).model_copy(
        update={"fingerprint": Fingerprint(source="sha256:1", binary="sha256:b")}
    )
    own = {"candidate": place.draft(number=1).candidate, "fingerprint": Fingerprint(binary="sha256:b")}
    other_code = place.draft(number=2, cites=1).model_copy(update={"fingerprint": Fingerprint(binary="sha256:c")})
    return [
        place.draft("baseline"),
        measured,
        measured.model_copy(update={**own, "answered_from": 2, "cost": Cost(build_s=0.1)}),
        other_code,
    ]


def test_an_entry_that_repeats_a_measurement_has_no_breaks(place: Place) -> None:
    place.enter(repeating(place))
    assert place.breaks() == []


@pytest.mark.parametrize(
    ("seq", "path", "value", "message"),
    [
        (3, ("answered_from",), 1, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 3, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 99, "answered from an entry that is not an earlier evaluation"),
        (3, ("answered_from",), 4, "answered from an entry that is not an earlier evaluation"),
        (4, ("answered_from",), 2, "answered from seq 2 of another binary"),
        (4, ("answered_from",), 3, "answered from seq 3, which was not measured itself"),
        (3, ("fingerprint", "binary"), "sha256:other", "answered from seq 2 of another binary"),
        (2, ("fingerprint",), {}, "answered from seq 2 of another binary"),
        (3, ("workloads", 0, "matched"), 0.99, "answered from seq 2, which has another value of workloads"),
        (3, ("run",), "other", "answered from seq 2, which has another value of run"),
        (3, ("trust",), "sealed", "answered from seq 2, which has another value of trust"),
        (3, ("device", "id"), "cpu:9", "answered from seq 2, which has another value of device"),
        (1, ("answered_from",), 1, "format: entry: Value error, an entry of kind baseline is not answered"),
    ],
)
def test_the_audit_reports_a_forged_repetition(
    place: Place, seq: int, path: tuple[str | int, ...], value: object, message: str
) -> None:
    def change(documents: list[Json]) -> None:
        inner: Any = documents[seq - 1]
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = value

    place.enter(repeating(place))
    place.forge(change)
    breaks = [(item.seq, item.message) for item in place.breaks()]
    seq_of_break = 3 if (seq, path) == (2, ("fingerprint",)) else seq
    assert any(number == seq_of_break and text.startswith(message) for number, text in breaks), breaks
