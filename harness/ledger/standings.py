"""Standings: the present state of every problem, computed from the index alone, and a cache of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.index_filling import short_id
from harness.model.champions import best_of, champion_of
from harness.model.judging import JUDGE_PROTOCOL
from harness.model.paths import parse_ledger_file
from harness.model.verdict import EntryKind, Trust, Verdict

_MANY = 3
"""One pass over the whole ledger costs less than single problems when at least a third of them has changed."""


@dataclass(frozen=True)
class Gain:
    """An evaluation whose whole interval is above the last gain's speed-up."""

    evaluation: int
    """Number of the problem's evaluations up to this one."""
    seq: int
    speedup: float
    worker: str | None


@dataclass(frozen=True)
class Standing:
    """State of one problem, for one target and run. Numbers are of the problem's present form (its digest)."""

    problem: str
    problem_digest: str | None = None
    """Digest of the latest entry; entries of earlier forms of the problem are counted, but are no champions."""
    protocol: int = JUDGE_PROTOCOL
    """The judge protocol whose numbers count; entries of others are counted, but are no champions and no gains."""
    baseline_us: float | None = None
    """Geometric mean over the workloads of the fastest correct baseline, in microseconds.

    It is by the clock of the champion, or else of `best`. For a sealed solution it is the time of the race.
    """
    champion: Row | None = None
    """The confirmation with the highest lower bound; it cites its evaluation."""
    best: Row | None = None
    """The PASSED evaluation with the highest speed-up, confirmed or not."""
    outdated: tuple[Row, ...] = ()
    """Entries of the newest older judge protocol that are to be measured again: its champion, and the runner-up.

    The best evaluation if that protocol had no champion. Candidates with an evaluation that counts are omitted.
    """
    evaluations: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    """Evaluations per worker."""
    duplicates: int = 0
    """Evaluations of a tree that already had one (with another judge version or digest)."""
    near_duplicates: int = 0
    """Evaluations of another tree whose source without formatting, or whose compiled code, already had one."""
    answered_from_ledger: int = 0
    """Evaluations among them that repeat a measurement of the same compiled code."""
    gains: tuple[Gain, ...] = ()
    since_gain: int = 0
    """Evaluations since the last gain."""
    cost_s: float = 0.0
    """Seconds of building and judging, confirmations included."""
    last_at: str | None = None
    """Time of the last evaluation."""
    entries: int = 0
    """Number of entries of every kind."""


def standings(
    index: Index,
    problems: Sequence[str],
    target: str | None = None,
    run: str | None = None,
    *,
    protocol: int = JUDGE_PROTOCOL,
) -> tuple[Standing, ...]:
    """Return every problem's standing, in the given order; a problem without entries has an empty one.

    Args:
        index: refreshed by the caller.
        target: null for all targets together.
        run: null for all runs together; baselines of every run count.
        protocol: the judge protocol whose numbers count.
    """
    filters = {"problem": problems[0] if len(problems) == 1 else None, "target": target, "run": run}
    set_filters = {name: value for name, value in filters.items() if value is not None}
    conditions = "".join(f" AND {name} = :{name}" for name in set_filters)
    or_baselines = conditions.replace("run = :run", "(run = :run OR kind = 'baseline')")
    other_rows: dict[str, list[Row]] = {}
    for kind in EntryKind:
        if kind is not EntryKind.EVALUATION:
            for row in index.select(f"WHERE kind = '{kind}'{or_baselines} ORDER BY problem, seq", set_filters):
                other_rows.setdefault(row.problem, []).append(row)
    columns = ", ".join(_Evaluations._fields)
    sql = f"SELECT problem, {columns} FROM entries WHERE kind = 'evaluation'{conditions} ORDER BY problem, seq"  # noqa: S608
    groups = groupby(index.query(sql, set_filters), key=itemgetter(0))
    evaluations = {problem: _Evaluations(*tuple(zip(*group, strict=True))[1:]) for problem, group in groups}
    return tuple(
        _standing(index, problem, other_rows.get(problem, []), evaluations.get(problem, _NONE), protocol)
        for problem in problems
    )


def known_problems(index: Index) -> list[str]:
    """Return every problem that has entries, of any run."""
    committed = (parse_ledger_file(str(file)) for (file,) in index.query("SELECT file FROM files"))
    spooled = (str(problem) for (problem,) in index.query("SELECT DISTINCT problem FROM entries WHERE committed = 0"))
    return sorted({*filter(None, committed), *spooled})


def known_runs(index: Index) -> list[str]:
    """Return every run that has entries."""
    return [str(run) for (run,) in index.query("SELECT DISTINCT run FROM entries ORDER BY run")]


def known_targets(index: Index, run: str) -> list[str]:
    """Return every target that a run has entries for.

    Args:
        index: refreshed by the caller.
    """
    rows = index.query("SELECT DISTINCT target FROM entries WHERE run = ? ORDER BY target", (run,))
    return [str(target) for (target,) in rows]


class StandingsCache:
    """The standings of one target and run, cached between calls. Not thread-safe.

    Args:
        index: refreshed by the caller.
        target: as for `standings`.
        run: as for `standings`.
    """

    def __init__(self, index: Index, target: str | None, run: str | None) -> None:
        self._index, self._target, self._run = index, target, run
        self._cached: dict[str, Standing] = {}
        self._revision: tuple[int, int] | None = None

    def standings(self, problems: Sequence[str]) -> tuple[Standing, ...]:
        """Return every problem's standing, in the given order.

        Raises:
            LedgerError: the index cannot be read.
        """
        revision = self._index.revision()  # before the entries: a later entry is read again the next time
        changed = self._index.changed_since(self._revision) if self._revision is not None else None
        if changed is None:
            self._cached.clear()
        for problem in changed or ():
            self._cached.pop(problem, None)
        missing = [problem for problem in problems if problem not in self._cached]
        together = [missing] if _MANY * len(missing) > len(problems) else [[problem] for problem in missing]
        for group in together:
            table = standings(self._index, group, self._target, self._run)
            self._cached |= {standing.problem: standing for standing in table}
        self._revision = revision
        return tuple(self._cached[problem] for problem in problems)


class _Evaluations(NamedTuple):
    """A problem's evaluations, oldest first, as columns: those of the index `standing`, so that SQLite reads no others.

    They are columns because counting and summing 100,000 evaluations then runs no Python code per evaluation.
    """

    seq: tuple[int, ...] = ()
    verdict: tuple[str, ...] = ()
    worker: tuple[str | None, ...] = ()
    speedup: tuple[float | None, ...] = ()
    speedup_ci95_low: tuple[float | None, ...] = ()
    cost_s: tuple[float | None, ...] = ()
    judge_protocol: tuple[int | None, ...] = ()
    form: tuple[int, ...] = ()
    """`short_id` of the problem's digest."""
    candidate: tuple[int | None, ...] = ()
    """`short_id` of the tree."""
    source: tuple[int | None, ...] = ()
    """`short_id` of the normalised source's hash."""
    binary: tuple[int | None, ...] = ()
    """`short_id` of the compiled code's hash."""
    answered_from: tuple[int | None, ...] = ()


_NONE = _Evaluations()


def _standing(index: Index, problem: str, other_rows: list[Row], evaluated: _Evaluations, protocol: int) -> Standing:
    count = len(evaluated.seq)
    last = index.row(problem, evaluated.seq[-1]) if count else None
    newest = max([*other_rows, *([last] if last else [])], key=lambda row: row.seq, default=None)
    digest = newest.problem_digest if newest else None
    gains, best = _gains_and_best(evaluated, short_id(digest), protocol)
    present = sorted((row for row in other_rows if row.problem_digest == digest), key=lambda row: row.seq)
    champion = champion_of((row for row in present if row.kind == EntryKind.CONFIRMATION), protocol)
    fastest = index.row(problem, best) if best else None
    outdated = _outdated(index, problem, present, evaluated, short_id(digest), protocol)
    shown = champion or fastest or next(iter(outdated), None)
    shown_protocol = shown.judge_protocol if shown else protocol
    of_baseline = [row for row in present if row.kind == EntryKind.BASELINE and row.judge_protocol == shown_protocol]
    baselines = [row.baseline_us for row in of_baseline if row.baseline_us]
    if shown and shown.trust and Trust(shown.trust).by_events and shown.baseline_us:
        baselines.append(shown.baseline_us)
    return Standing(
        problem=problem,
        problem_digest=digest,
        protocol=protocol,
        baseline_us=baselines[-1] if baselines else None,
        champion=champion,
        best=fastest,
        outdated=outdated,
        evaluations=count,
        verdicts=dict(Counter(evaluated.verdict)),
        workers={worker or "": number for worker, number in Counter(evaluated.worker).items()},
        duplicates=count - len(set(evaluated.candidate)),
        near_duplicates=_near_duplicates(evaluated),
        answered_from_ledger=count - evaluated.answered_from.count(None),
        gains=gains,
        since_gain=min(count - (gains[-1].evaluation if gains else 0), evaluated.judge_protocol.count(protocol)),
        cost_s=sum(row.cost_s or 0.0 for row in other_rows) + sum(filter(None, evaluated.cost_s)),
        last_at=last.at if last else None,
        entries=len(other_rows) + count,
    )


def _near_duplicates(evaluated: _Evaluations) -> int:
    """Count evaluations of a tree that had none, with the source or compiled code of an earlier one."""
    hash_columns = [[value for value in hashes if value is not None] for hashes in (evaluated.source, evaluated.binary)]
    if all(len(set(hashes)) == len(hashes) for hashes in hash_columns):
        return 0  # no hash occurs twice
    count = 0
    trees: set[int | None] = set()
    earlier_hashes: set[int] = set()
    for tree, source, binary in zip(evaluated.candidate, evaluated.source, evaluated.binary, strict=True):
        hashes = {value for value in (source, binary) if value is not None}
        count += tree not in trees and not hashes.isdisjoint(earlier_hashes)
        trees.add(tree)
        earlier_hashes |= hashes
    return count


def _outdated(
    index: Index, problem: str, present: Sequence[Row], evaluated: _Evaluations, form: int | None, protocol: int
) -> tuple[Row, ...]:
    """Return `Standing.outdated`; `present` are the entries of the problem's present form except evaluations."""
    confirmed = [row for row in present if row.kind == EntryKind.CONFIRMATION]
    versions = {row.judge_protocol for row in confirmed} | set(evaluated.judge_protocol)
    older = sorted((version for version in versions if version is not None and version < protocol), reverse=True)
    if not older:
        return ()
    versions_of_candidates = zip(evaluated.candidate, evaluated.judge_protocol, strict=True)
    measured_again = {candidate for candidate, version in versions_of_candidates if version == protocol}
    for version in older:
        rows = [row for row in confirmed if row.judge_protocol == version]
        _, best = _gains_and_best(evaluated, form, version)
        fastest = index.row(problem, best) if best else None
        if best_rows := best_of([*rows, *([fastest] if fastest else [])]):
            return tuple(row for row in best_rows if short_id(row.tree) not in measured_again)
    return ()


def _gains_and_best(evaluated: _Evaluations, form: int | None, protocol: int) -> tuple[tuple[Gain, ...], int | None]:
    """Return the gains, and the `seq` of the fastest that passed, of the problem's present form and one judge protocol.

    A gain's whole interval is above the last gain's speed-up, so that noise alone seldom makes one.
    """
    gains: list[Gain] = []
    best, highest, last_gain_speedup = None, 0.0, 0.0
    measured = zip(evaluated.speedup, evaluated.speedup_ci95_low, evaluated.form, evaluated.judge_protocol, strict=True)
    rows = zip(evaluated.seq, evaluated.verdict, evaluated.worker, measured, strict=True)
    for number, (seq, verdict, worker, (speedup, ci95_low, form_of_row, version)) in enumerate(rows, 1):
        if speedup is None or speedup <= last_gain_speedup:
            continue
        if (verdict, form_of_row, version) != (_PASSED, form, protocol):
            continue
        if speedup > highest:
            best, highest = seq, speedup
        if (speedup if ci95_low is None else ci95_low) > last_gain_speedup:
            gains.append(Gain(number, seq, speedup, worker))
            last_gain_speedup = speedup
    return tuple(gains), best


_PASSED = str(Verdict.PASSED)
