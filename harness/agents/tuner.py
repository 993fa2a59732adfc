"""A worker without a model: searches the values that a solution declares in `tune:`, with Optuna.

Each trial is a candidate like any other: written into the worktree, committed, judged. What anyone found out about
the same space before counts as a trial of the search, and no tree is tried twice.
"""

from __future__ import annotations

import random
import threading
import uuid
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING

from harness.agents.session import Brief, End, Event, Submitted, Text, ToolUse, Usage
from harness.agents.tuning_space import Params, Space, read_space
from harness.formats.solutions import SOLUTION_NAME
from harness.ledger.candidates import TriedCandidate
from harness.model.entry import Entry
from harness.model.verdict import Verdict
from harness.workspace.files import atomic_write
from harness.workspace.timing_lock import working

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

PATIENCE = 20
"""Trials without gain after which the tuner gives up."""
GAIN = 1.01
"""A gain is at least so many times the best before: less is within the noise of one evaluation on a CPU."""
_STARTUP = 6
"""Random trials before Optuna's model of the space is worth asking."""
_ASKS = 12
"""Answers of the model that are known already before a random unknown combination is taken instead."""


class Search:
    """The state of one search: Optuna's study, and which trees are known.

    Args:
        space: what may vary.
        seed: two searches of one space with different seeds go different ways.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.best: float | None = None
        self._draws = random.Random(seed)  # noqa: S311 - a search, not a secret
        self._by_tree = space.by_tree()
        self._learned: set[str] = set()
        self._study = _study(seed)
        self._distributions = _distributions(space)

    def learn(self, attempts: tuple[TriedCandidate, ...]) -> bool:
        """Take in what others found; True when one of them is a gain."""
        gain = False
        for attempt in attempts:
            if attempt.verdict is None or attempt.tree in self._learned:
                continue
            self._learned.add(attempt.tree)
            params = self._by_tree.get(attempt.tree)
            if params is not None:
                self._add(params, attempt.speedup if attempt.verdict is Verdict.PASSED else None)
            gain = self._note_best(attempt.speedup if attempt.verdict is Verdict.PASSED else None) or gain
        return gain

    def next(self, tried: set[str]) -> tuple[Params, Trial | None] | None:
        """Values whose tree is not among `tried`, and the study's trial for them; None when none is left."""
        if not self._distributions:
            return None if self.space.tree({}) in tried else ({}, None)
        if self.space.tree(self.space.start) not in tried:
            return self._enqueued(self.space.start)
        for _ in range(_ASKS):
            trial = self._study.ask(self._distributions)
            params: Params = dict(trial.params)
            if self.space.tree(params) not in tried:
                return params, trial
            self._fail(trial)
        drawn = self.space.draw(tried, self._draws)
        return None if drawn is None else self._enqueued(drawn)

    def tell(self, tree: str, trial: Trial | None, speedup: float | None) -> bool:
        """The outcome of a trial; `speedup` is None when it did not pass. True when it is a gain."""
        from optuna.trial import TrialState  # noqa: PLC0415 - Optuna is loaded with the first search

        self._learned.add(tree)
        if trial is not None and speedup is not None:
            self._study.tell(trial, speedup)
        elif trial is not None:
            self._study.tell(trial, state=TrialState.PRUNED)
        return self._note_best(speedup)

    def _note_best(self, speedup: float | None) -> bool:
        if speedup is None or (self.best is not None and speedup <= self.best):
            return False
        gain = self.best is None or speedup > self.best * GAIN
        self.best = speedup
        return gain

    def _enqueued(self, params: Params) -> tuple[Params, Trial]:
        self._study.enqueue_trial(params)
        trial = self._study.ask(self._distributions)
        return dict(params), trial

    def _fail(self, trial: Trial) -> None:
        from optuna.trial import TrialState  # noqa: PLC0415

        self._study.tell(trial, state=TrialState.FAIL)

    def _add(self, params: Params, speedup: float | None) -> None:
        from optuna.trial import TrialState, create_trial  # noqa: PLC0415

        self._study.add_trial(
            create_trial(
                params=params,
                distributions=self._distributions,
                value=speedup,
                state=TrialState.COMPLETE if speedup is not None else TrialState.PRUNED,
            )
        )


class TunerSession:
    """An `AgentSession` that searches."""

    model = "optuna-tpe"

    def __init__(self, brief: Brief) -> None:
        self.id = brief.resume or uuid.uuid4().hex
        self._brief = brief
        self._interrupted = threading.Event()

    def interrupt(self, *, at_once: bool = False) -> None:
        """End before the next trial: none takes long but for the judge's part, which cannot be hurried."""
        del at_once
        self._interrupted.set()

    def events(self) -> Generator[Event, None, None]:
        """One trial after the other, until the space or the patience is exhausted."""
        tools = self._brief.tools
        with working():
            search = Search(read_space(self._brief.solution), self._brief.seed)
        space = search.space
        yield Text(f"{space.size} combinations of {', '.join(space.values) or 'nothing: the solution as it is'}")
        search.learn(tools.history())
        since_gain = trials = 0
        while True:
            end = self._why_end(since_gain, trials)
            if end:
                yield end
                return
            with tools.turn():
                attempts = tools.history()
                since_gain = 0 if search.learn(attempts) else since_gain
                with working():
                    chosen = search.next({attempt.tree for attempt in attempts})
                if chosen is None:
                    yield self._exhausted(search)
                    return
                params, trial = chosen
                summary = ", ".join(f"{name}={value}" for name, value in params.items()) or "as committed"
                submitted = self._commit(space, params, summary)
            yield ToolUse("submit", summary)
            entry = tools.outcome(submitted)
            if entry is None:
                yield End("interrupted", "told to stop while a trial was being judged")
                return
            trials += 1
            speedup = entry.summary.speedup if entry.verdict is Verdict.PASSED and entry.summary else None
            since_gain = 0 if search.tell(submitted.tree, trial, speedup) else since_gain + 1
            yield Usage(evaluations=1)
            yield Text(f"{summary}: {_said(entry, speedup)}")

    def _commit(self, space: Space, params: Params, summary: str) -> Submitted:
        atomic_write(self._brief.solution / SOLUTION_NAME, space.rendered(params))
        return self._brief.tools.commit(f"Try {summary}")

    def _why_end(self, since_gain: int, trials: int) -> End | None:
        if self._interrupted.is_set():
            return End("interrupted", "told to stop between two trials")
        if since_gain >= PATIENCE:
            self._brief.tools.note(f"no gain in {since_gain} trials of the tuned values", None, None)
            return End("stale", f"no gain in {since_gain} trials")
        limit = self._brief.budget.evaluations
        if limit is not None and trials >= limit:
            return End("budget", f"{limit} evaluations made")
        return None

    def _exhausted(self, search: Search) -> End:
        best = "none passed" if search.best is None else f"best speed-up {search.best:.3f}"
        self._brief.tools.note(
            f"all {search.space.size} combinations of the tuned values are known: {best}", None, None
        )
        return End("exhausted", f"all {search.space.size} combinations are known or under way; {best}")


def _said(entry: Entry, speedup: float | None) -> str:
    return f"speed-up {speedup:.3f}" if speedup is not None else f"{entry.verdict}: {entry.reason}"


def _study(seed: int) -> Study:
    import optuna  # noqa: PLC0415 - a quarter of a second, and only a tuner needs it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        # Optuna marks the joint sampling of several values as experimental; it is what makes TPE see interactions.
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution  # noqa: PLC0415

    return {name: CategoricalDistribution(values) for name, values in space.values.items()}
