"""Report of the deep check of many problems after their exceptions, as data and as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.corpus.deep_check.check_problem import DeepFindings
from harness.corpus.deep_check.exceptions import ExceptionFile
from harness.model.printable import count_of

_FATES = {"killed": "killed", "indistinguishable": "indistinguishable from rounding", "excepted": "excepted",
          "survived": "survived"}  # fmt: skip


@dataclass(frozen=True)
class ProblemReport:
    """One problem's findings after the exceptions."""

    findings: DeepFindings
    failures: tuple[str, ...]
    excepted: dict[str, str] = field(default_factory=dict)
    """Title of a result -> reason of its exception."""
    stale: tuple[str, ...] = ()
    """Patterns of the problem's exceptions that cover no result."""

    @property
    def fates(self) -> Counter[str]:
        """Number of mutants by result, including `excepted`."""
        mutants = self.findings.verdicts.mutants
        return Counter("excepted" if item.title in self.excepted else item.fate for item in mutants)

    def as_data(self) -> dict[str, Any]:
        """Return the report as plain data for JSON."""
        findings = self.findings
        return {
            "problem": findings.key,
            "ok": not self.failures,
            "failures": list(self.failures),
            "mutants": {fate: self.fates[fate] for fate in _FATES},
            "results": [vars(item) for item in findings.verdicts.mutants],
            "refused_honest": [vars(item) for item in findings.verdicts.refusals],
            "exceptions": self.excepted,
            "stale_exceptions": list(self.stale),
            "precision_rule": findings.verdicts.note or "applied",
            "module": {"shapes": findings.module.shapes, "skipped": findings.module.skipped},
            "seconds": round(findings.seconds, 2),
        }


def report_on(findings: DeepFindings, exceptions: ExceptionFile, keys_of_graph: Sequence[str]) -> ProblemReport:
    """Return a problem's report: its findings after the exceptions.

    Args:
        exceptions: the exceptions of the directory of problems.
        keys_of_graph: keys of other problems with the same graph.
    """
    failures = [*findings.failures, *(f"the same graph as {key}" for key in keys_of_graph)]
    open_results = {
        item.title: f"a mutant survives: {item.title}, {item.detail}"
        for item in findings.verdicts.mutants
        if item.fate == "survived"
    }
    open_results |= {
        item.title: f"an honest implementation is refused: {item.title} inputs: {item.reason}"
        for item in findings.verdicts.refusals
    }
    reasons = {title: exceptions.reason(findings.key, title) for title in open_results}
    failures += [text for title, text in open_results.items() if reasons[title] is None]
    excepted = {title: reason for title, reason in reasons.items() if reason is not None}
    return ProblemReport(findings, tuple(failures), excepted, tuple(exceptions.stale(findings.key, list(open_results))))


def line_of(report: ProblemReport) -> str:
    """Return the report of a problem in one line."""
    findings = report.findings
    mutants = ", ".join(f"{report.fates[fate]} {fate}" for fate in _FATES if report.fates[fate])
    module = (
        f"module equal at {count_of(findings.module.shapes, 'shape')}"
        if findings.module.shapes
        else "module not compared"
    )
    state = "BAD" if report.failures else "ok "
    return f"{state}  {findings.key}  mutants: {mutants or 'none'}; {module}; {findings.seconds:.1f} s"


def summary(reports: Sequence[ProblemReport], wall_s: float) -> list[str]:
    """Return the summary of all problems as lines.

    Args:
        reports: one report for each problem.
        wall_s: duration of the check in seconds.
    """
    fates = sum((report.fates for report in reports), Counter[str]())
    modules = [report.findings.module for report in reports]
    skipped = Counter(module.skipped for module in modules if module.skipped is not None)
    failing = sum(bool(report.failures) for report in reports)
    compared = sum(module.shapes > 0 for module in modules)
    counts = [f"{fates[fate]} {word}" for fate, word in _FATES.items()]
    lines = [
        f"{count_of(len(reports), 'problem')} in {wall_s:.0f} s, {failing} with failures",
        f"{count_of(fates.total(), 'mutant')}: {', '.join(counts)}",
        f"{count_of(compared, 'problem')} compared with the original module",
    ]
    lines += [f"{number} not compared: {reason}" for reason, number in skipped.most_common()]
    without = [report.findings.key for report in reports if report.findings.verdicts.note is not None]
    if without:
        lines.append(f"{len(without)} without the rule on precision: {', '.join(without)}")
    stale = sum(len(report.stale) for report in reports)
    if stale:
        lines.append(count_of(stale, "stale exception"))
    return lines
