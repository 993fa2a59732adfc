"""The single-agent baseline: one session with a budget that may use PyTorch only; its best result becomes `baseline/`.

The session works in a separate directory, outside the run's branches and ledger: its result is not a candidate, but the
solution that candidates are compared with.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from harness.agents.session import End, Event, Tools
from harness.agents.session_runner import Sessions, WorkItem
from harness.errors import FormatError
from harness.formats.problems import load_problem
from harness.formats.solutions import load_solution
from harness.git.repo import Repo
from harness.git.solution_commits import Submission
from harness.git.tree_ids import tree_files, tree_id
from harness.ledger.accounts import present_time
from harness.ledger.candidates import TriedCandidate
from harness.model.config import Config
from harness.model.entry import Candidate, Entry, stamp
from harness.model.judging import JudgeAnswer
from harness.model.paths import SOLUTIONS, problem_path, solution_path
from harness.model.printable import count_of
from harness.model.problem import Problem
from harness.model.verdict import EntryKind, Verdict
from harness.workspace.directories import Workspace

WORKER = "baseline"
GOAL = (
    "the fastest PyTorch code for this problem: it becomes the baseline that kernels are compared with. "
    "Language pytorch only, no kernels of your own"
)
PROVENANCE = "BASELINE.md"


@dataclass(frozen=True)
class BaselineResult:
    """The result of a session that searched for a baseline."""

    end: End
    best: Path | None
    """The directory of the fastest solution that passed; None if none passed."""
    speedup: float | None
    """Of `best`, over the fastest baseline before the session."""
    submissions: int
    """Number of different solutions that were submitted."""
    usd: float
    model: str


@dataclass
class _SessionJudge:
    """Copies and judges the submissions of a session."""

    problem: Problem
    solution: Path
    submissions: Path
    """Directory for the copies, one subdirectory per tree id."""
    judge: Callable[[Path], JudgeAnswer]
    attempts: dict[str, TriedCandidate] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)

    def commit(self, message: str) -> Submission:
        language = load_solution(self.solution).spec.language
        if language != "pytorch":
            raise FormatError(f"`language` is {language}; a baseline is written in pytorch", where="solution.yaml")
        tree = tree_id(tree_files(self.solution))
        shutil.copytree(self.solution, self.submissions / tree, dirs_exist_ok=True, symlinks=True)
        self.attempts.setdefault(tree, TriedCandidate(tree, WORKER, None, message=message))
        return Submission(commit=tree, tree=tree, branch=WORKER)

    def outcome(self, submitted: Submission) -> Entry:
        if submitted.tree not in self.entries:
            answer = self.judge(self.submissions / submitted.tree)
            self.entries[submitted.tree] = _entry(self.problem, submitted.tree, answer)
            summary, message = answer.summary, self.attempts[submitted.tree].message
            self.attempts[submitted.tree] = TriedCandidate(
                submitted.tree, WORKER, answer.verdict, summary.speedup, answer.reason, message=message
            )
        return self.entries[submitted.tree]

    def best(self) -> TriedCandidate | None:
        attempts = self.attempts.values()
        passed = (attempt for attempt in attempts if attempt.verdict is Verdict.PASSED and attempt.speedup)
        return max(passed, key=lambda attempt: attempt.speedup or 0.0, default=None)

    def tools(self) -> Tools:
        return Tools(self.commit, self.outcome, lambda: tuple(self.attempts.values()), lambda *_: None, nullcontext)


def make_baseline(
    workspace: Workspace,
    config: Config,
    problem: Problem,
    judge: Callable[[Path], JudgeAnswer],
    *,
    target: str,
    stop: threading.Event,
    on_event: Callable[[Event], None],
) -> BaselineResult:
    """Run a session that searches for a baseline.

    Args:
        workspace: stores the session's files and the submissions.
        judge: evaluates a solution directory.

    Raises:
        HarnessError: the session cannot be opened, or the model API refuses the credential.
    """
    config = config.model_copy(update={"languages": ("pytorch",)})
    tree = workspace.state / "agents" / WORKER / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    directory = tree / problem_path(problem.key)
    shutil.copytree(problem.directory, directory, ignore=shutil.ignore_patterns(SOLUTIONS, "baseline", "*.md"))
    solution = tree / solution_path(problem.key, target)
    solution.mkdir(parents=True)
    session_judge = _SessionJudge(problem, solution, workspace.derived / "baselines" / problem.key, judge)
    with (
        Repo(workspace) as repo,
        Sessions(workspace, repo, config, WORKER, "claude", target, on_event, lambda: False, stop) as sessions,
    ):
        copied = load_problem(directory, key=problem.key, data_root=problem.data_root)
        end = sessions.work(WorkItem(copied, GOAL, solution, session_judge.tools()))
        model = sessions.current.model if sessions.current else "none"
    best = session_judge.best()
    best_directory = session_judge.submissions / best.tree if best else None
    speedup = best.speedup if best else None
    return BaselineResult(end, best_directory, speedup, len(session_judge.attempts), sessions.usd, model)


def install_baseline(problem: Problem, result: BaselineResult) -> Path:
    """Replace `baseline/` of a problem with the best solution and write its provenance; return the directory.

    Args:
        result: a result with a `best` solution.
    """
    assert result.best is not None  # noqa: S101 - the caller checks it
    destination = problem.directory / "baseline"
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(result.best, destination)
    (problem.directory / PROVENANCE).write_text(
        "# Provenance of baseline/\n\n"
        f"Agent-optimised PyTorch, by one session of {result.model} ({present_time()[:10]}):\n"
        f"{count_of(result.submissions, 'submission')}, {result.usd:.2f} USD, {result.speedup or 0:.3f} times as fast "
        "as the fastest baseline before.\n"
    )
    return destination


def _entry(problem: Problem, tree: str, answer: JudgeAnswer) -> Entry:
    """Return the judge's answer as an entry, the form that the session's tools read; it is not added to a ledger."""
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
