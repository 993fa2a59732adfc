"""Messages of checks between daemon and judge, and files of a worker's request. A check does not time a solution.

A check makes no ledger entry. It reports to an agent within seconds whether a solution builds and is correct.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.model.base_models import StrictModel
from harness.model.counters import KernelResources
from harness.model.verdict import Verdict

ShownCode = Literal["", "assembly", "ptx", "sass"]
"""Code of a build that a check shows: none, the CPU's assembly, PTX, or a GPU's machine code."""


class CheckOrder(StrictModel):
    """A worker's request to the daemon; the solution is in the same directory."""

    id: str
    worker: str
    problem: str
    target: str
    kind: Literal["check", "baseline"] = "check"
    """`baseline`: measure the problem's baselines if they are missing; no solution is checked."""
    show: ShownCode = ""
    function: str = ""
    """Part of the name of the function or kernel whose code is shown; empty for the entry."""


class CheckRequest(StrictModel):
    """Build a candidate and compare its outputs with the reference, also while a candidate is being judged."""

    op: Literal["check"] = "check"
    id: str
    problem: str
    problem_dir: str
    problem_digest: str
    data_root: str | None = None
    solution_dir: str
    show: ShownCode = ""
    function: str = ""


class BuildReport(StrictModel):
    """Warnings, resources and code of a build."""

    warnings: tuple[str, ...] = ()
    kernels: tuple[KernelResources, ...] = ()
    """Of sealed builds."""
    code: str = ""
    """The requested code, cut to a limited number of lines, or the reason why it cannot be shown."""


class CheckedWorkload(StrictModel):
    """One workload of a check."""

    uuid: str
    verdict: Verdict
    reason: str | None = None
    max_abs_error: float | None = None
    matched: float | None = None
    """Share of elements within the tolerance: the minimum over all calls."""
    calls: int = 0


class CheckAnswer(StrictModel):
    """The outcome of a check."""

    event: Literal["checked"] = "checked"
    id: str
    verdict: Verdict | None
    """null where this machine could not run the check; see `reason`."""
    reason: str | None = None
    workloads: tuple[CheckedWorkload, ...] = ()
    """The checked workloads, in the problem's order."""
    unchecked: int = 0
    """Number of workloads that were not checked: the time limit expired, or an earlier failure ended the process."""
    build: BuildReport = Field(default_factory=BuildReport)
    build_s: float = 0.0
    check_s: float = 0.0


class CheckReply(StrictModel):
    """The daemon's reply to a worker."""

    answer: CheckAnswer | None = None
    """null for a baseline: the ledger contains its entry."""
    error: str | None = None
    """Reason for a missing answer."""
