"""The single-agent baseline: one budgeted session that may use PyTorch only; its best becomes `baseline/`.

The session works in a tree of its own, outside the run's branches and ledger: what it makes is what candidates are
measured against, not a candidate.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from harness.agents.session import End, Event, Submitted, Tools
from harness.agents.session_runner import Sessions, Stay
from harness.errors import FormatError
from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.git.repo import Repo
from harness.git.tree_ids import tree_files, tree_id
from harness.ledger.accounts import present_time
from harness.ledger.candidates import TriedCandidate
from harness.model.assignment import Assignment
from harness.model.config import Config
from harness.model.entry import Candidate, Entry, stamp
from harness.model.judging import JudgeAnswer
from harness.model.paths import SOLUTIONS, problem_path, solution_path
from harness.model.problem import Problem
from harness.model.verdict import EntryKind, Verdict
from harness.workspace.directories import Workspace

WORKER = "baseline"
WANTED = (
    "the fastest PyTorch that computes this: it becomes the baseline that kernels are measured against. "
    "Language pytorch only, no kernels of your own"
)
PROVENANCE = "BASELINE.md"


@dataclass(frozen=True)
class MadeBaseline:
    """What a session came to."""

    end: End
    best: Path | None
    """The directory of the fastest that passed."""
    speedup: float | None
    """Over the fastest baseline there was before."""
    tried: int
    usd: float
    model: str


@dataclass
class _SessionJudge:
    """Judges what the session submits, and keeps it."""

    problem: Problem
    solution: Path
    kept: Path
    judge: Callable[[Path], JudgeAnswer]
    languages: tuple[str, ...] = ("pytorch",)

    def __post_init__(self) -> None:
        self.attempts: dict[str, TriedCandidate] = {}
        self.entries: dict[str, Entry] = {}

    def commit(self, message: str) -> Submitted:
        spec = load_solution(self.solution).spec
        if spec.language not in self.languages:
            raise FormatError(f"`language` is {spec.language}; a baseline is written in pytorch", where="solution.yaml")
        tree = tree_id(tree_files(self.solution))
        shutil.copytree(self.solution, self.kept / tree, dirs_exist_ok=True, symlinks=True)
        self.attempts.setdefault(tree, TriedCandidate(tree, WORKER, None, message=message))
        return Submitted(commit=tree, tree=tree, branch=WORKER)

    def outcome(self, submitted: Submitted) -> Entry:
        if submitted.tree not in self.entries:
            answer = self.judge(self.kept / submitted.tree)
            self.entries[submitted.tree] = _entry(self.problem, submitted.tree, answer)
            summary, message = answer.summary, self.attempts[submitted.tree].message
            self.attempts[submitted.tree] = TriedCandidate(
                submitted.tree, WORKER, answer.verdict, summary.speedup, answer.reason, message=message
            )
        return self.entries[submitted.tree]

    def best(self) -> TriedCandidate | None:
        passed = [each for each in self.attempts.values() if each.verdict is Verdict.PASSED and each.speedup]
        return max(passed, key=lambda each: each.speedup or 0.0, default=None)

    def history(self) -> tuple[TriedCandidate, ...]:
        return tuple(self.attempts.values())

    def tools(self) -> Tools:
        return Tools(self.commit, self.outcome, self.history, note=lambda *_: None, turn=nullcontext)


def make_baseline(
    workspace: Workspace,
    config: Config,
    problem: Problem,
    judge: Callable[[Path], JudgeAnswer],
    *,
    target: str,
    stop: threading.Event,
    heed: Callable[[Event], None],
) -> MadeBaseline:
    """Run the session; `judge` is asked about every solution that it submits.

    Raises:
        HarnessError: the session cannot be opened, or the model's side refuses the credential.
    """
    config = config.model_copy(update={"languages": ("pytorch",)})
    tree = workspace.state / "agents" / WORKER / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    directory = tree / problem_path(problem.key)
    shutil.copytree(problem.directory, directory, ignore=shutil.ignore_patterns(SOLUTIONS, "baseline", "*.md"))
    solution = tree / solution_path(problem.key, target)
    solution.mkdir(parents=True)
    bench = _SessionJudge(problem, solution, workspace.derived / "baselines" / problem.key, judge)
    row = Assignment(worker=WORKER, problem=problem.key, wanted=WANTED)
    sessions = Sessions(
        workspace, repo := Repo(workspace), config, WORKER, "claude", target, heed=heed, moved=lambda: False, stop=stop
    )
    with repo, sessions:
        copied = load_problem(directory, key=problem.key, data_root=problem.data_root)
        stay = Stay(row, copied, tree, solution, bench.tools())
        end = sessions.work(stay)
        model = sessions.current.model if sessions.current else "none"
    best = bench.best()
    kept = bench.kept / best.tree if best else None
    return MadeBaseline(end, kept, best.speedup if best else None, len(bench.attempts), sessions.usd, model)


def keep_baseline(problem: Problem, made: MadeBaseline) -> Path:
    """Put the best in its place, with where it comes from beside it."""
    assert made.best is not None  # noqa: S101 - the caller has looked
    place = problem.directory / "baseline"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(made.best, place)
    (problem.directory / PROVENANCE).write_text(
        "# Where baseline/ comes from\n\n"
        f"Agent-optimised PyTorch, by one session of {made.model} ({present_time()[:10]}):\n"
        f"{made.tried} submissions, {made.usd:.2f} USD, {made.speedup or 0:.3f} times as fast as the fastest before.\n"
    )
    return place


def _entry(problem: Problem, tree: str, answer: JudgeAnswer) -> Entry:
    """The answer in the form that the session's tools read; it is in no ledger."""
    return Entry(
        seq=1,
        prev=None,
        kind=EntryKind.EVALUATION,
        run=WORKER,
        problem=problem.key,
        problem_digest=problem.digest,
        target="baseline",
        candidate=Candidate(commit=tree, tree=tree, branch=WORKER, worker=WORKER, language="pytorch"),
        environment=answer.environment,
        judge_protocol=answer.protocol,
        verdict=answer.verdict,
        reason=answer.reason or (None if answer.verdict is Verdict.PASSED else str(answer.verdict)),
        trust=answer.trust,
        workloads=answer.workloads,
        summary=answer.summary,
        cost=answer.cost,
        at=stamp(datetime.now(UTC)),
    )
