"""Due work: the candidates, confirmations and champions that follow from git and the ledger.

Everything is derived again from git and the ledger, so that a daemon that was killed between two steps takes the
second one after its restart.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.daemon.queue import EvaluationQueue, Job, Key
from harness.daemon.snapshots import Snapshots
from harness.daemon.status_writer import StatusWriter
from harness.errors import HarnessError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.candidates import committed_candidates
from harness.ledger.entry_rows import Row
from harness.ledger.index import Index
from harness.ledger.standings import known_problems, standings
from harness.model.champions import champion_of, is_new_champion, rank
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.judging import JUDGE_PROTOCOL, JudgeReady
from harness.model.paths import AgentBranch, parse_agent_branch, run_branches
from harness.model.verdict import EntryKind, Trust

logger = logging.getLogger(__name__)

SLICE_S = 0.5
"""A scan that has found work stops after this time: judges begin before the next scan compares other branches."""

MOST_WAITING = 2_000
"""Longest queue. More candidates stay in git, where every scan finds them again; the oldest are queued first."""
_FULL = "the queue is full: further candidates wait in git until there is room"

Judges = Mapping[str, JudgeReady]
"""Target -> a ready judge of it. The judge's version is part of a measurement's key."""


def next_steps(
    index: Index, problem: str, digest: str, target: str, judge: str, run: str
) -> tuple[Row | None, Row | None]:
    """Return the confirmation and the champion that are due for a problem.

    Entries of earlier forms of the problem (other digests) and of other judge protocols do not count. An evaluation is
    confirmed by the judge version that made it; evaluations of earlier versions are repeated instead.

    Args:
        index: the ledger's index, refreshed by the caller.
        judge: the judge version.

    Returns:
        The evaluation to measure again: the best one that would make a champion. And the confirmation that makes a
        champion and has no champion entry yet.
    """
    where = "WHERE problem = ? AND target = ? AND run = ? AND problem_digest = ?"
    values = (problem, target, run, digest)
    rows = index.select(f"{where} AND kind IN ('confirmation', 'champion') ORDER BY seq", values)
    confirmations = [row for row in rows if row.kind == EntryKind.CONFIRMATION]
    champion = champion_of(confirmations)
    confirmed = {row.cites for row in confirmations}
    recorded = {row.cites for row in rows if row.kind == EntryKind.CHAMPION}
    # Few rows leave SQLite; `is_new_champion` decides. Only a launch-bound champion yields to a lower bound.
    better = "speedup_ci95_low > ? OR judge_protocol > ?"
    bounds: tuple[object, ...] = (1.0, sys.maxsize)
    if champion is not None and champion.trust != Trust.LAUNCH_BOUND:
        bounds = champion.speedup_ci95_low, champion.judge_protocol
    passed = f"{where} AND kind = 'evaluation' AND judge = ? AND verdict = 'PASSED' AND ({better})"
    # An entry that repeats a measurement is not confirmed: the measured evaluation is.
    waiting = [
        row
        for row in index.select(f"{passed} AND answered_from IS NULL ORDER BY seq", (*values, judge, *bounds))
        if row.seq not in confirmed and is_new_champion(row, champion)
    ]
    unrecorded = champion if champion is not None and champion.seq not in recorded else None
    return max(waiting, key=rank, default=None), unrecorded


@dataclass
class DueWork:
    """Queues the candidates without an entry. It caches its comparisons, so that a scan is fast. Not thread-safe."""

    config: Config
    repo: Repo
    index: Index
    snapshots: Snapshots
    queue: EvaluationQueue
    status: StatusWriter
    """Receives messages about problems that cannot be judged."""
    record_champion: Callable[[Entry], None]
    """Enters the champion that a confirmation makes."""
    is_incomplete: bool = False
    """True if the last scan stopped before it had compared every branch."""
    _compared: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """(branch, target) -> (tip, problem tree, judge version) of the last comparison."""
    _followed: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """(problem, target) -> (problem tree, judge version) whose next steps were taken."""
    _outdated: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """Target -> (judge version, problems with entries of an older judge protocol that are to be measured again)."""
    _held_back: set[tuple[str, str]] = field(default_factory=set)
    """(branch, target) with candidates that the queue had no room for."""

    @property
    def waits_for_room(self) -> bool:
        """True if candidates wait in git and the queue has room for them."""
        return bool(self._held_back) and len(self.queue) <= MOST_WAITING // 2

    def forget(self) -> None:
        """Clear the cached comparisons, so that the next scan compares everything."""
        self._compared.clear()
        self._followed.clear()
        self._outdated.clear()

    def refresh(self) -> None:
        """Update the index to the ledger.

        Raises:
            HarnessError: the index cannot be written, or the repository cannot be read.
        """
        for sentence in self.index.refresh(self.repo):
            self.status.add_message(sentence)

    def scan(self, judges: Judges) -> None:
        """Queue every candidate of the run's branches that has no entry, and the next steps of those that have one.

        A scan that takes long stops once it has found work, and is incomplete: the next scan continues it.

        Raises:
            HarnessError: the repository or the index cannot be read or written; a later scan repeats this one.
        """
        # Branches are read before the base: a branch created in between starts at that later base.
        branches = self.repo.branches(run_branches(self.config.run))
        base = self.repo.tip(self.config.coordination_branch)
        self.refresh()
        failpoint("daemon.before_scan")
        due: list[tuple[int, str, Job]] = []
        has_room = len(self.queue) <= MOST_WAITING // 2
        problems: set[tuple[str, str]] = set()
        self.is_incomplete, slice_ends = False, time.monotonic() + SLICE_S
        for branch, tip in branches.items():
            place = parse_agent_branch(branch)
            if place is None:
                continue
            if (due or len(self.queue)) and time.monotonic() > slice_ends:
                self.is_incomplete = True
                break
            for target, judge in judges.items():
                if has_room or (branch, target) not in self._held_back:
                    jobs = self._candidates(branch, place, tip, base, target, judge.environment.judge)
                    due += [(at, branch, job) for at, job in jobs]
                problems.add((place.problem, target))
        for target, judge in judges.items():
            problems |= {(problem, target) for problem in self._with_outdated(target, judge.environment.judge)}
        for problem, target in sorted(problems):  # before the others are queued: repeated measurements go first
            self._take_next_steps(problem, target, base, judges[target].environment.judge)
        self._put(sorted(due, key=lambda timed: timed[0]), judges)
        failpoint("daemon.after_scan")

    def _put(self, due: Sequence[tuple[int, str, Job]], judges: Judges) -> None:
        """Queue candidates while there is room. The branches of the others are compared again later."""
        self._held_back = set() if len(self.queue) <= MOST_WAITING // 2 else self._held_back
        for _, branch, job in due:
            if len(self.queue) >= MOST_WAITING:
                self._held_back |= {(branch, target) for target in judges}
                self._compared.pop((branch, job.key.target), None)
            elif self.queue.add(job):
                logger.info("queued %s of %s for %s", job.key.tree, job.worker, job.key.problem)
        (self.status.add_message if self._held_back else self.status.remove_messages)(_FULL)

    def follow_up(self, entered: Iterable[tuple[str, str]], judges: Judges) -> None:
        """After new entries, queue the confirmations and record the champions that are due.

        Args:
            entered: problem and target of the entries.
            judges: target -> a judge that is ready.

        Raises:
            HarnessError: as for `scan`; the next scan repeats the steps.
        """
        problems = sorted(set(entered))
        for place in problems:
            self._followed.pop(place, None)
        self.refresh()
        base = self.repo.tip(self.config.coordination_branch)
        for problem, target in problems:
            if target in judges:
                self._take_next_steps(problem, target, base, judges[target].environment.judge)

    def _candidates(
        self, branch: str, place: AgentBranch, tip: str, base: str, target: str, judge: str
    ) -> list[tuple[int, Job]]:
        """Return the branch's candidates without an entry, with their commits' times in seconds."""
        state = (tip, self.snapshots.problem_tree(base, place.problem) or "", judge)
        last_state = self._compared.get((branch, target))
        if last_state == state:
            return []
        digest = self._digest(base, place.problem)
        moved = last_state is not None and last_state[1:] == state[1:]
        if not moved:
            own, form = (place.problem, target), (digest, judge)
            self.queue.drop(
                lambda job: (job.key.problem, job.key.target) == own and (job.key.problem_digest, job.key.judge) != form
            )
        if digest is None:
            self._compared.pop((branch, target), None)  # dropped jobs are queued again once the problem can be judged
            return []
        due = []
        since = last_state[0] if last_state and moved else None
        for candidate in committed_candidates(self.repo, branch, tip, base, target, since=since):
            if self.index.find(digest, candidate.tree, target, judge) is None:
                key = Key(candidate.problem, digest, candidate.tree, target, judge)
                due.append((candidate.at, Job("evaluation", key, candidate.commit, branch, candidate.worker)))
        self._compared[branch, target] = state
        return due

    def _take_next_steps(self, problem: str, target: str, base: str, judge: str) -> None:
        state = (self.snapshots.problem_tree(base, problem) or "", judge)
        if self._followed.get((problem, target)) == state:
            return
        digest = self._digest(base, problem)
        if digest is None:
            return
        row, champion = next_steps(self.index, problem, digest, target, judge, self.config.run)
        if row is not None and row.tree and row.commit and row.branch and row.worker:
            key = Key(problem, digest, row.tree, target, judge)
            self.queue.add(Job("confirmation", key, row.commit, row.branch, row.worker, row.seq))
        self._followed[problem, target] = state
        if problem in self._with_outdated(target, judge):
            self._measure_again(problem, digest, target, judge)
        entry = self.index.entry(problem, champion.seq) if champion else None
        if entry is not None:
            self.record_champion(entry)

    def _with_outdated(self, target: str, judge: str) -> frozenset[str]:
        """Return the problems with entries to measure again, whose candidates may no longer be on a branch."""
        if self._outdated.get(target, ("",))[0] != judge:
            # Entries are read only if some have an older protocol.
            is_older = self.index.has_older_protocol(self.config.run, JUDGE_PROTOCOL)
            problems = known_problems(self.index) if is_older else []
            table = standings(self.index, problems, target, self.config.run) if problems else ()
            self._outdated[target] = judge, frozenset(standing.problem for standing in table if standing.outdated)
        return self._outdated[target][1]

    def _measure_again(self, problem: str, digest: str, target: str, judge: str) -> None:
        """Queue the champion and the runner-up of an older judge protocol; their confirmations follow later."""
        (standing,) = standings(self.index, [problem], target, self.config.run)
        for row in standing.outdated:
            if row.problem_digest != digest or not (row.tree and row.commit and row.branch and row.worker):
                continue
            if not self.repo.has_object(row.commit):
                self.status.add_message(
                    f"{problem} seq {row.seq} cannot be measured again: its commit {row.commit} is missing"
                )
                continue
            key = Key(problem, digest, row.tree, target, judge)
            if self.queue.add(Job("evaluation", key, row.commit, row.branch, row.worker, is_repeat=True)):
                logger.info(
                    "%s seq %d is measured again: it is of judge protocol %s, and only protocol %d counts",
                    *(problem, row.seq, row.judge_protocol, standing.protocol),
                )

    def _digest(self, base: str, problem: str) -> str | None:
        """Return the digest of a problem on the base; None, with a message, if it cannot be judged."""
        beginning = f"candidates of {problem} wait"
        try:
            digest = self.snapshots.problem(base, problem).digest
        except HarnessError as error:
            self.status.add_failure(beginning, error)
            return None
        self.status.remove_messages(beginning)
        return digest
