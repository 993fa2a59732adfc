"""Standings: the present state of every problem, computed from the index alone."""

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


@dataclass(frozen=True)
class Gain:
    """An evaluation whose whole interval lies above the last gain's speed-up."""

    evaluation: int
    """How many evaluations the problem had then, this one included."""
    seq: int
    speedup: float
    worker: str | None


@dataclass(frozen=True)
class Standing:
    """One problem, for one target and run, as it stands. Numbers are of the problem as it is now (its digest)."""

    problem: str
    problem_digest: str | None = None
    """Of the latest entry; entries of earlier forms of the problem are counted, but are no champions."""
    protocol: int = JUDGE_PROTOCOL
    """The judge protocol whose numbers count; entries of others are counted, but are no champions and no gains."""
    baseline_us: float | None = None
    """Geometric mean over the workloads of the fastest correct baseline, in microseconds.

    By the clock of the champion, or else of `best`: where that is a sealed one, as it was raced.
    """
    champion: Row | None = None
    """The confirmation with the highest lower bound; it cites its evaluation."""
    best: Row | None = None
    """The PASSED evaluation with the highest speed-up, confirmed or not."""
    outdated: tuple[Row, ...] = ()
    """Entries of the newest older judge protocol that are to be measured again: its champion, and the runner-up.

    The best evaluation where that protocol had no champion; none of a candidate with an evaluation that counts.
    """
    evaluations: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    """Evaluations per worker."""
    duplicates: int = 0
    """Evaluations of a tree that had one already (under another judge version or digest)."""
    near_duplicates: int = 0
    """Evaluations of another tree whose source without formatting, or whose compiled code, had one already."""
    answered: int = 0
    """Evaluations among them that repeat a measurement of the same compiled code."""
    gains: tuple[Gain, ...] = ()
    since_gain: int = 0
    """Evaluations since the last gain."""
    cost_s: float = 0.0
    """Seconds of building and judging, confirmations included."""
    last_at: str | None = None
    """Of the last evaluation."""
    entries: int = 0
    """Of every kind."""


def standings(
    index: Index,
    problems: Sequence[str],
    target: str | None = None,
    run: str | None = None,
    *,
    protocol: int = JUDGE_PROTOCOL,
) -> tuple[Standing, ...]:
    """Every problem's standing, in the order given; a problem without entries has an empty one.

    Args:
        index: refreshed by the caller.
        problems: their keys.
        target: null for all targets together.
        run: null for all runs together; baselines are every run's.
        protocol: the judge protocol whose numbers count.
    """
    wanted = {"problem": problems[0] if len(problems) == 1 else None, "target": target, "run": run}
    given = {name: value for name, value in wanted.items() if value is not None}
    same = "".join(f" AND {name} = :{name}" for name in given)
    shared = same.replace("run = :run", "(run = :run OR kind = 'baseline')")
    others: dict[str, list[Row]] = {}
    for kind in EntryKind:
        if kind is not EntryKind.EVALUATION:
            for row in index.select(f"WHERE kind = '{kind}'{shared} ORDER BY problem, seq", given):
                others.setdefault(row.problem, []).append(row)
    columns = ", ".join(_Evaluations._fields)
    sql = f"SELECT problem, {columns} FROM entries WHERE kind = 'evaluation'{same} ORDER BY problem, seq"  # noqa: S608
    evaluations = {
        problem: _Evaluations(*tuple(zip(*group, strict=True))[1:])
        for problem, group in groupby(index.query(sql, given), key=itemgetter(0))
    }
    return tuple(
        _standing(index, problem, others.get(problem, []), evaluations.get(problem, _NONE), protocol)
        for problem in problems
    )


def known_problems(index: Index) -> list[str]:
    """Every problem that has entries, of whichever run."""
    committed = (parse_ledger_file(str(file)) for (file,) in index.query("SELECT file FROM files"))
    spooled = (str(problem) for (problem,) in index.query("SELECT DISTINCT problem FROM entries WHERE committed = 0"))
    return sorted({*filter(None, committed), *spooled})


def known_targets(index: Index, run: str) -> list[str]:
    """Every target that a run has entries for."""
    found = index.query("SELECT DISTINCT target FROM entries WHERE run = ? ORDER BY target", (run,))
    return [str(target) for (target,) in found]


class _Evaluations(NamedTuple):
    """A problem's evaluations, oldest first, as columns: those of the index `standing`, so that SQLite reads no more.

    Columns and not rows, because counting and summing 100,000 of them then takes no Python per evaluation.
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


def _standing(index: Index, problem: str, others: list[Row], made: _Evaluations, protocol: int) -> Standing:
    count = len(made.seq)
    last = index.row(problem, made.seq[-1]) if count else None
    newest = max([*others, *([last] if last else [])], key=lambda row: row.seq, default=None)
    digest = newest.problem_digest if newest else None
    gains, best = _gains_and_best(made, short_id(digest), protocol)
    present = sorted((row for row in others if row.problem_digest == digest), key=lambda row: row.seq)
    champion = champion_of((row for row in present if row.kind == EntryKind.CONFIRMATION), protocol)
    fastest = index.row(problem, best) if best else None
    outdated = _outdated(index, problem, present, made, short_id(digest), protocol)
    shown = champion or fastest or next(iter(outdated), None)
    baselines = [
        row.baseline_us
        for row in present
        if row.kind == EntryKind.BASELINE
        and row.baseline_us
        and row.judge_protocol == (shown.judge_protocol if shown else protocol)
    ]
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
        verdicts=dict(Counter(made.verdict)),
        workers={worker or "": number for worker, number in Counter(made.worker).items()},
        duplicates=count - len(set(made.candidate)),
        near_duplicates=_near_duplicates(made),
        answered=count - made.answered_from.count(None),
        gains=gains,
        since_gain=min(count - (gains[-1].evaluation if gains else 0), made.judge_protocol.count(protocol)),
        cost_s=sum(row.cost_s or 0.0 for row in others) + sum(filter(None, made.cost_s)),
        last_at=last.at if last else None,
        entries=len(others) + count,
    )


def _near_duplicates(made: _Evaluations) -> int:
    """Count evaluations of a tree that had none, with the source or compiled code of an earlier one."""
    known_hashes = [[value for value in hashes if value is not None] for hashes in (made.source, made.binary)]
    if all(len(set(hashes)) == len(hashes) for hashes in known_hashes):
        return 0  # no hash is there twice: seen without a look at each evaluation
    count = 0
    trees: set[int | None] = set()
    known: set[int] = set()
    for tree, source, binary in zip(made.candidate, made.source, made.binary, strict=True):
        hashes = {value for value in (source, binary) if value is not None}
        count += tree not in trees and not hashes.isdisjoint(known)
        trees.add(tree)
        known |= hashes
    return count


def _outdated(
    index: Index, problem: str, present: Sequence[Row], made: _Evaluations, form: int | None, protocol: int
) -> tuple[Row, ...]:
    """Return `Standing.outdated`; `present` are the entries of the problem's present form but evaluations."""
    confirmed = [row for row in present if row.kind == EntryKind.CONFIRMATION]
    known = {row.judge_protocol for row in confirmed} | set(made.judge_protocol)
    older = sorted((version for version in known if version is not None and version < protocol), reverse=True)
    if not older:
        return ()
    again = {each for each, version in zip(made.candidate, made.judge_protocol, strict=True) if version == protocol}
    for version in older:
        rows = [row for row in confirmed if row.judge_protocol == version]
        _, best = _gains_and_best(made, form, version)
        fastest = index.row(problem, best) if best else None
        if found := best_of([*rows, *([fastest] if fastest else [])]):
            return tuple(row for row in found if short_id(row.tree) not in again)
    return ()


def _gains_and_best(made: _Evaluations, form: int | None, protocol: int) -> tuple[tuple[Gain, ...], int | None]:
    """The gains, and the `seq` of the fastest that passed, of the problem's present form and one judge protocol.

    A gain's whole interval lies above the last gain's speed-up: luck alone seldom makes one.
    """
    gains: list[Gain] = []
    best, highest, mark = None, 0.0, 0.0
    measured = zip(made.speedup, made.speedup_ci95_low, made.form, made.judge_protocol, strict=True)
    each = zip(made.seq, made.verdict, made.worker, measured, strict=True)
    for number, (seq, verdict, worker, (speedup, low, its_form, version)) in enumerate(each, 1):
        if speedup is None or speedup <= mark or verdict != _PASSED or its_form != form or version != protocol:
            continue
        if speedup > highest:
            best, highest = seq, speedup
        if (speedup if low is None else low) > mark:
            gains.append(Gain(number, seq, speedup, worker))
            mark = speedup
    return tuple(gains), best


_PASSED = str(Verdict.PASSED)
