"""The answer of a check as text for an agent: verdict, the first wrong workload, warnings, resources, code."""

from __future__ import annotations

from collections.abc import Mapping

from harness.agents.answers import TO_DO
from harness.model.counters import resource_lines
from harness.model.judging import CheckAnswer
from harness.model.printable import one_line
from harness.model.verdict import Verdict

_REASON = 900
"""Characters of a reason. The limit is long because the pattern of wrong elements is at its end."""
_LONGEST_CODE = 12_000


def check_outcome(answer: CheckAnswer, *, axes: Mapping[str, str]) -> str:
    """Return a check's answer as lines of text.

    Args:
        answer: the judge's answer.
        axes: workload uuid -> its sizes as text.
    """
    lines = [_head(answer)]
    wrong = next((work for work in answer.workloads if work.verdict is not Verdict.PASSED), None)
    if wrong is not None:
        lines.append(f"workload {axes.get(wrong.uuid, wrong.uuid[:12])}: {one_line(wrong.reason or '', _REASON)}")
        passed = [axes.get(work.uuid, work.uuid[:12]) for work in answer.workloads if work.verdict is Verdict.PASSED]
        if passed:
            lines.append(f"correct on: {', '.join(passed[:8])}{' ...' * (len(passed) > 8)}")
    elif answer.reason is not None:
        lines.append(one_line(answer.reason, _REASON))
    if answer.verdict in TO_DO:
        lines.append(f"to do: {TO_DO[answer.verdict]}")
    lines += [f"warning: {one_line(text, 240)}" for text in answer.build.warnings]
    lines += resource_lines(answer.build.kernels)
    if answer.build.code:
        lines.append(answer.build.code[:_LONGEST_CODE])
    return "\n".join(lines)


def _head(answer: CheckAnswer) -> str:
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
