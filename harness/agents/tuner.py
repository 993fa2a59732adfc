"""Sessions without a model: a search over the values that a solution declares in `tune:`, with Optuna.

Each trial is an ordinary candidate: it is written into the worktree, committed and judged. Earlier evaluations of the
same space by any worker count as trials of the search, and no tree is tried twice.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import uuid
import warnings
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.agents.session import Brief, End, Event, Text, ToolUse, Usage
from harness.formats.solutions import SOLUTION_NAME, load_solution, param_positions, with_params
from harness.git.tree_ids import TreeFile, tree_files, tree_id
from harness.ledger.accounts import Spent
from harness.ledger.candidates import TriedCandidate
from harness.model.printable import count_of
from harness.model.solution import ParamValue
from harness.model.verdict import Verdict
from harness.workspace.files import atomic_write
from harness.workspace.timing_lock import working

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial, TrialState

PATIENCE = 20
"""Number of trials without a gain that ends the search."""
GAIN = 1.01
"""Least ratio of a gain to the best speed-up before: less is within the noise of one evaluation on a CPU."""
_STARTUP_TRIALS = 6
"""Random trials before Optuna's model of the space is used."""
_MAX_SUGGESTIONS = 12
"""Suggestions of Optuna that were tried already, after which a random untried combination is used."""
_ENUMERABLE = 4096
"""Largest number of combinations that are enumerated with their trees; larger spaces are sampled."""
_MAX_DRAWS = 2000
"""Random draws from a large space after which it counts as exhausted."""

Params = dict[str, ParamValue]


@dataclass(frozen=True)
class Space:
    """The search space of one solution."""

    text: str
    """solution.yaml at the start of the search."""
    spots: Mapping[str, tuple[int, int]]
    """Parameter -> begin and end of its value in `text`."""
    values: Mapping[str, tuple[ParamValue, ...]]
    start: Params
    """The committed values."""
    files: Mapping[str, TreeFile]
    """The files of the solution directory."""

    @property
    def size(self) -> int:
        """Return the number of combinations."""
        return math.prod(len(values) for values in self.values.values())

    def rendered(self, params: Params) -> str:
        """Return solution.yaml with these values. Equal values give equal bytes, for any start of the search."""
        return with_params(self.text, params, self.spots)

    def tree(self, params: Params) -> str:
        """Return the git tree id of the solution directory with these values."""
        return tree_id(self.files, {SOLUTION_NAME: self.rendered(params).encode()})

    def by_tree(self) -> dict[str, Params]:
        """Return tree id -> values of all combinations; {} for a space of more than 4,096 combinations."""
        if self.size > _ENUMERABLE:
            return {}
        return {self.tree(params): params for params in self._combinations()}

    def draw(self, tried: Collection[str], generator: random.Random) -> Params | None:
        """Return a random combination that was not tried; None if none is found.

        Args:
            tried: tree ids.
        """
        if self.size <= _ENUMERABLE:
            drawn = generator.sample(list(self._combinations()), self.size)
        else:
            axes = self.values.items()
            drawn = [{name: generator.choice(values) for name, values in axes} for _ in range(_MAX_DRAWS)]
        return next((params for params in drawn if self.tree(params) not in tried), None)

    def _combinations(self) -> Iterator[Params]:
        for chosen in itertools.product(*self.values.values()):
            yield dict(zip(self.values, chosen, strict=True))


def read_space(directory: Path) -> Space:
    """Return the search space of the solution in a directory.

    Raises:
        FormatError: the solution is not valid.
    """
    spec = load_solution(directory).spec
    text = (directory / SOLUTION_NAME).read_bytes().decode()
    start = {name: spec.params[name] for name in spec.tune}
    return Space(text, param_positions(text), spec.tune, start, tree_files(directory))


class Search:
    """The state of one search: Optuna's study and the trees with a result.

    Args:
        seed: searches of one space with different seeds try different combinations.
    """

    def __init__(self, space: Space, seed: int) -> None:
        import optuna  # noqa: PLC0415 - the import takes a quarter of a second, and only a tuner uses it

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with warnings.catch_warnings():
            # Optuna marks the joint sampling of several values as experimental. TPE needs it to model interactions.
            warnings.simplefilter("ignore", category=optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP_TRIALS, multivariate=True)
        self.space = space
        self.best: float | None = None
        self._random = random.Random(seed)  # noqa: S311 - a search, not a secret
        self._by_tree = space.by_tree()
        self._trees_with_result: set[str] = set()
        self._optuna = optuna
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._distributions: dict[str, BaseDistribution] = {
            name: optuna.distributions.CategoricalDistribution(values) for name, values in space.values.items()
        }

    def learn(self, attempts: tuple[TriedCandidate, ...]) -> bool:
        """Add the results of attempts by any worker to the study; return True if one of them is a gain."""
        gain = False
        for attempt in attempts:
            if attempt.verdict is None or attempt.tree in self._trees_with_result:
                continue
            self._trees_with_result.add(attempt.tree)
            speedup = attempt.speedup if attempt.verdict is Verdict.PASSED else None
            params = self._by_tree.get(attempt.tree)
            if params is not None:
                self._study.add_trial(
                    self._optuna.trial.create_trial(
                        params=params, distributions=self._distributions, value=speedup, state=self._state(speedup)
                    )
                )
            gain = self._note_best(speedup) or gain
        return gain

    def next(self, tried: set[str]) -> tuple[Params, Trial] | None:
        """Return the next values to try and the study's trial for them; None if all combinations were tried."""
        if self.space.tree(self.space.start) not in tried:
            return self._enqueued(self.space.start)
        for _ in range(_MAX_SUGGESTIONS):
            trial = self._study.ask(self._distributions)
            params: Params = dict(trial.params)
            if self.space.tree(params) not in tried:
                return params, trial
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        drawn = self.space.draw(tried, self._random)
        return None if drawn is None else self._enqueued(drawn)

    def record(self, tree: str, trial: Trial, speedup: float | None) -> bool:
        """Record the result of a trial; return True if it is a gain.

        Args:
            tree: tree id of the candidate.
            trial: the trial that `next` returned.
            speedup: over the baseline; None if the candidate did not pass.
        """
        self._trees_with_result.add(tree)
        self._study.tell(trial, speedup, state=self._state(speedup))
        return self._note_best(speedup)

    def _state(self, speedup: float | None) -> TrialState:
        states = self._optuna.trial.TrialState
        return states.PRUNED if speedup is None else states.COMPLETE

    def _note_best(self, speedup: float | None) -> bool:
        if speedup is None or (self.best is not None and speedup <= self.best):
            return False
        gain = self.best is None or speedup > self.best * GAIN
        self.best = speedup
        return gain

    def _enqueued(self, params: Params) -> tuple[Params, Trial]:
        self._study.enqueue_trial(params)
        return dict(params), self._study.ask(self._distributions)


class TunerSession:
    """An `AgentSession` that runs a search."""

    model = "optuna-tpe"

    def __init__(self, brief: Brief) -> None:
        assert brief.tools is not None  # noqa: S101 - a worker's session has tools
        self.id = brief.resume or uuid.uuid4().hex
        self._brief, self._tools = brief, brief.tools
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
        tools = self._tools
        with working():
            search = Search(read_space(self._brief.solution), self._brief.seed)
        space = search.space
        values = ", ".join(space.values) or "no values: the solution as committed"
        yield Text(f"{count_of(space.size, 'combination')} of {values}")
        search.learn(tools.history())
        since_gain = trials = 0
        while (end := self._end_reached(since_gain, trials)) is None:
            with tools.turn():
                attempts = tools.history()
                since_gain = 0 if search.learn(attempts) else since_gain
                with working():
                    chosen = search.next({attempt.tree for attempt in attempts})
                if chosen is None:
                    end = self._exhausted(search)
                    break
                params, trial = chosen
                summary = ", ".join(f"{name}={value}" for name, value in params.items()) or "as committed"
                atomic_write(self._brief.solution / SOLUTION_NAME, space.rendered(params))
                submitted = tools.commit(f"Try {summary}")
            yield ToolUse("submit", summary)
            entry = tools.outcome(submitted)
            if entry is None:
                end = End("interrupted", "stopped during the evaluation of a trial")
                break
            trials += 1
            speedup = entry.summary.speedup if entry.verdict is Verdict.PASSED and entry.summary else None
            since_gain = 0 if search.record(submitted.tree, trial, speedup) else since_gain + 1
            yield Usage(Spent(evaluations=1))
            outcome = f"{entry.verdict}: {entry.reason}" if speedup is None else f"speed-up {speedup:.3f}"
            yield Text(f"{summary}: {outcome}")
        yield end

    def _end_reached(self, since_gain: int, trials: int) -> End | None:
        if self._interrupted.is_set():
            return End("interrupted", "stopped between two trials")
        if since_gain >= PATIENCE:
            self._tools.note(f"no gain in {since_gain} trials of the values in `tune`", None, None)
            return End("stale", f"no gain in {since_gain} trials")
        limit = self._brief.agent.per_session.evaluations
        if limit is not None and trials >= limit:
            return End("budget", f"the limit of {count_of(limit, 'evaluation')} is reached")
        return None

    def _exhausted(self, search: Search) -> End:
        best = "none passed" if search.best is None else f"best speed-up {search.best:.3f}"
        size = search.space.size
        combinations = "the only combination" if size == 1 else f"all {size} combinations"
        self._tools.note(f"tried {combinations} of the values in `tune`: {best}", None, None)
        return End("exhausted", f"tried, or in progress: {combinations}; {best}")
