"""What the judge found, in the few lines that an agent needs: the verdict, what limits the kernel, what to try.

Short on purpose: an agent reads hundreds of these, and every line of each is paid for again at every later turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.ledger.candidates import TriedCandidate
from harness.model.counter_text import resource_lines
from harness.model.entry import Entry
from harness.model.judging import WorkloadResult
from harness.model.truncate import one_line
from harness.model.verdict import Verdict

_SHOWN_WORKLOADS = 8
_SHOWN_ATTEMPTS = 12
_REASON, _TOLD = 900, 120
"""Characters of a reason, and of the message and reason of an earlier attempt."""
_NEAR = 0.8
"""From this share of the bound on, the hardware is what limits."""

TO_DO = {
    Verdict.COMPILE_ERROR: "fix what the compiler reports; the first error is the one that counts",
    Verdict.RUNTIME_ERROR: "look for accesses out of bounds, wrong launch sizes, missing arguments; the last block is "
    "where sizes that are no multiple of the tile show",
    Verdict.INCORRECT_SHAPE: "compare outputs with definition.json: order, shape, layout",
    Verdict.INCORRECT_DTYPE: "write every output in the dtype that definition.json gives it",
    Verdict.INCORRECT_NUMERICAL: "read the pattern: which rows, columns or tiles are wrong, and how the values differ; "
    "`docs` has a table from patterns to mistakes (debugging)",
    Verdict.TIMEOUT: "it hangs or is far too slow: look for a deadlock or a serial loop",
    Verdict.REWARD_HACK: "the judge takes this for cheating: compute the reference on every call's own inputs",
    Verdict.INVALID_REFERENCE: "the problem itself is broken; leave a note and stop",
    Verdict.SUSPECT: "faster than the hardware allows, or clocks disagree: a person looks at it",
}
"""The next step after a verdict."""


def outcome(entry: Entry, *, best: float | None, axes: dict[str, str]) -> str:
    """An entry as an agent reads it.

    Args:
        entry: the evaluation.
        best: the best speed-up known before it, by anyone.
        axes: workload uuid -> its sizes, for naming workloads.
    """
    lines = [_head(entry, best), _repeated(entry), *_workloads(entry.workloads, axes)]
    lines += resource_lines(entry.resources)
    if entry.verdict is Verdict.PASSED:
        lines.append(_limit(entry.workloads, axes))
    else:
        failing = next((work for work in entry.workloads if work.verdict is not Verdict.PASSED), None)
        if failing is not None:
            lines.append(
                f"first failing: {_name(failing, axes)}: {one_line(failing.reason or str(failing.verdict), _REASON)}"
            )
        lines.append(f"to do: {TO_DO.get(entry.verdict or Verdict.RUNTIME_ERROR, 'read the reason')}")
    return "\n".join(line for line in lines if line)


def _head(entry: Entry, best: float | None) -> str:
    summary = entry.summary
    if entry.verdict is not Verdict.PASSED or summary is None or summary.speedup is None:
        if any(work.reason for work in entry.workloads if work.verdict is not Verdict.PASSED):
            return str(entry.verdict)  # the reason follows, with the workload
        return f"{entry.verdict}: {one_line(entry.reason or '', _REASON)}"
    low, high = summary.speedup_ci95 or (summary.speedup, summary.speedup)
    score = f", score {summary.score:.2f} of 1" if summary.score is not None else ""
    if best is None:
        against = "the first that passes"
    elif summary.speedup > best:
        against = f"a new best (before: {best:.3f}x); it is confirmed by a second evaluation"
    else:
        against = f"not the best (best: {best:.3f}x)"
    return f"PASSED {summary.speedup:.3f}x over the baseline ({low:.3f} to {high:.3f}{score}; {entry.trust}), {against}"


def _repeated(entry: Entry) -> str:
    if entry.answered_from is None:
        return ""
    return (
        f"not measured: code and launches are those of entry {entry.answered_from}, whose numbers these are; "
        "change what the device executes"
    )


def _workloads(workloads: Sequence[WorkloadResult], axes: dict[str, str]) -> list[str]:
    timed = [work for work in workloads if work.latency_us is not None and work.baseline_us is not None]
    worst = sorted(timed, key=lambda work: work.speedup or 0.0)[:_SHOWN_WORKLOADS]
    lines = ["workload: latency us / baseline us / bound us = speed-up"] if worst else []
    for work in worst:
        bound = "?" if work.sol_us is None else f"{work.sol_us:.2f}"
        lines.append(
            f"  {_name(work, axes)}: {work.latency_us:.2f} / {work.baseline_us:.2f} ({work.variant or '?'}) / {bound} "
            f"= {work.speedup or 0:.2f}x"
        )
    if len(timed) > len(worst):
        lines.append(f"  and {len(timed) - len(worst)} faster ones")
    return lines


def _limit(workloads: Sequence[WorkloadResult], axes: dict[str, str]) -> str:
    """Name the workload that is furthest from its bound, and give a hint."""
    shares = {
        work.uuid: work.sol_us / work.latency_us for work in workloads if work.sol_us is not None and work.latency_us
    }
    if not shares:
        return "limits: no bound is known for this problem; compare workloads with each other"
    least = min(shares, key=lambda uuid: shares[uuid])
    work = next(each for each in workloads if each.uuid == least)
    share = shares[least]
    if share >= _NEAR:
        return f"limits: every workload is at {share:.0%} of its bound or more: only doing less work helps now"
    small = min(workloads, key=lambda each: each.sol_us or float("inf")).uuid == least
    hint = (
        "it is the smallest: launches, tails and too few blocks weigh most there"
        if small and len(workloads) > 1
        else "look at memory traffic first (fusion, vector width, reuse), then at occupancy and instruction mix"
    )
    return f"limits: {_name(work, axes)} runs at {share:.0%} of its bound, the furthest from it; {hint}"


def attempts(candidates: Sequence[TriedCandidate], lessons: Sequence[str], query: str) -> str:
    """Return the attempts that match the query, the best first and the failed ones last, then the lessons."""
    words = query.lower().split()

    def fits(text: str) -> bool:
        return all(word in text.lower() for word in words)

    lines = [_attempt(each) for each in sorted(candidates, key=_order)]
    lines = [line for line in lines if fits(line)]
    matching = [f"lesson: {lesson}" for lesson in lessons if fits(lesson)][-_SHOWN_ATTEMPTS:]
    more = [f"and {len(lines) - _SHOWN_ATTEMPTS} more: search with words"] if len(lines) > _SHOWN_ATTEMPTS else []
    whole = [*lines[:_SHOWN_ATTEMPTS], *more, *matching]
    about = f" with {query!r}" if words else ""
    return "\n".join(whole) or f"nothing was tried on this problem{about} yet"


def _order(attempt: TriedCandidate) -> tuple[bool, float]:
    return attempt.verdict is not Verdict.PASSED, -(attempt.speedup or 0.0)


def _attempt(attempt: TriedCandidate) -> str:
    if attempt.verdict is None:
        outcome = "under way"
    elif attempt.verdict is Verdict.PASSED:
        outcome = f"PASSED {attempt.speedup or 0:.3f}x"
    else:
        outcome = f"{attempt.verdict}: {one_line(attempt.reason or '', _TOLD)}"
    return (
        f"{attempt.commit[:10] or attempt.tree[:10]} {attempt.worker}: {outcome} | {one_line(attempt.message, _TOLD)}"
    )


def _name(work: WorkloadResult, axes: dict[str, str]) -> str:
    return axes.get(work.uuid) or work.uuid[:12]
