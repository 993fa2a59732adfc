"""Ledger entries from the answers of judges. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.daemon.attempts import Loss
from harness.daemon.queue import Job, Key
from harness.model.entry import Candidate, Entry, EntryDraft, Fingerprint
from harness.model.judging import Baselines, JudgeAnswer, JudgeReady, Screened, Summary, Variant
from harness.model.verdict import EntryKind, Verdict

_MISSING = ("missing_baselines", "missing_sealed_baselines")
"""Fields of an environment: variant of the baseline -> reason for its missing time."""
_MEASURED = ("baselines", "sealed_baselines", "screened", "sealed_screened")
"""Fields of a measurement of baselines that its entry takes from the answer."""


def _draft(kind: EntryKind, run: str, key: Key, judge: JudgeAnswer | JudgeReady, **fields: Any) -> EntryDraft:  # noqa: ANN401 - of an entry
    """Return the entry of a measurement's key, with the device, environment and protocol of a judge."""
    return EntryDraft(
        kind=kind,
        run=run,
        problem=key.problem,
        problem_digest=key.problem_digest,
        target=key.target,
        device=judge.device,
        environment=judge.environment,
        judge_protocol=judge.protocol,
        **fields,
    )


def _outcome(answer: JudgeAnswer, *more_names: str) -> dict[str, Any]:
    """Return the fields of an entry that it takes from an answer: those of every entry, and the named ones."""
    names = ("verdict", "trust", "workloads", "cost", *more_names)
    return {"reason": _reason(answer), **{name: getattr(answer, name) for name in names}}


def baseline_draft(run: str, key: Key, answer: JudgeAnswer) -> EntryDraft:
    """Return the entry of a problem's measured baselines.

    Args:
        key: has the problem, its digest and the target.
    """
    return _draft(EntryKind.BASELINE, run, key, answer, **_outcome(answer, *_MEASURED))


def lost_baseline_draft(run: str, key: Key, judge: JudgeReady, losses: Sequence[Loss]) -> EntryDraft:
    """Return the entry of a problem whose reference ends every judge.

    Args:
        key: has the problem, its digest and the target.
        losses: the losses of judges over the baseline.
    """
    reason = f"measuring the baseline has {losses_in_words(losses)}"
    return _draft(EntryKind.BASELINE, run, key, judge, verdict=Verdict.INVALID_REFERENCE, reason=reason)


def judged_draft(
    run: str, job: Job, language: str, answer: JudgeAnswer, baseline: Entry | None, source_hash: str
) -> EntryDraft:
    """Return the entry of a candidate's evaluation or confirmation, from the judge's answer.

    An evaluation cites the baseline entry that it was compared with, a confirmation its evaluation. Both name the
    missing baselines, because these weaken a speed-up.

    Args:
        language: the solution's language; "" if unknown.
        baseline: the baseline entry that the candidate was compared with.
    """
    measured = baseline.environment.model_extra if baseline and baseline.environment else None
    missing = {name: reasons for name, reasons in (measured or {}).items() if name in _MISSING}
    return _draft(
        EntryKind(job.kind),
        run,
        job.key,
        answer.model_copy(update={"environment": answer.environment.model_copy(update=missing)}),
        cites=job.cites if job.kind == "confirmation" else baseline.seq if baseline else None,
        candidate=candidate(job, language),
        fingerprint=_fingerprint(job, answer, source_hash),
        **_outcome(answer, "recording", "resources", "summary"),
    )


def repeated_draft(job: Job, language: str, answer: JudgeAnswer, measured: Entry, source_hash: str) -> EntryDraft:
    """Return the entry of a candidate with the compiled code and launches of a measured one, whose numbers it repeats.

    Device and environment are those of the measurement, and the cost is that of the build.

    Args:
        measured: the evaluation of the same compiled code.
    """
    fields = {name: getattr(measured, name) for name in EntryDraft.model_fields}
    own = {
        "candidate": candidate(job, language),
        "fingerprint": _fingerprint(job, answer, source_hash),
        "answered_from": measured.seq,
        "cost": answer.cost,
    }
    return EntryDraft(**fields | own)


def _fingerprint(job: Job, answer: JudgeAnswer, source_hash: str) -> Fingerprint | None:
    return Fingerprint(source=source_hash, binary=answer.binary) if job.kind == "evaluation" else None


def unjudged_draft(
    run: str, job: Job, language: str, judge: JudgeReady, verdict: Verdict, reason: str, of: int, cites: int | None
) -> EntryDraft:
    """Return the entry of a candidate that has a verdict without a judge's answer: no workload passed.

    Args:
        language: the solution's language; "" if unknown.
        reason: its reason, in one line.
        of: the number of the problem's workloads.
        cites: `seq` of the baseline entry, or of a confirmation's evaluation.
    """
    answer = {"verdict": verdict, "reason": reason, "summary": Summary(passed=0, of=of)}
    return _draft(EntryKind(job.kind), run, job.key, judge, cites=cites, candidate=candidate(job, language), **answer)


def champion_draft(confirmation: Entry) -> EntryDraft:
    """Return the entry that makes a confirmed candidate the champion."""
    names = ("run", "problem", "problem_digest", "target", "candidate", "summary")
    fields = {name: getattr(confirmation, name) for name in names}
    return EntryDraft(kind=EntryKind.CHAMPION, cites=confirmation.seq, **fields)


def candidate(job: Job, language: str) -> Candidate:
    """Return the solution that a job judges.

    Args:
        language: the solution's language; "" if unknown.
    """
    return Candidate(
        commit=job.commit, tree=job.key.tree, branch=job.branch, worker=job.worker, language=language or "unknown"
    )


def verdict_of_losses(losses: Sequence[Loss]) -> tuple[Verdict, str]:
    """Return the verdict on a candidate that has ended the judge as often as allowed, and its reason."""
    verdict = Verdict.TIMEOUT if all(loss.cause == "deadline" for loss in losses) else Verdict.RUNTIME_ERROR
    return verdict, f"judging this candidate has {losses_in_words(losses)}"


def losses_in_words(losses: Sequence[Loss]) -> str:
    """Return `ended the judge twice; ...`, with the reason of the last time."""
    times = "twice" if len(losses) == 2 else f"{len(losses)} times"
    return f"ended the judge {times}; the last time, {losses[-1].reason}"


def fastest(baselines: Baselines, screened: Screened) -> dict[str, Variant]:
    """Return workload -> the fastest correct variant that was timed in full; workloads without one are omitted.

    Args:
        baselines: times by one clock.
        screened: variants whose time comes from a few calls.
    """
    best: dict[str, Variant] = {}
    for uuid, variants in baselines.items():
        slow = screened.get(uuid, ())
        full = {name: latency for name, latency in variants.items() if latency is not None and name not in slow}
        if full:
            best[uuid] = min(full, key=lambda variant: full[variant])
    return best


def _reason(answer: JudgeAnswer) -> str | None:
    if answer.reason or answer.verdict is Verdict.PASSED:
        return answer.reason
    rows = [f"workload {row.uuid}: {row.reason or row.verdict}" for row in answer.workloads]
    failed = [row for row, result in zip(rows, answer.workloads, strict=True) if result.verdict is not Verdict.PASSED]
    return failed[0] if failed else f"the judge reported {answer.verdict} without a reason"
