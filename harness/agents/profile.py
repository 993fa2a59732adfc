"""The `profile` tool: hardware counters of a candidate's launches, and a sentence that names the bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.agents.session import Answer, Submitted
from harness.model.counters import CounterReport, report_lines

Profile = Callable[[Submitted, str | None], CounterReport | None]
"""Order a profile of a candidate on a workload (its uuid) from the judge; None if the worker must stop first."""
_ALTERNATIVE = "Use the result of `submit`: the share of the bound per workload, and which sizes are worst."


def profile(
    target: str, passed: Submitted | None, workload_name: str, axes: Mapping[str, str], order: Profile | None
) -> Answer:
    """Return the counters of the session's last submission that PASSED, or the reason why there are none.

    Args:
        target: such as `cpu` or `h200`.
        passed: the last submission that PASSED; None without one.
        workload_name: a workload's sizes or uuid; empty for the workload with the most data.
        axes: workload uuid -> its sizes as text.
        order: orders the profile from the judge; None if no daemon runs.
    """
    if target == "cpu":
        return Answer(f"hardware counters are not available on the target cpu. {_ALTERNATIVE}", failed=True)
    if order is None:
        return Answer(f"no judge is available for profiles. {_ALTERNATIVE}", failed=True)
    if passed is None:
        return Answer("only a solution that PASSED can be profiled; submit one first", failed=True)
    workload = None
    if workload_name:
        named = [uuid for uuid, sizes in axes.items() if workload_name == sizes or uuid.startswith(workload_name)]
        if len(named) != 1:
            choices = "; ".join(f"{uuid[:8]} ({sizes})" for uuid, sizes in axes.items())
            count = len(named)
            return Answer(f"{count} workloads match {workload_name[:80]!r}; expected one of: {choices}", failed=True)
        workload = named[0]
    report = order(passed, workload)
    if report is None:
        return Answer("the harness stops now", failed=True)
    lines = report_lines(report)
    if not report.kernels:
        lines.append(_ALTERNATIVE)
    return Answer("\n".join(lines), failed=not report.kernels)
