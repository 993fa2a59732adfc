"""Findings of the deep check of many problems, with the exceptions applied, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.corpus.deep_check.exceptions import ExceptionFile

if TYPE_CHECKING:
    from harness.corpus.deep_check.check_problem import DeepFindings

_FATES = {
    "killed": "killed",
    "indistinguishable": "indistinguishable from rounding",
    "excepted": "excepted",
    "survived": "survived",
}


@dataclass(frozen=True)
class ProblemReport:
    """One problem's findings after the exceptions."""

    findings: DeepFindings
    failures: tuple[str, ...]
    excepted: dict[str, str] = field(default_factory=dict)
    """Title of a result -> reason of its exception."""
    stale: tuple[str, ...] = ()
    """Exceptions of this problem that cover nothing."""

    @property
    def fates(self) -> Counter[str]:
        """Number of mutants by fate, `excepted` among them."""
        return Counter(
            "excepted" if item.title in self.excepted else item.fate for item in self.findings.verdicts.mutants
        )

    def as_data(self) -> dict[str, Any]:
        """The report as JSON."""
        found = self.findings
        return {
            "problem": found.key,
            "ok": not self.failures,
            "failures": list(self.failures),
            "mutants": {fate: self.fates[fate] for fate in _FATES},
            "results": [vars(item) for item in found.verdicts.mutants],
            "refused_honest": [vars(item) for item in found.verdicts.refusals],
            "exceptions": self.excepted,
            "stale_exceptions": list(self.stale),
            "precision_rule": found.verdicts.note or "applied",
            "module": {"shapes": found.module.shapes, "skipped": found.module.skipped},
            "seconds": round(found.seconds, 2),
        }


def report_on(found: DeepFindings, exceptions: ExceptionFile, same: Sequence[str]) -> ProblemReport:
    """Apply the exceptions to a problem's findings.

    Args:
        found: the findings.
        exceptions: of the directory of problems.
        same: keys of other problems with the same graph.
    """
    failures = list(found.failures)
    failures += [f"the same graph as {key}" for key in same]
    open_results = {
        item.title: f"a mutant survives: {item.title}, {item.detail}"
        for item in found.verdicts.mutants
        if item.fate == "survived"
    }
    open_results |= {
        item.title: f"an honest implementation is refused: {item.title} inputs: {item.reason}"
        for item in found.verdicts.refusals
    }
    reasons = {title: exceptions.reason(found.key, title) for title in open_results}
    failures += [text for title, text in open_results.items() if reasons[title] is None]
    excepted = {title: reason for title, reason in reasons.items() if reason is not None}
    return ProblemReport(found, tuple(failures), excepted, tuple(exceptions.stale(found.key, list(open_results))))


def line_of(report: ProblemReport) -> str:
    """One line on a problem."""
    found = report.findings
    mutants = ", ".join(f"{report.fates[fate]} {fate}" for fate in _FATES if report.fates[fate])
    module = f"module equal at {found.module.shapes} shapes" if found.module.shapes else "module not compared"
    state = "BAD" if report.failures else "ok "
    return f"{state}  {found.key}  mutants: {mutants or 'none'}; {module}; {found.seconds:.1f} s"


def summary(reports: Sequence[ProblemReport], wall_s: float) -> list[str]:
    """Lines on all problems together."""
    fates: Counter[str] = Counter()
    for report in reports:
        fates += report.fates
    skipped = Counter(
        report.findings.module.skipped for report in reports if report.findings.module.skipped is not None
    )
    failing = sum(bool(report.failures) for report in reports)
    compared = sum(report.findings.module.shapes > 0 for report in reports)
    counts = [f"{fates[fate]} {word}" for fate, word in _FATES.items()]
    lines = [
        f"{len(reports)} problems in {wall_s:.0f} s, {failing} with failures",
        f"{fates.total()} mutants: {', '.join(counts)}",
        f"{compared} problems compared with the original module",
    ]
    lines += [f"{number} not compared: {reason}" for reason, number in skipped.most_common()]
    without = [report.findings.key for report in reports if report.findings.verdicts.note is not None]
    if without:
        lines.append(f"{len(without)} without the rule on precision: {', '.join(without)}")
    stale = sum(len(report.stale) for report in reports)
    if stale:
        lines.append(f"{stale} stale exceptions")
    return lines
