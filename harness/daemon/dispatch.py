"""Plans for a free judge: the request for a queued job, or the verdict on a job that needs no judge."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from harness.daemon import drafts
from harness.daemon.attempts import MAX_LOSSES, Attempts
from harness.daemon.queue import Job, Key
from harness.daemon.snapshots import Snapshots
from harness.errors import FormatError, LedgerError, RepositoryError
from harness.formats.normalised_source import source_hash
from harness.formats.solutions import UnusableSolutionError, usable_solution
from harness.git.repo import UnfitTreeError
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.config import Config
from harness.model.entry import Entry, EntryDraft
from harness.model.judging import JudgeAnswer, JudgeReady, JudgeRequest
from harness.model.languages import Language
from harness.model.problem import Problem
from harness.model.solution import Solution
from harness.model.verdict import Verdict


@dataclass(frozen=True)
class Ask:
    """A request for a judge."""

    request: JudgeRequest
    problem: Problem
    language: str = ""
    baseline: Entry | None = None
    """The baseline entry that the candidate is compared with."""
    source_hash: str = ""
    """Of a candidate: hash of its source without formatting."""
    known_binaries: Mapping[str, Row] = field(default_factory=dict)
    """Of a sealed candidate: compiled code and launches -> its evaluation."""


@dataclass(frozen=True)
class Decided:
    """An entry that needs no judge. It is the job's entry, or with `of_baseline` its baseline's."""

    draft: EntryDraft
    of_baseline: bool = False


@dataclass(frozen=True)
class Work:
    """The present work of a judge: a job, or a baseline for it."""

    job: Job
    ask: Ask
    ahead: bool = False
    """True for a job without a candidate, which is in no queue."""

    @property
    def is_baseline(self) -> bool:
        """True for the measurement of a baseline."""
        return self.ask.request.kind == "baseline"

    @property
    def identity(self) -> Sequence[str]:
        """Identity by which its attempts are counted."""
        return baseline_identity(self.job.key) if self.is_baseline else job_identity(self.job)


@dataclass(frozen=True)
class JobPlanner:
    """Plans jobs from the ledger, the coordination branch and the losses of earlier attempts."""

    config: Config
    snapshots: Snapshots
    index: Index
    attempts: Attempts

    def plan(self, job: Job, commit: str, judge: JudgeReady) -> Ask | Decided | None:
        """Return the plan of a job for a judge that is ready; None if the problem has changed since it was queued.

        Args:
            commit: the commit of the coordination branch with the problem.

        Raises:
            HarnessError: the repository, the index or the disk fails; the candidate is not at fault.
        """
        try:
            problem = self.snapshots.problem(commit, job.key.problem)
        except (FormatError, RepositoryError):
            return None  # the next scan of the refs reports the error
        if problem.digest != job.key.problem_digest or judge.environment.judge != job.key.judge:
            return None
        row = self.index.find_baseline(problem.key, problem.digest, job.key.target, job.key.judge)
        baseline = self.index.entry(row.problem, row.seq) if row else None
        if baseline is None:
            return self._plan_baseline(job, problem, judge)
        return self._plan_candidate(job, problem, baseline, judge)

    def plan_ahead(self, problem: Problem, worker: str, judge: JudgeReady) -> Work | str | None:
        """Return the measurement of a problem's baselines before there is a candidate.

        Args:
            worker: the worker that waits for the baselines.
            judge: a judge that is ready.

        Returns:
            The work; the reason why it is impossible; None if the ledger has the baselines.
        """
        target, version = judge.target, judge.environment.judge
        if self.index.find_baseline(problem.key, problem.digest, target, version):
            return None
        job = Job("evaluation", Key(problem.key, problem.digest, "", target, version), "", "", worker)
        plan = self._plan_baseline(job, problem, judge)
        return Work(job, plan, ahead=True) if isinstance(plan, Ask) else "its baselines were lost too often"

    def draft(self, work: Work, answer: JudgeAnswer) -> EntryDraft | None:
        """Return a candidate's entry; None if the answer repeats a measurement that the ledger does not have now."""
        job, ask = work.job, work.ask
        if answer.measured:
            return drafts.judged_draft(self.config.run, job, ask.language, answer, ask.baseline, ask.source_hash)
        row = ask.known_binaries.get(answer.binary or "")
        with suppress(LedgerError):
            measured = self.index.entry(row.problem, row.seq) if row else None
            return drafts.repeated_draft(job, ask.language, answer, measured, ask.source_hash) if measured else None
        return None

    def _plan_baseline(self, job: Job, problem: Problem, judge: JudgeReady) -> Ask | Decided:
        losses = self.attempts.losses(baseline_identity(job.key))
        if len(losses) >= MAX_LOSSES:
            return Decided(drafts.lost_baseline_draft(self.config.run, job.key, judge, losses), of_baseline=True)
        more_variants = self.config.judge.more_baselines
        return Ask(self._request(problem, job.key.target, kind="baseline", more_variants=more_variants), problem)

    def _plan_candidate(self, job: Job, problem: Problem, baseline: Entry, judge: JudgeReady) -> Ask | Decided:
        def decided(verdict: Verdict, reason: str, language: str = "") -> Decided:
            of = len(problem.workloads)
            cites = job.cites if job.kind == "confirmation" else baseline.seq
            return Decided(drafts.unjudged_draft(self.config.run, job, language, judge, verdict, reason, of, cites))

        variants = drafts.fastest(baseline.baselines)
        if baseline.verdict is not Verdict.PASSED or len(variants) < len(problem.workloads):
            reason = baseline.reason or "no correct baseline for every workload"
            return decided(Verdict.INVALID_REFERENCE, f"see the baseline, entry {baseline.seq}: {reason}")
        try:
            solution = self._check(job, problem)
        except UnusableSolutionError as unusable:
            return decided(unusable.verdict, unusable.reason, unusable.language)
        losses = self.attempts.losses(job_identity(job))
        if len(losses) >= MAX_LOSSES:
            return decided(*drafts.verdict_of_losses(losses), solution.spec.language)
        known_binaries = self._known_binaries(job, solution.spec.language)
        request = self._request(
            problem,
            job.key.target,
            kind=job.kind,
            solution_dir=str(solution.directory),
            baseline=variants,
            sealed_baseline=drafts.fastest(baseline.sealed_baselines),
            known_binaries={binary: Verdict(str(row.verdict)) for binary, row in known_binaries.items()},
        )
        return Ask(request, problem, solution.spec.language, baseline, source_hash(solution), known_binaries)

    def _known_binaries(self, job: Job, language: Language) -> Mapping[str, Row]:
        """Return the binaries that need no measurement.

        Confirmations are always measured, and host code adds its own times to a measurement.
        """
        if job.kind != "evaluation" or language != "cuda":
            return {}
        key = job.key
        return self.index.binaries(key.problem, key.problem_digest, key.target, key.judge, self.config.run)

    def _check(self, job: Job, problem: Problem) -> Solution:
        """Return the candidate's solution.

        Raises:
            UnusableSolutionError: it is not a solution, or not one that the run allows.
        """
        try:
            directory = self.snapshots.candidate(job.commit, problem.key, job.key.target, job.key.tree)
        except UnfitTreeError as error:
            raise UnusableSolutionError(error.message) from error
        return usable_solution(directory, problem.definition, self.config.languages, "this run allows")

    def _request(self, problem: Problem, target: str, **fields: Any) -> JudgeRequest:  # noqa: ANN401 - of a request
        half_width, max_judge_s = self.config.judge.half_width(target), self.config.judge.max_judge_s
        own = {**problem.request_fields, "id": uuid.uuid4().hex, "half_width": half_width, "max_judge_s": max_judge_s}
        return JudgeRequest(**own, **fields)


def job_identity(job: Job) -> Sequence[str]:
    """Return the identity by which a job's attempts are counted."""
    return job.kind, job.key.problem, job.key.problem_digest, job.key.tree, job.key.target, job.key.judge


def baseline_identity(key: Key) -> Sequence[str]:
    """Return the identity by which attempts at the baseline of a measurement's problem are counted."""
    return "baseline", key.problem, key.problem_digest, key.target, key.judge
