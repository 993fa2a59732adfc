"""Consistency of a problem's entries: citations, champions, repeated measurements, numbers derived from their parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.ledger.audit.numbers import faults
from harness.model.champions import is_new_champion
from harness.model.entry import Entry
from harness.model.verdict import EntryKind, Verdict

Fault = tuple[int, str, object, object]
"""`seq`, message, expected value, actual value."""

_ChampionKey = tuple[str, str, str, int | None]
"""Run, target, problem digest, judge protocol."""
_REPEATED = (
    "run", "problem_digest", "target", "cites", "device", "environment", "judge_protocol", "verdict", "reason",
    "trust", "workloads", "summary",
)  # fmt: skip
"""Fields in which an entry equals the one that it was answered from."""
_CITED = {
    EntryKind.EVALUATION: EntryKind.BASELINE,
    EntryKind.CONFIRMATION: EntryKind.EVALUATION,
    EntryKind.CHAMPION: EntryKind.CONFIRMATION,
}


def entry_faults(problem: str, entries: Sequence[Entry]) -> Iterator[Fault]:
    """Yield every fault in a problem's entries.

    Args:
        problem: the problem's key, `suite/name`.
        entries: its entries, in the order of their file.
    """
    entry_by_seq = {entry.seq: entry for entry in entries}
    measured: dict[tuple[object, ...], int] = {}
    champions: dict[_ChampionKey, Entry] = {}
    for entry in entries:
        if entry.problem != problem:
            yield entry.seq, "an entry of another problem", problem, entry.problem
        for message, expected, actual in faults(entry):
            yield entry.seq, message, expected, actual
        yield from _citation_faults(entry, entry_by_seq)
        yield from _repetition_faults(entry, entry_by_seq)
        key = _measurement(entry)
        if key is not None and key in measured:
            yield entry.seq, "measured twice: the same key already has an entry", "once", f"seq {measured[key]}"
        if key is not None:
            measured.setdefault(key, entry.seq)
        if entry.kind is EntryKind.CHAMPION:
            yield from _champion_faults(entry, entry_by_seq, champions)


def _measurement(entry: Entry) -> tuple[object, ...] | None:
    """Return a key that occurs once: of an evaluation, or of the entry that a confirmation or champion cites."""
    if entry.kind is EntryKind.EVALUATION and entry.candidate and entry.environment:
        return entry.kind, entry.problem_digest, entry.candidate.tree, entry.target, entry.environment.judge
    if entry.kind in {EntryKind.CONFIRMATION, EntryKind.CHAMPION}:
        return entry.kind, entry.cites
    return None


def _citation_faults(entry: Entry, entry_by_seq: Mapping[int, Entry]) -> Iterator[Fault]:
    if entry.cites is None:
        return
    expected_kind = _CITED.get(entry.kind)
    cited = entry_by_seq.get(entry.cites)
    if cited is None or entry.cites >= entry.seq:
        yield entry.seq, "cites an entry that does not precede it", f"a seq below {entry.seq}", entry.cites
        return
    if expected_kind is None or cited.kind is not expected_kind:
        yield entry.seq, f"cites seq {cited.seq}, which is of another kind", expected_kind, cited.kind
        return
    for name in ("problem_digest", "target"):
        if getattr(cited, name) != getattr(entry, name):
            yield entry.seq, f"cites seq {cited.seq} of another {name}", getattr(entry, name), getattr(cited, name)
    if entry.kind is EntryKind.EVALUATION:
        return
    if cited.verdict is not Verdict.PASSED:
        yield entry.seq, f"cites seq {cited.seq}, which did not pass", Verdict.PASSED, cited.verdict
    trees = [item.candidate.tree if item.candidate else None for item in (entry, cited)]
    if trees[0] != trees[1]:
        yield entry.seq, f"cites seq {cited.seq} of another candidate", trees[0], trees[1]


def _repetition_faults(entry: Entry, entry_by_seq: Mapping[int, Entry]) -> Iterator[Fault]:
    """Check that an entry that repeats a measurement names one of the same binary, and has its numbers."""
    if entry.answered_from is None:
        return
    measured = entry_by_seq.get(entry.answered_from)
    if measured is None or entry.answered_from >= entry.seq or measured.kind is not EntryKind.EVALUATION:
        message = "answered from an entry that is not an earlier evaluation"
        yield entry.seq, message, f"a seq below {entry.seq}", entry.answered_from
        return
    if measured.answered_from is not None:
        message = f"answered from seq {measured.seq}, which was not measured itself"
        yield entry.seq, message, "a measurement", f"answered from seq {measured.answered_from}"
    measured_binary, binary = _binary(measured), _binary(entry)
    if measured_binary is None or measured_binary != binary:
        yield entry.seq, f"answered from seq {measured.seq} of another binary", measured_binary, binary
    for name in _REPEATED:
        if getattr(measured, name) != getattr(entry, name):
            message = f"answered from seq {measured.seq}, which has another value of {name}"
            yield entry.seq, message, getattr(measured, name), getattr(entry, name)


def _binary(entry: Entry) -> str | None:
    return entry.fingerprint.binary if entry.fingerprint else None


def _champion_faults(
    entry: Entry, entry_by_seq: Mapping[int, Entry], champions: dict[_ChampionKey, Entry]
) -> Iterator[Fault]:
    """Check that a champion is better than the last (same run, target, form of the problem and judge protocol)."""
    confirmation = entry_by_seq.get(entry.cites or 0)
    if confirmation is None or confirmation.kind is not EntryKind.CONFIRMATION:
        return
    key = (entry.run, entry.target, entry.problem_digest, confirmation.judge_protocol)
    former = champions.get(key)
    if not is_new_champion(confirmation, former):
        bar = former.speedup_ci95_low if former else 1.0
        ci95_low = confirmation.speedup_ci95_low
        yield entry.seq, "a champion that its confirmation does not make", f"a lower bound above {bar}", ci95_low
    champions[key] = confirmation
    if entry.summary is not None and entry.summary != confirmation.summary:
        message = f"the summary is not that of the confirmation it cites (seq {confirmation.seq})"
        yield entry.seq, message, confirmation.summary, entry.summary
