"""Compares refs with the ledger, and queues what the ledger does not hold yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from harness.daemon.queue import EvaluationQueue, Job, Key
from harness.daemon.settle import due
from harness.daemon.snapshots import Snapshots
from harness.daemon.status_writer import StatusWriter
from harness.errors import HarnessError
from harness.failpoints import failpoint
from harness.git.repo import Repo
from harness.ledger.candidates import committed_candidates
from harness.ledger.index import Index
from harness.model.config import Config
from harness.model.entry import Entry
from harness.model.judging import JudgeReady
from harness.model.paths import parse_agent_branch, run_branches

logger = logging.getLogger(__name__)

Judges = Mapping[str, JudgeReady]
"""Target -> a judge of it that is ready: its version is part of what a measurement is named by."""


class Scanner:
    """What is due, as git and the ledger say it. Remembers what it has compared, so that a look is cheap. One thread.

    Args:
        crown: enters the champion that a confirmation makes.
    """

    def __init__(
        self,
        config: Config,
        repo: Repo,
        index: Index,
        snapshots: Snapshots,
        queue: EvaluationQueue,
        status: StatusWriter,
        crown: Callable[[Entry], None],
    ) -> None:
        self._config, self._repo, self._index = config, repo, index
        self._snapshots, self._queue, self._status, self._crown = snapshots, queue, status, crown
        self._seen: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._settled: dict[tuple[str, str], tuple[str, str]] = {}

    def forget(self) -> None:
        """Compare everything again the next time."""
        self._seen.clear()
        self._settled.clear()

    def refresh(self) -> None:
        """Bring the index up to what the ledger holds.

        Raises:
            HarnessError: the index cannot be written, or the repository cannot be read.
        """
        for sentence in self._index.refresh(self._repo):
            self._status.say(sentence)

    def scan(self, judges: Judges) -> None:
        """Queue every candidate of the run's branches that has no entry, and what follows from those that have one.

        Raises:
            HarnessError: the repository or the index refuse; a later scan makes up for it.
        """
        # The branches first: one that is made meanwhile begins at the base as it is then.
        branches = self._repo.branches(run_branches(self._config.run))
        base = self._repo.tip(self._config.coordination_branch)
        self.refresh()
        failpoint("daemon.before_scan")
        found: list[tuple[int, Job]] = []
        problems: set[tuple[str, str]] = set()
        for branch, tip in branches.items():
            place = parse_agent_branch(branch)
            for target, judge in judges.items() if place else ():
                found += self._branch(branch, tip, base, target, judge.environment.judge)
                problems.add((place.problem if place else "", target))
        for _, job in sorted(found, key=lambda one: one[0]):
            if self._queue.add(job):
                logger.info("queued %s of %s for %s", job.key.tree, job.worker, job.key.problem)
        failpoint("daemon.after_scan")
        for problem, target in sorted(problems):
            self._settle(problem, target, base, judges[target].environment.judge)

    def settle(self, problem: str, target: str, judges: Judges) -> None:
        """An entry of a problem is new: queue the confirmation and crown the champion that are due now.

        Raises:
            HarnessError: as for `scan`.
        """
        self._settled.pop((problem, target), None)
        self.refresh()
        if target in judges:
            base = self._repo.tip(self._config.coordination_branch)
            self._settle(problem, target, base, judges[target].environment.judge)

    def _branch(self, branch: str, tip: str, base: str, target: str, judge: str) -> list[tuple[int, Job]]:
        """The branch's candidates that have no entry, with their commits' times."""
        place = parse_agent_branch(branch)
        mark = (tip, self._snapshots.problem_tree(base, place.problem) or "" if place else "", judge)
        if place is None or self._seen.get((branch, target)) == mark:
            return []
        digest = self._digest(base, place.problem)
        self._queue.drop(
            lambda job: (
                (job.key.problem, job.key.target) == (place.problem, target)
                and (job.key.problem_digest, job.key.judge) != (digest, judge)
            )
        )
        if digest is None:
            self._seen.pop((branch, target), None)  # what was dropped is queued again once the problem is whole
            return []
        found = []
        for each in committed_candidates(self._repo, branch, tip, base, target):
            if not self._index.has(digest, each.tree, target, judge):
                key = Key(each.problem, digest, each.tree, target, judge)
                found.append((each.at, Job("evaluation", key, each.commit, branch, each.worker)))
        self._seen[branch, target] = mark
        return found

    def _settle(self, problem: str, target: str, base: str, judge: str) -> None:
        mark = (self._snapshots.problem_tree(base, problem) or "", judge)
        if self._settled.get((problem, target)) == mark:
            return
        digest = self._digest(base, problem)
        if digest is None:
            return
        confirm, crown = due(self._index, problem, digest, target, judge, self._config.run)
        if confirm is not None and confirm.tree and confirm.commit and confirm.branch and confirm.worker:
            key = Key(problem, digest, confirm.tree, target, judge)
            self._queue.add(Job("confirmation", key, confirm.commit, confirm.branch, confirm.worker, confirm.seq))
        self._settled[problem, target] = mark
        entry = self._index.entry(problem, crown.seq) if crown else None
        if entry is not None:
            self._crown(entry)

    def _digest(self, base: str, problem: str) -> str | None:
        """The digest of a problem as it stands; None, and said, when it cannot be judged as it stands."""
        beginning = f"candidates of {problem} wait"
        try:
            digest = self._snapshots.problem(base, problem).digest
        except HarnessError as error:
            self._status.trouble(beginning, error)
            return None
        self._status.over(beginning)
        return digest
