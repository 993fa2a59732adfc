"""The text of a win branch's commit and pull request, derived from the ledger only.

The same entries always give the same text, because `harness proof` generates it again and compares.
"""

from __future__ import annotations

from harness.ledger.champions import MeasuredCandidate, doubts
from harness.model.entry import Entry
from harness.model.judging import WorkloadResult
from harness.model.paths import ledger_file, solution_path
from harness.model.printable import interval_of, markdown_text, printable
from harness.model.weaknesses import weakness_mark

ENTRY_TRAILER = "Ledger-Entry"
_TABLE = ("workload", "latency us", "baseline us", "by", "speed-up", "95 % interval", "bound us", "score", "checked")


def subject(winner: MeasuredCandidate) -> str:
    """Return the first line of the commit, which is also the title of the pull request."""
    entry = winner.counts
    return f"Make {entry.problem} {_speedup(entry)}{weakness_mark(winner.weaknesses)} as fast on {entry.target}"


def proof_text(winner: MeasuredCandidate) -> str:
    """Return the proof as Markdown; it ends with trailers that name the entry and its hash."""
    entry, evaluation = winner.counts, winner.evaluation
    interval = interval_of(entry.summary.speedup_ci95) if entry.summary and entry.summary.speedup_ci95 else "? to ?"
    measured = "second, fresh measurement" if winner.confirmation else "only measurement"
    lines = [
        (
            f"The judge measured {_speedup(entry)}{weakness_mark(winner.weaknesses)} the fastest baseline's speed "
            f"over {len(entry.workloads)} workloads (geometric mean; 95 % interval {interval}), "
            f"in a {measured} of this very tree."
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
    doubts_of_winner = doubts(winner)
    if doubts_of_winner:
        items = (f"- {markdown_text(doubt, keep_code=True)}" for doubt in doubts_of_winner)
        lines += ["Known about it:", "", *items, ""]
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
    """Return the complete message of a win branch's commit."""
    return f"{subject(winner)}\n\n{proof_text(winner)}\n"


def reproduce(entry: Entry) -> str:
    """Return the command that measures a merged or checked-out solution again."""
    device = "cpu" if entry.target == "cpu" else "cuda"
    return f"harness evaluate {solution_path(entry.problem, entry.target)} --device {device}"


def workload_table(entry: Entry) -> str:
    """Return a Markdown table with a line per workload."""
    rows = [_TABLE, tuple("---" for _ in _TABLE), *(_cells(workload) for workload in entry.workloads)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def device_lines(entry: Entry) -> list[str]:
    """Return Markdown list items that name the device, the environment and the judge of an entry."""
    device = entry.device.model_dump(exclude_none=True) if entry.device else {}
    environment = entry.environment.model_dump(exclude_none=True) if entry.environment else {}
    device_facts = ", ".join(f"{name} {value}" for name, value in sorted(device.items()) if name not in {"name", "id"})
    software = ", ".join(f"{name} {value}" for name, value in environment.items() if name != "judge")
    device_name = f"{device.get('name', 'unknown')} ({device.get('id', '?')})"
    lines = [
        f"device: {device_name}{f'; {device_facts}' if device_facts else ''}",
        f"environment: {software or 'unknown'}",
        f"judge: {environment.get('judge', 'unknown')}; trust: {entry.trust}; at {entry.at}",
    ]
    return [f"- {markdown_text(line)}" for line in lines]


def _cells(result: WorkloadResult) -> tuple[str, ...]:
    return (
        markdown_text(result.uuid),
        _number(result.latency_us),
        _number(result.baseline_us),
        markdown_text(result.variant or "-"),
        f"{result.speedup:.3f}x" if result.speedup is not None else str(result.verdict),
        interval_of(result.speedup_ci95),
        _number(result.sol_us),
        f"{result.score:.3f}" if result.score is not None else "-",
        f"{result.checked} of {result.calls}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _speedup(entry: Entry) -> str:
    return f"{entry.summary.speedup:.3f}x" if entry.summary and entry.summary.speedup is not None else "(unmeasured)"
