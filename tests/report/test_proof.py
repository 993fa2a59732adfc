"""`harness proof` trusts only the ledger of the base branch: each forgery has its own message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.formats.ledger_documents import split
from harness.ledger.index import Index
from harness.model.paths import HEADS
from harness.model.verdict import Verdict
from harness.report.merging import prepare
from harness.report.proof import Proof, check_proof
from tests.ledger.audited_place import FILE, Place
from tests.ledger.ledgers import PROBLEM, git

PLACE = f"problems/{PROBLEM}/solutions/cpu"
WIN = f"win/main/{PROBLEM}"
KERNEL = f"{PLACE}/solution.yaml"


class Court:
    """A workspace with a champion on its win branch, and the operations of a forger."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root)
        self.root = root
        self.place.enter(self.place.healthy())
        self.win()

    def win(self) -> None:
        with Index(self.place.workspace, branch="main") as index:
            index.refresh(self.place.repo)
            settings = {"run": "main", "target": "cpu", "base": "main", "coordination": "main"}
            prepare(self.place.repo, index, PROBLEM, replace=True, **settings)

    def proof(self, base: str = "main", head: str = WIN) -> Proof:
        return check_proof(self.place.repo, base, head)

    def git(self, *arguments: str) -> str:
        return git(self.root, *arguments)

    def on_the_branch(
        self, files: dict[str, str | None], *, amend: str | None = None, into_last_commit: bool = False
    ) -> None:
        """Change files on the win branch in a further commit, or in its only commit with the message `amend`."""
        self.git("switch", "-q", WIN)
        for name, text in files.items():
            file = self.root / name
            if text is None:
                file.unlink()
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
        self.git("add", "-A")
        if amend is not None:
            self.git("commit", "-q", "--amend", "-m", amend)
        else:
            self.git("commit", "-q", *(["--amend", "--no-edit"] if into_last_commit else ["-m", "One more thing"]))
        self.git("switch", "-q", "main")

    def message(self) -> str:
        return self.git("log", "-1", "--format=%B", WIN)

    def on_main(self, files: dict[str, bytes]) -> None:
        self.place.commit(files)

    def merged_by_hand(self, number: int, *, place: str = PLACE) -> None:
        """Make a branch with another candidate's tree by plain git, without an entry in the ledger."""
        self.git("switch", "-q", "-C", WIN, "main")
        self.git("rm", "-rq", "--ignore-unmatch", place)
        self.git("read-tree", f"--prefix={place}/", self.place.trees[number])
        self.git("commit", "-q", "-m", "A fast kernel")
        self.git("reset", "-q", "--hard")
        self.git("switch", "-q", "main")


@pytest.fixture
def court(tmp_path: Path) -> Iterator[Court]:
    court = Court(tmp_path / "a workspace")
    with court.place.repo:
        yield court


def test_the_honest_branch_is_proved(court: Court) -> None:
    proof = court.proof()
    assert (proof.faults, proof.notes) == ([], [])
    assert proof.measured is not None
    assert (proof.measured.counts.seq, proof.tree) == (7, court.place.trees[2])


def test_rebased_and_squashed_it_is_proved_too(court: Court) -> None:
    court.on_main({"README.md": b"words"})
    court.git("rebase", "-q", "main", WIN)
    assert court.proof().faults == []
    court.git("switch", "-q", "-c", "squashed", "main")
    court.git("merge", "-q", "--squash", WIN)
    court.git("commit", "-q", "-m", "Merge a kernel (#1)")
    proof = court.proof(head="squashed")
    assert proof.faults == []
    assert proof.notes == ["no commit message contains the proof: the table of the ledger counts"]


def test_with_main_merged_into_it_it_is_still_proved(court: Court) -> None:
    court.place.enter([court.place.draft("note")])
    court.git("switch", "-q", WIN)
    court.git("merge", "-q", "--no-edit", "main")
    assert court.proof().faults == []


def test_a_change_without_a_solution_needs_no_proof(court: Court) -> None:
    court.git("switch", "-q", "-c", "words", "main")
    (court.root / "README.md").write_text("words")
    court.git("add", "-A")
    court.git("commit", "-q", "-m", "Say more")
    proof = court.proof(head="words")
    assert (proof.faults, proof.notes) == ([], ["it changes no solution: there is nothing to prove"])
    court.git("switch", "-q", "main")


def edits_the_ledger(court: Court) -> None:
    court.on_the_branch({FILE: (court.root / FILE).read_text().replace("speedup: 1.5", "speedup: 9.5")})


def edits_the_ledger_and_puts_it_back(court: Court) -> None:
    before = (court.root / FILE).read_text()
    court.on_the_branch({FILE: before.replace("speedup: 1.5", "speedup: 9.5")})
    court.on_the_branch({FILE: before})


def edits_the_ledger_alone(court: Court) -> None:
    court.git("switch", "-q", "-C", WIN, "main")
    court.on_the_branch({FILE: (court.root / FILE).read_text().replace("speedup: 1.5", "speedup: 9.5")})


def swaps_the_tree(court: Court) -> None:
    court.on_the_branch({KERNEL: "notes: 2, and a little faster\n"}, into_last_commit=True)


def swaps_in_a_tree_that_failed(court: Court) -> None:
    court.merged_by_hand(1)


def loosens_the_tolerance(court: Court) -> None:
    court.on_the_branch({f"problems/{PROBLEM}/workload.jsonl": '{"tolerance": {"max_atol": 1}}\n'})


def slows_the_baseline_down(court: Court) -> None:
    court.on_the_branch({f"problems/{PROBLEM}/baseline/run.py": "import time; time.sleep(1)\n"})


def is_stale(court: Court) -> None:
    court.on_main({f"problems/{PROBLEM}/definition.json": b'{"name": "new"}'})


def brings_other_files(court: Court) -> None:
    court.on_the_branch({"conftest.py": "import os\n"})


def brings_another_judge(court: Court) -> None:
    court.on_the_branch({"harness/judge/clock.py": "SPEED = 2\n"})


def brings_other_checks(court: Court) -> None:
    court.on_the_branch({".github/workflows/proof.yml": "on: never\n"})


def is_for_another_target(court: Court) -> None:
    court.merged_by_hand(2, place=f"problems/{PROBLEM}/solutions/h200")


def brings_two_at_once(court: Court) -> None:
    court.on_the_branch({"problems/starter/other/solutions/cpu/solution.yaml": "notes: other\n"})


def removes_the_solution(court: Court) -> None:
    court.git("switch", "-q", "main")
    court.git("merge", "-q", WIN)
    court.git("switch", "-q", "-C", WIN, "main")
    court.on_the_branch({KERNEL: None})


def adds_words_to_the_ledger(court: Court) -> None:
    court.on_the_branch({}, amend=court.message().replace("1.5", "2.5"))


def cites_another_hash(court: Court) -> None:
    text = court.message()
    digest = text.partition("seq 7 sha256:")[2][:64]
    court.on_the_branch({}, amend=text.replace(digest, "0" * 64))


def changes_the_base_ledger(court: Court) -> None:
    court.on_main({FILE: court.place.content().replace(b'worker: "w01"', b'worker: "w02"', 1)})
    court.git("rebase", "-q", "main", WIN)
    court.git("switch", "-q", "main")


def cuts_the_base_ledger(court: Court) -> None:
    end = split(court.place.content(), FILE)[-1].start
    court.on_main({FILE: court.place.content()[:end]})
    court.git("rebase", "-q", "main", WIN)
    court.git("switch", "-q", "main")


def forges_the_base_ledger_whole(court: Court) -> None:
    def better(documents: list[dict[str, object]]) -> None:
        summary = documents[6]["summary"]
        assert isinstance(summary, dict)
        summary["speedup"] = 4.0

    court.place.forge(better)
    court.git("branch", "-q", "-f", WIN, "main")
    court.merged_by_hand(2)


@pytest.mark.parametrize(
    ("forge", "sentence"),
    [
        (edits_the_ledger, "it changes the ledger: only the daemon writes it, and a proof uses the ledger of the base"),
        (edits_the_ledger_and_puts_it_back, "it changes the ledger: only the daemon writes it"),
        (edits_the_ledger_alone, "it changes the ledger: only the daemon writes it"),
        (swaps_the_tree, "this exact solution was not judged; it may have been edited after its measurement"),
        (swaps_in_a_tree_that_failed, "did not pass: seq 5 is INCORRECT_NUMERICAL: 3 of 4096 elements are off"),
        (loosens_the_tolerance, f"it changes how {PROBLEM} is judged: problems/{PROBLEM}/workload.jsonl"),
        (slows_the_baseline_down, f"it changes how {PROBLEM} is judged: problems/{PROBLEM}/baseline/run.py"),
        (is_stale, "is stale: seq 6 judged a form of the problem with digest sha256:"),
        (brings_other_files, f"it changes files outside {PLACE}/: conftest.py"),
        (brings_another_judge, "it changes the judge that measures every solution: harness/judge/clock.py"),
        (brings_other_checks, "it changes the checks of pull requests: .github/workflows/proof.yml"),
        (is_for_another_target, f"it was judged for {PROBLEM} on cpu (seq 6) instead"),
        (brings_two_at_once, "it changes 2 solutions ("),
        (removes_the_solution, f"it removes {PLACE}/: a removal has no measurement"),
        (adds_words_to_the_ledger, "differs from the ledger (seq 7), which has: The judge measured 1.5"),
        (cites_another_hash, "differs from the ledger (seq 7), which has: Ledger-Entry: "),
        (changes_the_base_ledger, "is broken: ledger/starter/rmsnorm_h4096.yaml seq 3: chain broken"),
        (cuts_the_base_ledger, f"{HEADS} has another end of the file"),
        (forges_the_base_ledger_whole, "seq 7 does not follow from its parts: summary.speedup is not the geometric"),
    ],
)
def test_each_forgery_is_refused_with_its_sentence(court: Court, forge: Callable[[Court], None], sentence: str) -> None:
    forge(court)
    proof = court.proof()
    assert not proof.holds
    assert any(sentence in fault for fault in proof.faults), proof.faults


@pytest.mark.parametrize(
    ("drafts", "sentence"),
    [
        ([("evaluation", {"cites": 1})], "has no confirmation: seq 2 is its only measurement"),
        (
            [("evaluation", {"cites": 1}), ("confirmation", {"cites": 2, "speedup": 0.9})],
            "shows no speed-up: seq 3 has a lower bound of 0.9",
        ),
        (
            [("evaluation", {"cites": 1, "verdict": Verdict.SUSPECT})],
            "did not pass: seq 2 is SUSPECT",
        ),
    ],
)
def test_what_was_not_confirmed_is_not_proved(
    tmp_path: Path, drafts: list[tuple[str, dict[str, Any]]], sentence: str
) -> None:
    court = Court.__new__(Court)
    court.place, court.root = Place(tmp_path / "w"), tmp_path / "w"
    court.place.enter([court.place.draft("baseline"), *(court.place.draft(kind, **fields) for kind, fields in drafts)])
    court.merged_by_hand(0)
    with court.place.repo:
        (fault,) = court.proof().faults
    assert sentence in fault


def test_a_newer_champion_is_noted(court: Court) -> None:
    old = court.git("rev-parse", WIN)
    evaluated = court.place.draft(number=1, speedup=1.9, cites=1, judge="sha256:x")
    confirmed = court.place.draft("confirmation", number=1, speedup=1.9, cites=10, judge="sha256:x")
    court.place.enter([evaluated, confirmed])
    proof = court.proof(head=old)
    assert proof.faults == []
    assert proof.notes == [f"a newer champion exists: seq 11, 1.990x (`harness pr {PROBLEM}`)"]
