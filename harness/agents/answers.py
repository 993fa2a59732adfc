"""Evaluations, checks and attempts as short text for an agent: verdict, bottleneck, next step.

The text is short because an agent reads hundreds of answers, and the run pays for each line again at every later turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.ledger.candidates import TriedCandidate
from harness.model.counters import resource_lines
from harness.model.entry import Entry
from harness.model.judging import CheckAnswer, CheckedWorkload, WorkloadResult
from harness.model.printable import one_line
from harness.model.verdict import Verdict

_SHOWN_WORKLOADS = 8
_SHOWN_ATTEMPTS = 12
_LONGEST_REASON, _LONGEST_ATTEMPT_TEXT = 900, 120
"""Characters of a reason, and of the message and the reason of an earlier attempt. The limit of a reason is long
because the pattern of wrong elements is at its end."""
_LONGEST_CODE = 12_000
_NEAR_BOUND = 0.8
"""A workload at this share of its bound or more counts as limited by the hardware."""

TO_DO = {
    Verdict.COMPILE_ERROR: "fix the errors that the compiler reports, the first one first",
    Verdict.RUNTIME_ERROR: "check for accesses out of bounds, wrong launch sizes and missing arguments; sizes that are "
    "not a multiple of the tile fail in the last block",
    Verdict.INCORRECT_SHAPE: "compare the outputs with definition.json: order, shape, layout",
    Verdict.INCORRECT_DTYPE: "write every output in the dtype that definition.json declares",
    Verdict.INCORRECT_NUMERICAL: "read the pattern: which rows, columns or tiles are wrong, and how the values differ; "
    "`docs` has a table from patterns to mistakes (debugging)",
    Verdict.TIMEOUT: "the solution hangs or is far too slow: check for a deadlock or a serial loop",
    Verdict.REWARD_HACK: "the judge classifies this as cheating: compute the reference on the inputs of every call",
    Verdict.INVALID_REFERENCE: "the reference of this problem fails; leave a note and stop",
    Verdict.SUSPECT: "faster than the hardware allows, or the clocks disagree: a person reviews it",
}
"""The next step for an agent after a verdict."""


def outcome_text(entry: Entry, *, best: float | None, axes: dict[str, str]) -> str:
    """Return an evaluation as text for an agent.

    Args:
        best: the best speed-up of any earlier attempt; None if none passed.
        axes: workload uuid -> its sizes as text.
    """
    lines = [_head(entry, best)]
    if entry.answered_from is not None:
        lines.append(
            f"not measured: code and launches are those of entry {entry.answered_from}, whose numbers these are; "
            "change what the device executes"
        )
    lines += [*_workloads(entry.workloads, axes), *resource_lines(entry.resources)]
    if entry.verdict is Verdict.PASSED:
        lines.append(_limit(entry.workloads, axes))
    else:
        failing = next((work for work in entry.workloads if work.verdict is not Verdict.PASSED), None)
        if failing is not None:
            reason = one_line(failing.reason or str(failing.verdict), _LONGEST_REASON)
            lines.append(f"first failing: {_name(failing, axes)}: {reason}")
        lines.append(f"to do: {TO_DO.get(entry.verdict or Verdict.RUNTIME_ERROR, 'read the reason')}")
    return "\n".join(lines)


def _head(entry: Entry, best: float | None) -> str:
    summary = entry.summary
    if entry.verdict is not Verdict.PASSED or summary is None or summary.speedup is None:
        if any(work.reason for work in entry.workloads if work.verdict is not Verdict.PASSED):
            return str(entry.verdict)  # the reason follows, with the workload
        return f"{entry.verdict}: {one_line(entry.reason or '', _LONGEST_REASON)}"
    speedup_ci95_low, speedup_ci95_high = summary.speedup_ci95 or (summary.speedup, summary.speedup)
    score = f", score {summary.score:.2f} of 1" if summary.score is not None else ""
    if best is None:
        rank = "the first that passes"
    elif summary.speedup > best:
        rank = f"a new best (before: {best:.3f}x); a second evaluation confirms it"
    else:
        rank = f"not the best (best: {best:.3f}x)"
    interval = f"{speedup_ci95_low:.3f} to {speedup_ci95_high:.3f}"
    return f"PASSED {summary.speedup:.3f}x over the baseline ({interval}{score}; {entry.trust}), {rank}"


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
    """Return a line that names the workload furthest from its bound, with a hint."""
    shares = {
        work.uuid: work.sol_us / work.latency_us for work in workloads if work.sol_us is not None and work.latency_us
    }
    if not shares:
        return "limits: no bound is available for this problem; compare workloads with each other"
    furthest = min(shares, key=lambda uuid: shares[uuid])
    work = next(work for work in workloads if work.uuid == furthest)
    share = shares[furthest]
    if share >= _NEAR_BOUND:
        return f"limits: every workload is at {share:.0%} of its bound or more: only less work makes it faster"
    is_smallest = min(workloads, key=lambda work: work.sol_us or float("inf")).uuid == furthest
    hint = (
        "it is the smallest workload: launches, tails and too few blocks dominate there"
        if is_smallest and len(workloads) > 1
        else "reduce memory traffic first (fusion, vector width, reuse), then check occupancy and instruction mix"
    )
    return f"limits: {_name(work, axes)} runs at {share:.0%} of its bound, the furthest from it; {hint}"


def check_outcome(answer: CheckAnswer, *, axes: Mapping[str, str]) -> str:
    """Return a check's answer as lines of text.

    Args:
        axes: workload uuid -> its sizes as text.
    """
    lines = [_check_head(answer)]
    wrong = next((work for work in answer.workloads if work.verdict is not Verdict.PASSED), None)
    if wrong is not None:
        lines.append(f"workload {_name(wrong, axes)}: {one_line(wrong.reason or '', _LONGEST_REASON)}")
        passed = [_name(work, axes) for work in answer.workloads if work.verdict is Verdict.PASSED]
        if passed:
            lines.append(f"correct on: {', '.join(passed[:8])}{' ...' * (len(passed) > 8)}")
    elif answer.reason is not None:
        lines.append(one_line(answer.reason, _LONGEST_REASON))
    if answer.verdict in TO_DO:
        lines.append(f"to do: {TO_DO[answer.verdict]}")
    lines += [f"warning: {one_line(text, 240)}" for text in answer.build.warnings]
    lines += resource_lines(answer.build.kernels)
    if answer.build.code:
        lines.append(answer.build.code[:_LONGEST_CODE])
    return "\n".join(lines)


def _check_head(answer: CheckAnswer) -> str:
    durations = f"built in {answer.build_s:.1f} s, compared in {answer.check_s:.1f} s"
    if answer.verdict is None:
        return "the check failed for a reason outside your solution"
    if answer.verdict is Verdict.COMPILE_ERROR:
        return "COMPILE_ERROR"
    unchecked = f"; {answer.unchecked} workloads not checked" if answer.unchecked else ""
    if answer.verdict is Verdict.PASSED:
        largest_error = max((work.max_abs_error or 0.0 for work in answer.workloads), default=0.0)
        correct = f"correct on {len(answer.workloads)} workloads, largest error {largest_error:.3g}"
        return f"PASSED without timing: {correct}{unchecked} ({durations})"
    return f"{answer.verdict}{unchecked} ({durations})"


def attempts_text(candidates: Sequence[TriedCandidate], lessons: Sequence[str], query: str) -> str:
    """Return the attempts and the lessons that match a query, one line each.

    Args:
        candidates: the attempts; those that passed come first, in descending order of their speed-up.
        lessons: one line each.
        query: words that a line must contain, in any case and order; empty for all lines.
    """
    words = query.lower().split()

    def matches(text: str) -> bool:
        return all(word in text.lower() for word in words)

    ranked = sorted(candidates, key=lambda attempt: (attempt.verdict is not Verdict.PASSED, -(attempt.speedup or 0.0)))
    attempts = [line for line in map(_attempt, ranked) if matches(line)]
    lines = attempts[:_SHOWN_ATTEMPTS]
    if len(attempts) > len(lines):
        lines.append(f"and {len(attempts) - len(lines)} more: search with words")
    lines += [f"lesson: {lesson}" for lesson in lessons if matches(lesson)][-_SHOWN_ATTEMPTS:]
    about = f" with {query!r}" if words else ""
    return "\n".join(lines) or f"there is no attempt on this problem{about} yet"


def _attempt(attempt: TriedCandidate) -> str:
    if attempt.verdict is None:
        outcome = "in progress"
    elif attempt.verdict is Verdict.PASSED:
        outcome = f"PASSED {attempt.speedup or 0:.3f}x"
    else:
        outcome = f"{attempt.verdict}: {one_line(attempt.reason or '', _LONGEST_ATTEMPT_TEXT)}"
    message = one_line(attempt.message, _LONGEST_ATTEMPT_TEXT)
    return f"{attempt.commit[:10] or attempt.tree[:10]} {attempt.worker}: {outcome} | {message}"


def _name(work: WorkloadResult | CheckedWorkload, axes: Mapping[str, str]) -> str:
    return axes.get(work.uuid) or work.uuid[:12]
