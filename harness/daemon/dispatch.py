"""What a free judge does next: the request for a queued job, or the verdict on one that needs no judge."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from harness.daemon.attempts import MOST, Attempts
from harness.daemon.drafts import (
    fastest,
    judged_draft,
    lost_baseline_draft,
    repeated_draft,
    unjudged_draft,
    verdict_of_losses,
)
from harness.daemon.queue import Job, Key
from harness.daemon.snapshots import Snapshots
from harness.errors import FormatError, LedgerError, RepositoryError
from harness.formats.normalised_source import source_hash
from harness.formats.usable_solution import UnusableSolutionError, usable_solution
from harness.git.repo import UnfitTreeError
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.model.config import Config
from harness.model.entry import Entry, EntryDraft
from harness.model.judging import JudgeAnswer, JudgeReady, JudgeRequest
from harness.model.problem import Problem
from harness.model.solution import Language, Solution
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
    """An entry that needs no judge; it is the job's own unless `of_baseline`."""

    draft: EntryDraft
    of_baseline: bool = False


@dataclass(frozen=True)
class Outdated:
    """The problem is not any more what the job was queued for: forget the job and look at the refs again."""


Plan = Ask | Decided | Outdated


@dataclass(frozen=True)
class Work:
    """What a judge is at work on: a job, or a baseline for it."""

    job: Job
    ask: Ask
    ahead: bool = False
    """The job stands for a candidate that does not exist yet: it is in no queue."""

    @property
    def is_baseline(self) -> bool:
        """Whether the baseline comes first."""
        return self.ask.request.kind == "baseline"

    @property
    def identity(self) -> Sequence[str]:
        """What its attempts are counted by."""
        return baseline_identity_of(self.job) if self.is_baseline else job_identity(self.job)


@dataclass(frozen=True)
class JobPlanner:
    """Plans jobs against the ledger, the coordination branch and what earlier attempts have shown."""

    config: Config
    snapshots: Snapshots
    index: Index
    attempts: Attempts
    _baselines: dict[str, tuple[Row, Entry]] = field(default_factory=dict)
    """Problem -> its baseline entry that was used last: reading one takes milliseconds."""

    def plan(self, job: Job, commit: str, judge: JudgeReady) -> Plan:
        """What to do with a job, for a judge that is ready; its problem as it stands at `commit`.

        Raises:
            HarnessError: nothing about the candidate: the repository, the index or the disk refuse.
        """
        try:
            problem = self.snapshots.problem(commit, job.key.problem)
        except (FormatError, RepositoryError):
            return Outdated()  # the next look at the refs says what is wrong with it
        if problem.digest != job.key.problem_digest or judge.environment.judge != job.key.judge:
            return Outdated()
        row = self.index.find_baseline(problem.key, problem.digest, job.key.target, job.key.judge)
        baseline = self._entry_of(row) if row else None
        if baseline is None:
            return self._plan_baseline(job, problem, judge)
        return self._plan_candidate(job, problem, baseline, judge)

    def plan_ahead(self, problem: Problem, worker: str, judge: JudgeReady) -> Work | str | None:
        """Return the measurement of a problem's baselines before there is a candidate.

        Returns:
            The work; why it cannot be done; None where the ledger has the baselines.
        """
        target, version = judge.target, judge.environment.judge
        if self.index.find_baseline(problem.key, problem.digest, target, version):
            return None
        job = Job("evaluation", Key(problem.key, problem.digest, "", target, version), "", "", worker)
        plan = self._plan_baseline(job, problem, judge)
        return Work(job, plan, ahead=True) if isinstance(plan, Ask) else "its baselines were lost too often"

    def draft(self, work: Work, answer: JudgeAnswer) -> EntryDraft | None:
        """Return a candidate's entry; None if the answer is from a measurement that the ledger does not have now."""
        job, ask = work.job, work.ask
        if answer.measured:
            return judged_draft(self.config.run, job, ask.language, answer, ask.baseline, ask.source_hash)
        row = ask.known_binaries.get(answer.binary or "")
        with suppress(LedgerError):
            measured = self.index.entry(row.problem, row.seq) if row else None
            return repeated_draft(job, ask.language, answer, measured, ask.source_hash) if measured else None
        return None

    def _entry_of(self, row: Row) -> Entry | None:
        known = self._baselines.get(row.problem)
        if known is not None and known[0] == row:
            return known[1]
        entry = self.index.entry(row.problem, row.seq)
        if entry is not None:
            self._baselines[row.problem] = row, entry
        return entry

    def _plan_baseline(self, job: Job, problem: Problem, judge: JudgeReady) -> Plan:
        losses = self.attempts.losses(baseline_identity(problem.key, problem.digest, job.key.target, job.key.judge))
        if len(losses) >= MOST:
            draft = lost_baseline_draft(self.config.run, problem.key, problem.digest, job.key.target, judge, losses)
            return Decided(draft, of_baseline=True)
        return Ask(self._request(problem, "baseline", job.key.target), problem)

    def _plan_candidate(self, job: Job, problem: Problem, baseline: Entry, judge: JudgeReady) -> Plan:
        def decided(verdict: Verdict, reason: str, language: str = "") -> Decided:
            of = len(problem.workloads)
            cites = job.cites if job.kind == "confirmation" else baseline.seq
            return Decided(unjudged_draft(self.config.run, job, language, judge, verdict, reason, of, cites))

        variants = fastest(baseline.baselines)
        if baseline.verdict is not Verdict.PASSED or len(variants) < len(problem.workloads):
            reason = baseline.reason or "no correct baseline for every workload"
            return decided(Verdict.INVALID_REFERENCE, f"see the baseline, entry {baseline.seq}: {reason}")
        try:
            solution = self._check(job, problem)
        except UnusableSolutionError as unusable:
            return decided(unusable.verdict, unusable.reason, unusable.language)
        losses = self.attempts.losses(job_identity(job))
        if len(losses) >= MOST:
            return decided(*verdict_of_losses(losses), solution.spec.language)
        known = self._known_binaries(job, solution.spec.language)
        added = {
            "baseline": variants,
            "sealed_baseline": fastest(baseline.sealed_baselines),
            "known_binaries": {binary: Verdict(str(row.verdict)) for binary, row in known.items()},
        }
        request = self._request(problem, job.kind, job.key.target, solution.directory).model_copy(update=added)
        return Ask(request, problem, solution.spec.language, baseline, source_hash(solution), known)

    def _known_binaries(self, job: Job, language: Language) -> Mapping[str, Row]:
        """The binaries that need no measurement: a confirmation is always one, and host code has its own times."""
        if job.kind != "evaluation" or language != "cuda":
            return {}
        key = job.key
        return self.index.binaries(key.problem, key.problem_digest, key.target, key.judge, self.config.run)

    def _check(self, job: Job, problem: Problem) -> Solution:
        """The candidate's solution.

        Raises:
            UnusableSolutionError: it is no solution, or none that the run allows.
        """
        try:
            directory = self.snapshots.candidate(job.commit, problem.key, job.key.target, job.key.tree)
        except UnfitTreeError as error:
            raise UnusableSolutionError(error.what) from error
        return usable_solution(directory, problem.definition, self.config.languages, "this run allows")

    def _request(self, problem: Problem, kind: str, target: str, solution: Path | None = None) -> JudgeRequest:
        limits = self.config.judge
        return JudgeRequest.model_validate(
            {
                "id": uuid.uuid4().hex,
                "kind": kind,
                "problem": problem.key,
                "problem_dir": str(problem.directory),
                "problem_digest": problem.digest,
                "data_root": str(problem.data_root) if problem.data_root else None,
                "solution_dir": str(solution) if solution else None,
                "half_width": limits.half_width(target),
                "max_judge_s": limits.max_judge_s,
                "more_variants": limits.more_baselines if kind == "baseline" else (),
            }
        )


def job_identity(job: Job) -> Sequence[str]:
    """What a job's attempts are counted by."""
    return job.kind, job.key.problem, job.key.problem_digest, job.key.tree, job.key.target, job.key.judge


def baseline_identity_of(job: Job) -> Sequence[str]:
    """Identity by which attempts at the baseline of a job's problem are counted."""
    return baseline_identity(job.key.problem, job.key.problem_digest, job.key.target, job.key.judge)


def baseline_identity(problem: str, digest: str, target: str, judge: str) -> Sequence[str]:
    """What the attempts at a problem's baseline are counted by."""
    return "baseline", problem, digest, target, judge
