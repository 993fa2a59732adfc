"""Do a problem's entries fit together: citations, champions, no measurement twice, numbers from their parts?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.ledger.audit.numbers import faults
from harness.model.champions import is_new_champion
from harness.model.entry import Entry
from harness.model.verdict import EntryKind, Verdict

Fault = tuple[int, str, object, object]
"""seq, what is wrong, what was expected, what was found."""

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
    """Everything wrong with a problem's entries, given in the order of their file."""
    known = {entry.seq: entry for entry in entries}
    measured: dict[tuple[object, ...], int] = {}
    champions: dict[_ChampionKey, Entry] = {}
    for entry in entries:
        if entry.problem != problem:
            yield entry.seq, "an entry of another problem", problem, entry.problem
        for what, expected, found in faults(entry):
            yield entry.seq, what, expected, found
        yield from _citation_faults(entry, known)
        yield from _repetition_faults(entry, known)
        key = _measurement(entry)
        if key is not None and key in measured:
            yield entry.seq, "measured twice: the same key has an entry already", "once", f"seq {measured[key]}"
        if key is not None:
            measured.setdefault(key, entry.seq)
        if entry.kind is EntryKind.CHAMPION:
            yield from _champion_faults(entry, known, champions)


def _measurement(entry: Entry) -> tuple[object, ...] | None:
    """What may be entered once: an evaluation's key, the evaluation that a confirmation confirms, a champion's."""
    if entry.kind is EntryKind.EVALUATION and entry.candidate and entry.environment:
        return entry.kind, entry.problem_digest, entry.candidate.tree, entry.target, entry.environment.judge
    if entry.kind in {EntryKind.CONFIRMATION, EntryKind.CHAMPION}:
        return entry.kind, entry.cites
    return None


def _citation_faults(entry: Entry, known: Mapping[int, Entry]) -> Iterator[Fault]:
    if entry.cites is None:
        return
    wanted = _CITED.get(entry.kind)
    cited = known.get(entry.cites)
    if cited is None or entry.cites >= entry.seq:
        yield entry.seq, "cites an entry that does not stand before it", f"a seq below {entry.seq}", entry.cites
        return
    if wanted is None or cited.kind is not wanted:
        yield entry.seq, f"cites seq {cited.seq}, which is of another kind", wanted, cited.kind
        return
    for name in ("problem_digest", "target"):
        if getattr(cited, name) != getattr(entry, name):
            yield entry.seq, f"cites seq {cited.seq} of another {name}", getattr(entry, name), getattr(cited, name)
    if entry.kind is EntryKind.EVALUATION:
        return
    if cited.verdict is not Verdict.PASSED:
        yield entry.seq, f"cites seq {cited.seq}, which did not pass", Verdict.PASSED, cited.verdict
    trees = [one.candidate.tree if one.candidate else None for one in (entry, cited)]
    if trees[0] != trees[1]:
        yield entry.seq, f"cites seq {cited.seq} of another candidate", trees[0], trees[1]


def _repetition_faults(entry: Entry, known: Mapping[int, Entry]) -> Iterator[Fault]:
    """An entry that repeats a measurement names one of the same binary, and has its numbers."""
    if entry.answered_from is None:
        return
    measured = known.get(entry.answered_from)
    if measured is None or entry.answered_from >= entry.seq or measured.kind is not EntryKind.EVALUATION:
        what = "answered from an entry that is no evaluation before it"
        yield entry.seq, what, f"a seq below {entry.seq}", entry.answered_from
        return
    if measured.answered_from is not None:
        what = f"answered from seq {measured.seq}, which was not measured itself"
        yield entry.seq, what, "a measurement", f"answered from seq {measured.answered_from}"
    binary, own = _binary(measured), _binary(entry)
    if binary is None or binary != own:
        yield entry.seq, f"answered from seq {measured.seq} of another binary", binary, own
    for name in _REPEATED:
        if getattr(measured, name) != getattr(entry, name):
            what = f"answered from seq {measured.seq}, and its {name} is another"
            yield entry.seq, what, getattr(measured, name), getattr(entry, name)


def _binary(entry: Entry) -> str | None:
    return entry.fingerprint.binary if entry.fingerprint else None


def _champion_faults(entry: Entry, known: Mapping[int, Entry], champions: dict[_ChampionKey, Entry]) -> Iterator[Fault]:
    """A champion must be better than the one before it (same run, target, form of the problem and judge protocol)."""
    confirmation = known.get(entry.cites or 0)
    if confirmation is None or confirmation.kind is not EntryKind.CONFIRMATION:
        return
    key = (entry.run, entry.target, entry.problem_digest, confirmation.judge_protocol)
    former = champions.get(key)
    if not is_new_champion(confirmation, former):
        above = former.speedup_ci95_low if former else 1.0
        found = confirmation.speedup_ci95_low
        yield entry.seq, "a champion that its confirmation does not make", f"a lower bound above {above}", found
    champions[key] = confirmation
    if entry.summary is not None and entry.summary != confirmation.summary:
        what = f"the summary is not that of the confirmation it cites (seq {confirmation.seq})"
        yield entry.seq, what, confirmation.summary, entry.summary
