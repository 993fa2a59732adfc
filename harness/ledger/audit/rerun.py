"""Selection of entries to measure again, and comparison of the new measurements with the entries."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.ledger.index import Index
from harness.model.champions import counts, rank
from harness.model.entry import Entry
from harness.model.judging import JudgeAnswer
from harness.model.sessions import Spread, estimate_of, prediction_interval, spread_between
from harness.model.verdict import EntryKind, Verdict


@dataclass(frozen=True)
class Rerun:
    """Result of a second measurement of one entry."""

    problem: str
    seq: int
    recorded: float | None
    """The speed-up in the ledger."""
    expected: tuple[float, float] | None
    """Interval of an honest second measurement, 95 % for all reruns together."""
    measured: float | None
    verdict: str
    holds: bool
    note: str = ""


def choose(
    index: Index, target: str, digest: Callable[[str], str | None], number: int, *, top: bool, seed: int | None
) -> list[Entry]:
    """Return entries of measured candidates of the problems' present forms: random ones, or the fastest.

    A candidate with a confirmation is represented by it, because that number counts. Entries of an older judge protocol
    are omitted: numbers of different protocols are not expected to agree.

    Args:
        index: the ledger's index, refreshed by the caller.
        digest: returns the digest of a problem's present form; None if the problem does not exist.
        top: choose the fastest entries.
    """
    passed = (row for row in index.rows(target=target) if counts(row) and row.verdict == Verdict.PASSED)
    rows = [row for row in passed if row.speedup_ci95_low is not None]
    confirmed = {(row.problem, row.cites) for row in rows if row.kind == EntryKind.CONFIRMATION}
    kinds = (EntryKind.EVALUATION, EntryKind.CONFIRMATION)
    standing = [row for row in rows if row.kind in kinds and (row.problem, row.seq) not in confirmed]
    current = {problem: digest(problem) for problem in {row.problem for row in standing}}
    fit = [row for row in standing if row.problem_digest == current[row.problem]]
    if top:
        picked = sorted(fit, key=rank, reverse=True)[:number]
    else:
        picked = random.Random(seed).sample(fit, min(number, len(fit)))  # noqa: S311 - a sample, not a secret
    return [entry for row in picked if (entry := index.entry(row.problem, row.seq)) is not None]


def sessions_of(index: Index, target: str) -> Spread:
    """Return the spread of measurements between sessions, from every evaluation and its confirmation.

    Args:
        index: the ledger's index, refreshed by the caller.
    """
    estimates = []
    for row in index.rows(target=target, kind=str(EntryKind.CONFIRMATION)):
        second = index.entry(row.problem, row.seq)
        first = index.entry(row.problem, row.cites) if row.cites else None
        if first and second and counts(second) and first.verdict is second.verdict is Verdict.PASSED:
            estimates.append((estimate_of(first.workloads), estimate_of(second.workloads)))
    return spread_between((first, second) for first, second in estimates if first and second)


def compare(entry: Entry, answer: JudgeAnswer, spread: Spread, *, together: int) -> Rerun:
    """Return the comparison of a new measurement with an entry.

    Args:
        spread: the spread of measurements between sessions.
        together: the number of reruns that share the 95 % confidence.
    """
    recorded = estimate_of(entry.workloads)
    fresh = estimate_of(answer.workloads)
    speedup = entry.summary.speedup if entry.summary else None
    if answer.verdict is not Verdict.PASSED or fresh is None or recorded is None or answer.summary.speedup is None:
        reason = answer.reason or "no speed-up was measured"
        return Rerun(entry.problem, entry.seq, speedup, None, None, str(answer.verdict), holds=False, note=reason)
    expected = prediction_interval(recorded, fresh.error, spread, comparisons=together)
    measured, note = answer.summary.speedup, "; ".join(_differences(entry, answer))
    holds = expected[0] <= measured <= expected[1]
    return Rerun(entry.problem, entry.seq, speedup, expected, measured, str(answer.verdict), holds=holds, note=note)


def _differences(entry: Entry, answer: JudgeAnswer) -> Sequence[str]:
    """Return the other differences between an entry and a new measurement."""
    differences = []
    if entry.device and entry.device.id != answer.device.id:
        differences.append(f"another device: {entry.device.name} {entry.device.id} then")
    if entry.environment and entry.environment.judge != answer.environment.judge:
        differences.append("another judge version")
    if entry.environment and entry.environment.torch != answer.environment.torch:
        differences.append(f"torch {entry.environment.torch} then")
    return differences
