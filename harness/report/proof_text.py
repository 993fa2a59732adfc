"""The proof in words: what a win branch's commit and pull request say, derived from the ledger alone.

The same entries always give the same text, so that `harness proof` can make it again and compare.
"""

from __future__ import annotations

from harness.ledger.champions import MeasuredCandidate, doubts
from harness.model.entry import Entry
from harness.model.judging import WorkloadResult
from harness.model.paths import ledger_file, solution_path
from harness.model.printable import markdown_text, printable
from harness.model.weaknesses import weakness_mark

ENTRY_TRAILER = "Ledger-Entry"
_TABLE = ("workload", "latency us", "baseline us", "by", "speed-up", "95 % interval", "bound us", "score", "checked")


def subject(winner: MeasuredCandidate) -> str:
    """The commit's first line and the pull request's title."""
    entry = winner.counts
    return f"Make {entry.problem} {_speedup(entry)}{weakness_mark(winner.weaknesses)} as fast on {entry.target}"


def proof_text(winner: MeasuredCandidate) -> str:
    """The whole proof as Markdown, ending in trailers that name the entry and its hash."""
    entry, evaluation = winner.counts, winner.evaluation
    low, high = _interval(entry)
    measured = "second, fresh measurement" if winner.confirmation else "only measurement"
    lines = [
        (
            f"The judge measured {_speedup(entry)}{weakness_mark(winner.weaknesses)} the fastest baseline's speed "
            f"over {len(entry.workloads)} workloads (geometric mean; 95 % interval {low} to {high}), in a "
            f"{measured} of this very tree."
        ),
        "",
        workload_table(entry),
        "",
        *device_lines(entry),
        "",
        "Measure it again, with this branch checked out:",
        "",
        f"    {reproduce(entry)}",
        "",
    ]
    known = doubts(winner)
    if known:
        lines += ["Known about it:", "", *(f"- {markdown_text(doubt, keep_code=True)}" for doubt in known), ""]
    candidate = evaluation.candidate
    trailers = [
        f"{ENTRY_TRAILER}: {ledger_file(entry.problem)} seq {entry.seq} {winner.hash}",
        f"Evaluation: seq {evaluation.seq}",
        f"Problem-Digest: {entry.problem_digest}",
        f"Solution-Tree: {winner.tree}",
        f"Run: {entry.run}",
        f"Worker: {candidate.worker if candidate else 'unknown'}",
        f"Candidate: {candidate.commit if candidate else 'unknown'}",
    ]
    return "\n".join([*lines, *map(printable, trailers)])


def message(winner: MeasuredCandidate) -> str:
    """The whole message of a win branch's commit."""
    return f"{subject(winner)}\n\n{proof_text(winner)}\n"


def reproduce(entry: Entry) -> str:
    """The command that measures a merged or checked out solution again."""
    device = "cpu" if entry.target == "cpu" else "cuda"
    return f"harness evaluate {solution_path(entry.problem, entry.target)} --device {device}"


def workload_table(entry: Entry) -> str:
    """One line a workload, as Markdown."""
    rows = [_TABLE, tuple("---" for _ in _TABLE), *(_cells(one) for one in entry.workloads)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def device_lines(entry: Entry) -> list[str]:
    """Where and with what it was measured, a Markdown list item each."""
    device = entry.device.model_dump(exclude_none=True) if entry.device else {}
    environment = entry.environment.model_dump(exclude_none=True) if entry.environment else {}
    others = ", ".join(f"{name} {value}" for name, value in sorted(device.items()) if name not in {"name", "id"})
    software = ", ".join(f"{name} {value}" for name, value in environment.items() if name != "judge")
    lines = [
        f"device: {device.get('name', 'unknown')} ({device.get('id', '?')}){f'; {others}' if others else ''}",
        f"environment: {software or 'unknown'}",
        f"judge: {environment.get('judge', 'unknown')}; trust: {entry.trust}; at {entry.at}",
    ]
    return [f"- {markdown_text(line)}" for line in lines]


def _cells(result: WorkloadResult) -> tuple[str, ...]:
    low_high = result.speedup_ci95
    return (
        markdown_text(result.uuid),
        _number(result.latency_us),
        _number(result.baseline_us),
        markdown_text(result.variant or "-"),
        f"{result.speedup:.3f}x" if result.speedup is not None else str(result.verdict),
        f"{low_high[0]:.3f} to {low_high[1]:.3f}" if low_high else "-",
        _number(result.sol_us),
        f"{result.score:.3f}" if result.score is not None else "-",
        f"{result.checked} of {result.calls}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _speedup(entry: Entry) -> str:
    return f"{entry.summary.speedup:.3f}x" if entry.summary and entry.summary.speedup is not None else "(unmeasured)"


def _interval(entry: Entry) -> tuple[str, str]:
    found = entry.summary.speedup_ci95 if entry.summary else None
    return (f"{found[0]:.3f}", f"{found[1]:.3f}") if found else ("?", "?")
