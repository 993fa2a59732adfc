"""What the ledger says about every problem right now, and the rules that make a champion. From the index alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple, Protocol

from harness.model.verdict import EntryKind, Trust, Verdict
from harness.store.index import Index
from harness.store.index_filling import short_id
from harness.store.ledger import problem_of
from harness.store.rows import Row


class Measured(Protocol):
    """What the rules look at: a `Row` of the index."""

    @property
    def verdict(self) -> str | None: ...  # noqa: D102
    @property
    def trust(self) -> str | None: ...  # noqa: D102
    @property
    def low(self) -> float | None: ...  # noqa: D102


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
    baseline_us: float | None = None
    """Geometric mean over the workloads of the fastest correct baseline, in microseconds."""
    champion: Row | None = None
    """The confirmation with the highest lower bound; it cites its evaluation."""
    best: Row | None = None
    """The PASSED evaluation with the highest speed-up, confirmed or not."""
    evaluations: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    workers: Mapping[str, int] = field(default_factory=dict)
    """Evaluations per worker."""
    duplicates: int = 0
    """Evaluations of a tree that had one already (under another judge version or digest)."""
    gains: tuple[Gain, ...] = ()
    since_gain: int = 0
    """Evaluations since the last gain."""
    cost_s: float = 0.0
    """Seconds of building and judging, confirmations included."""
    last_at: str | None = None
    """Of the last evaluation."""
    entries: int = 0
    """Of every kind."""


def rank(measured: Measured) -> tuple[bool, float]:
    """The order of PASSED measurements: by the interval's lower bound, every launch-bound one below all others.

    Bounded and sealed numbers compare as they are: each is a ratio of two measurements by the same clock. One rule of
    order for all three is needed because "a launch-bound number never outranks a sealed one" alone would go in circles
    (sealed 1.2 > launch-bound 3.0 > bounded 2.0 > sealed 1.2).
    """
    return measured.trust != Trust.LAUNCH_BOUND, measured.low if measured.low is not None else 0.0


def needs_confirmation(evaluation: Measured, champion: Measured | None) -> bool:
    """Is this evaluation worth a second, fresh one: PASSED, surely faster than the baseline and than the champion?"""
    return is_new_champion(evaluation, champion)


def is_new_champion(confirmation: Measured, champion: Measured | None) -> bool:
    """Does this confirmation make a champion: PASSED, its lower bound above 1 and above the champion's?"""
    if confirmation.verdict != Verdict.PASSED or confirmation.low is None or confirmation.low <= 1.0:
        return False
    return champion is None or rank(confirmation) > rank(champion)


def champion_of(confirmations: Iterable[Row]) -> Row | None:
    """The champion among a problem's confirmations (one target, one run, one digest); the earliest of equals."""
    champion: Row | None = None
    for confirmation in sorted(confirmations, key=lambda row: row.seq):
        if is_new_champion(confirmation, champion):
            champion = confirmation
    return champion


def standings(
    index: Index, problems: Sequence[str], target: str | None = None, run: str | None = None
) -> tuple[Standing, ...]:
    """Every problem's standing, in the order given; a problem without entries has an empty one.

    Args:
        index: refreshed by the caller.
        problems: their keys.
        target: null for all targets together.
        run: null for all runs together; baselines are every run's.
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
    columns = ", ".join(_Evaluation._fields)
    sql = f"SELECT {columns} FROM entries WHERE kind = 'evaluation'{same} ORDER BY problem, seq"  # noqa: S608
    found = map(_Evaluation._make, index.query(sql, given))
    evaluations = {problem: list(group) for problem, group in groupby(found, key=attrgetter("problem"))}
    return tuple(
        _standing(index, problem, others.get(problem, []), evaluations.get(problem, [])) for problem in problems
    )


def known_problems(index: Index) -> list[str]:
    """Every problem that has entries, of whichever run."""
    committed = (problem_of(str(file)) for (file,) in index.query("SELECT file FROM files"))
    spooled = (str(problem) for (problem,) in index.query("SELECT DISTINCT problem FROM entries WHERE committed = 0"))
    return sorted({*filter(None, committed), *spooled})


def known_targets(index: Index, run: str) -> list[str]:
    """Every target that a run has entries for."""
    found = index.query("SELECT DISTINCT target FROM entries WHERE run = ? ORDER BY target", (run,))
    return [str(target) for (target,) in found]


class _Evaluation(NamedTuple):
    """The columns of an evaluation that a standing needs: those of the index `standing`, which holds nothing else."""

    problem: str
    seq: int
    verdict: str
    worker: str | None
    speedup: float | None
    low: float | None
    cost_s: float | None
    form: int
    """`short_id` of the problem's digest."""
    candidate: int | None
    """`short_id` of the tree."""


def _standing(index: Index, problem: str, others: list[Row], evaluations: list[_Evaluation]) -> Standing:
    last = index.row(problem, evaluations[-1].seq) if evaluations else None
    newest = max([*others, *([last] if last else [])], key=lambda row: row.seq, default=None)
    digest = newest.problem_digest if newest else None
    form = short_id(digest)
    passed = [
        (number, evaluation)
        for number, evaluation in enumerate(evaluations, 1)
        if evaluation.verdict == Verdict.PASSED and evaluation.form == form
    ]
    gains = _gains(passed)
    best = max((found for _, found in passed), key=lambda found: found.speedup or 0.0, default=None)
    present = sorted((row for row in others if row.problem_digest == digest), key=lambda row: row.seq)
    baselines = [row.baseline_us for row in present if row.kind == EntryKind.BASELINE and row.baseline_us]
    return Standing(
        problem=problem,
        problem_digest=digest,
        baseline_us=baselines[-1] if baselines else None,
        champion=champion_of(row for row in present if row.kind == EntryKind.CONFIRMATION),
        best=index.row(problem, best.seq) if best else None,
        evaluations=len(evaluations),
        verdicts=dict(Counter(found.verdict for found in evaluations)),
        workers=dict(Counter(found.worker or "" for found in evaluations)),
        duplicates=len(evaluations) - len({found.candidate for found in evaluations}),
        gains=gains,
        since_gain=len(evaluations) - (gains[-1].evaluation if gains else 0),
        cost_s=sum(row.cost_s or 0.0 for row in others) + sum(found.cost_s or 0.0 for found in evaluations),
        last_at=last.at if last else None,
        entries=len(others) + len(evaluations),
    )


def _gains(passed: Iterable[tuple[int, _Evaluation]]) -> tuple[Gain, ...]:
    """Evaluations whose interval lies above the speed-up of the last gain: luck alone seldom makes one."""
    gains: list[Gain] = []
    for number, found in passed:
        bound = found.low if found.low is not None else found.speedup
        if found.speedup is not None and bound is not None and bound > (gains[-1].speedup if gains else 0.0):
            gains.append(Gain(number, found.seq, found.speedup, found.worker))
    return tuple(gains)
