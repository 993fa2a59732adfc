"""The `profile` tool: what the hardware counted during a candidate's launches, in numbers and in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.agents.session import Answer, Submitted
from harness.model.counter_text import report_lines
from harness.model.counters import CounterReport

Profile = Callable[[Submitted, str | None], CounterReport | None]
"""Has the judge profile a candidate on a workload (its uuid); null when the worker was told to stop before."""
_INSTEAD = "Use submit's numbers: share of the bound per workload, and which sizes are worst."


def profile(
    target: str, passed: Submitted | None, wanted: str, axes: Mapping[str, str], make: Profile | None
) -> Answer:
    """Counters of the session's last submission that PASSED, or why there are none.

    Args:
        target: of the run.
        passed: that submission.
        wanted: a workload, as the agent names it: its sizes, or its uuid; empty for the one with the most data.
        axes: workload uuid -> its sizes in words.
        make: the way to the judge; None where no daemon runs.
    """
    if target == "cpu":
        return Answer(f"no hardware counters are read on the target cpu. {_INSTEAD}", failed=True)
    if make is None:
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
    report = make(passed, workload)
    if report is None:
        return Answer("the harness stops now", failed=True)
    lines = report_lines(report)
    if not report.kernels:
        lines.append(_INSTEAD)
    return Answer("\n".join(lines), failed=not report.kernels)
