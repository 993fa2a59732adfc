"""The `profile` tool: hardware counters of a candidate's launches, and a sentence that names the bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.agents.session import Answer, Submitted
from harness.model.counter_text import report_lines
from harness.model.counters import CounterReport

Profile = Callable[[Submitted, str | None], CounterReport | None]
"""Order a profile of a candidate on a workload (its uuid) from the judge; null when told to stop before."""
_INSTEAD = "Use submit's numbers: share of the bound per workload, and which sizes are worst."


def profile(
    target: str, passed: Submitted | None, wanted: str, axes: Mapping[str, str], order: Profile | None
) -> Answer:
    """Return the counters of the session's last submission that PASSED, or the reason why there are none.

    Args:
        target: of the run.
        passed: that submission.
        wanted: a workload's sizes or uuid, from the agent; empty for the workload with the most data.
        axes: workload uuid -> its sizes in words.
        order: orders the profile from the judge; None where no daemon runs.
    """
    if target == "cpu":
        return Answer(f"no hardware counters are read on the target cpu. {_INSTEAD}", failed=True)
    if order is None:
        return Answer(f"no judge makes profiles here. {_INSTEAD}", failed=True)
    if passed is None:
        return Answer("only a solution that PASSED is profiled; submit one first", failed=True)
    workload = None
    if wanted:
        named = [uuid for uuid, sizes in axes.items() if wanted == sizes or uuid.startswith(wanted)]
        if len(named) != 1:
            known = "; ".join(f"{uuid[:8]} ({sizes})" for uuid, sizes in axes.items())
            return Answer(f"{len(named)} workloads are called {wanted[:80]!r}; there are: {known}", failed=True)
        workload = named[0]
    report = order(passed, workload)
    if report is None:
        return Answer("the harness stops now", failed=True)
    lines = report_lines(report)
    if not report.kernels:
        lines.append(_INSTEAD)
    return Answer("\n".join(lines), failed=not report.kernels)
