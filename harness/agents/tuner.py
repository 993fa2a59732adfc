"""Sessions without a model: a search over the values that a solution declares in `tune:`, with Optuna.

Each trial is an ordinary candidate: it is written into the worktree, committed and judged. Earlier evaluations of the
same space by any worker count as trials of the search, and no tree is tried twice.
"""

from __future__ import annotations

import random
import threading
import uuid
import warnings
from collections.abc import Generator
from typing import TYPE_CHECKING

from harness.agents.session import Brief, End, Event, Text, ToolUse, Usage
from harness.agents.tuning_space import Params, Space, read_space
from harness.formats.solutions import SOLUTION_NAME
from harness.git.repo import Submission
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.entry import Entry
from harness.model.verdict import Verdict
from harness.workspace.files import atomic_write
from harness.workspace.timing_lock import working

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution

PATIENCE = 20
"""Number of trials without a gain that ends the search."""
GAIN = 1.01
"""Least ratio of a gain to the best speed-up before: less is within the noise of one evaluation on a CPU."""
_STARTUP_TRIALS = 6
"""Random trials before Optuna's model of the space is used."""
_MAX_SUGGESTIONS = 12
"""Suggestions of Optuna that were tried already, after which a random untried combination is used."""


class Search:
    """The state of one search: Optuna's study and the trees with a result.

    Args:
        space: the search space.
        seed: searches of one space with different seeds try different combinations.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self.best: float | None = None
        self._random = random.Random(seed)  # noqa: S311 - a search, not a secret
        self._by_tree = space.by_tree()
        self._trees_with_result: set[str] = set()
        self._study = _study(seed)
        self._distributions = _distributions(space)

    def learn(self, attempts: tuple[TriedCandidate, ...]) -> bool:
        """Add the results of attempts by any worker to the study; return True if one of them is a gain."""
        gain = False
        for attempt in attempts:
            if attempt.verdict is None or attempt.tree in self._trees_with_result:
                continue
            self._trees_with_result.add(attempt.tree)
            params = self._by_tree.get(attempt.tree)
            if params is not None:
                self._add(params, attempt.speedup if attempt.verdict is Verdict.PASSED else None)
            gain = self._note_best(attempt.speedup if attempt.verdict is Verdict.PASSED else None) or gain
        return gain

    def next(self, tried: set[str]) -> tuple[Params, Trial | None] | None:
        """Return the next values to try and the study's trial for them; None if all combinations were tried.

        The trial is None for a solution without values to tune.
        """
        if not self._distributions:
            return None if self.space.tree({}) in tried else ({}, None)
        if self.space.tree(self.space.start) not in tried:
            return self._enqueued(self.space.start)
        for _ in range(_MAX_SUGGESTIONS):
            trial = self._study.ask(self._distributions)
            params: Params = dict(trial.params)
            if self.space.tree(params) not in tried:
                return params, trial
            self._fail(trial)
        drawn = self.space.draw(tried, self._random)
        return None if drawn is None else self._enqueued(drawn)

    def record(self, tree: str, trial: Trial | None, speedup: float | None) -> bool:
        """Record the result of a trial; return True if it is a gain.

        Args:
            tree: tree id of the candidate.
            trial: the trial that `next` returned.
            speedup: over the baseline; None if the candidate did not pass.
        """
        from optuna.trial import TrialState  # noqa: PLC0415 - Optuna is loaded with the first search

        self._trees_with_result.add(tree)
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
    """An `AgentSession` that runs a search."""

    model = "optuna-tpe"

    def __init__(self, brief: Brief) -> None:
        self.id = brief.resume or uuid.uuid4().hex
        self._brief = brief
        self._interrupted = threading.Event()

    def interrupt(self, *, at_once: bool = False) -> None:
        """End the session before the next trial.

        Args:
            at_once: ignored: a trial's time is that of its evaluation, which cannot be interrupted.
        """
        del at_once
        self._interrupted.set()

    def events(self) -> Generator[Event, None, None]:
        """Run trials until all combinations were tried or there was no gain for `PATIENCE` trials."""
        tools = self._brief.tools
        with working():
            search = Search(read_space(self._brief.solution), self._brief.seed)
        space = search.space
        yield Text(f"{space.size} combinations of {', '.join(space.values) or 'no values: the solution as committed'}")
        search.learn(tools.history())
        since_gain = trials = 0
        while True:
            end = self._end_reached(since_gain, trials)
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
                yield End("interrupted", "stopped during the evaluation of a trial")
                return
            trials += 1
            speedup = entry.summary.speedup if entry.verdict is Verdict.PASSED and entry.summary else None
            since_gain = 0 if search.record(submitted.tree, trial, speedup) else since_gain + 1
            yield Usage(Spent(evaluations=1))
            yield Text(f"{summary}: {_result(entry, speedup)}")

    def _commit(self, space: Space, params: Params, summary: str) -> Submission:
        atomic_write(self._brief.solution / SOLUTION_NAME, space.rendered(params))
        return self._brief.tools.commit(f"Try {summary}")

    def _end_reached(self, since_gain: int, trials: int) -> End | None:
        if self._interrupted.is_set():
            return End("interrupted", "stopped between two trials")
        if since_gain >= PATIENCE:
            self._brief.tools.note(f"no gain in {since_gain} trials of the values in `tune`", None, None)
            return End("stale", f"no gain in {since_gain} trials")
        limit = self._brief.budget.evaluations
        if limit is not None and trials >= limit:
            return End("budget", f"the limit of {limit} evaluations is reached")
        return None

    def _exhausted(self, search: Search) -> End:
        best = "none passed" if search.best is None else f"best speed-up {search.best:.3f}"
        self._brief.tools.note(
            f"all {search.space.size} combinations of the values in `tune` were tried: {best}", None, None
        )
        return End("exhausted", f"all {search.space.size} combinations were tried or are in progress; {best}")


def _result(entry: Entry, speedup: float | None) -> str:
    return f"speed-up {speedup:.3f}" if speedup is not None else f"{entry.verdict}: {entry.reason}"


def _study(seed: int) -> Study:
    import optuna  # noqa: PLC0415 - the import takes a quarter of a second, and only a tuner uses it

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        # Optuna marks the joint sampling of several values as experimental. TPE needs it to model interactions.
        warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS, multivariate=True)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _distributions(space: Space) -> dict[str, BaseDistribution]:
    from optuna.distributions import CategoricalDistribution  # noqa: PLC0415

    return {name: CategoricalDistribution(values) for name, values in space.values.items()}
