"""A solution with declared parameters, and a session's tools with a judge in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.agents.session import Brief, Tools
from harness.formats.solutions import load_solution
from harness.git.solution_commits import Submission
from harness.git.tree_ids import tree_files, tree_id
from harness.ledger.candidates import TriedCandidate
from harness.model.config import AgentConfig, SessionBudget
from harness.model.entry import Candidate, Entry
from harness.model.judging import JUDGE_PROTOCOL, EnvironmentRecord, Summary, WorkloadResult
from harness.model.solution import ParamValue
from harness.model.verdict import EntryKind, Verdict
from tests.site import Site, site_in

Params = dict[str, ParamValue]
SOLUTION = """\
language: cpp
entry: kernel.cpp::run
# people's words survive
params: {WIDTH: 2, UNROLL: 1}   # the values as committed
tune: {WIDTH: [1, 2, 4, 8], UNROLL: [1, 2, 4]}
"""


class Bench:
    """The candidates of one problem, and its judge: `speedup(params)`, which is None if the candidate fails."""

    def __init__(self, speedup: Callable[[Params], float | None]) -> None:
        self.speedup = speedup
        self.attempts: dict[str, TriedCandidate] = {}
        self.tried: list[tuple[str, Params]] = []
        """Worker and params of each trial, in order."""
        self.notes: list[str] = []
        self.judged = 0
        self.stop_after: int | None = None

    def tools(self, directory: Path, worker: str) -> Tools:
        def commit(message: str) -> Submission:
            tree = tree_id(tree_files(directory))
            self.attempts.setdefault(tree, TriedCandidate(tree, worker, None))
            self.tried.append((worker, dict(load_solution(directory).spec.params)))
            return Submission(commit=message, tree=tree, branch=f"agents/main/{worker}/t/one")

        def outcome(submitted: Submission) -> Entry | None:
            if self.stop_after is not None and self.judged >= self.stop_after:
                return None
            self.judged += 1
            speedup = self.speedup(dict(load_solution(directory).spec.params))
            verdict = Verdict.PASSED if speedup is not None else Verdict.INCORRECT_NUMERICAL
            self.attempts[submitted.tree] = TriedCandidate(submitted.tree, worker, verdict, speedup)
            return entry(verdict, speedup)

        return Tools(
            commit=commit,
            outcome=outcome,
            history=lambda: tuple(self.attempts.values()),
            note=lambda text, *_: self.notes.append(text),
            turn=nullcontext,
        )

    def brief(
        self, directory: Path, worker: str = "w01", *, seed: int = 1, budget: SessionBudget | None = None
    ) -> Brief:
        return Brief(
            role="worker",
            prompt="faster",
            agent=AgentConfig(per_session=budget or SessionBudget()),
            solution=directory,
            tools=self.tools(directory, worker),
            seed=seed,
        )


def entry(verdict: Verdict, speedup: float | None) -> Entry:
    return Entry(
        seq=1,
        prev=None,
        kind=EntryKind.EVALUATION,
        run="main",
        problem="t/one",
        problem_digest="sha256:0",
        target="cpu",
        candidate=Candidate(
            commit="0" * 40, tree="0" * 40, branch="agents/main/w01/t/one", worker="w01", language="cpp"
        ),
        environment=EnvironmentRecord(harness="0", judge="sha256:0", python="3", torch="2", sandbox="none"),
        judge_protocol=JUDGE_PROTOCOL,
        verdict=verdict,
        reason=None if verdict is Verdict.PASSED else "element 3 differs",
        summary=Summary(speedup=speedup, passed=1 if speedup else 0, of=1),
        at="2026-01-01T00:00:00.000Z",
    )


def champion_entry(times_us: dict[str, float]) -> Entry:
    """Return a champion's confirmation with these latencies by workload, in microseconds."""
    works = tuple(WorkloadResult(uuid=uuid, verdict=Verdict.PASSED, latency_us=us) for uuid, us in times_us.items())
    return entry(Verdict.PASSED, 2.0).model_copy(update={"workloads": works})


def write_solution(directory: Path, text: str = SOLUTION) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "solution.yaml").write_text(text)
    (directory / "kernel.cpp").write_text('extern "C" void run() {}\n')
    return directory


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A workspace of two small problems, with the stub judge."""
    with site_in(tmp_path) as created_site:
        yield created_site


@pytest.fixture(autouse=True)
def _separate_locks(own_locks: None) -> None:
    """Use separate locks for the agents' sessions and judges of every test here."""
