"""Upper bounds of what a planner's policy can reach in the simulated worlds: `python -m benchmarks.planner_bounds`.

    python -m benchmarks.planner_bounds [--seeds 6] [--world NAME]... [--jobs 2]

Two planners that no policy can be, at half of the budget, against round robin with the same seeds (held-out ones):

- The simulation runs `oracle` like any policy. It reads the true state of each problem: its best possible solution, its
  rate of gains, its pass rate, its costs. It does not read the random outcomes of the next attempts. It sends workers
  where the expected gain per hour is highest, over the number of attempts for which that is best (an index of Gittins'
  kind). It assigns several workers to a problem if the gain exceeds the cost of repeated submissions. It does not value
  lessons.
- `clairvoyant` has the outcome of every attempt in advance. It divides the time of all workers among the problems for
  the highest sum, by the concave hulls of their trajectories; workers need no settling, and do not repeat each other.
  This bounds every policy from above. In the world of families each family has from the start the lessons that it has
  at the end of the oracle's run.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from tabulate import tabulate

from harness.model.assignment import Assignment
from harness.planner.decision import Decision, PolicyInputs
from harness.planner.policies import POLICIES, ROUND_ROBIN
from harness.planner.policy import NAME
from harness.simulation.engine import HELD_OUT_SEEDS, SimulationSettings, simulate
from harness.simulation.worlds import WORLDS, SimulatedProblem, World

HALF = SimulationSettings(hours=SimulationSettings().hours / 2)
_HORIZONS = (1, 3, 10, 30, 100, 300)
"""Numbers of attempts over which the oracle looks ahead."""
_STAY = 0.8
"""The oracle moves a worker for a gain that is 1 / 0.8 of its own: moving costs half a submission."""
_MOST_GAINS = 12
_LONGEST_TRAJECTORY = 4_000
"""Attempts on one problem; 100 workers make 73,000 in all."""

State = Any
"""The state of a simulated problem; each world has a class of its own."""


@dataclass(frozen=True)
class Bounds:
    """ln of the geometric mean of speed-ups at half of the budget, for one world and seed."""

    world: str
    seed: int
    round_robin: float
    shipped: float
    oracle: float
    clairvoyant: float


def bounds(world_name: str, seed: int, settings: SimulationSettings = HALF) -> Bounds:
    """Simulate round robin, the shipped policy and the oracle, and compute the clairvoyant planner's result.

    Args:
        world_name: of `WORLDS`.
        seed: of the world and of all luck in it.
        settings: of the part of the run that counts, by default half of it.
    """
    world = WORLDS[world_name]

    def reached(policy: Callable[[PolicyInputs], Decision], simulated: World = world) -> float:
        return simulate(simulated, policy, seed, settings).samples[-1].log_speedup

    oracle = Oracle(settings.overlap)
    by_oracle = reached(oracle, _ObservedWorld(**vars(world), oracle=oracle))
    return Bounds(
        world_name,
        seed,
        reached(POLICIES[ROUND_ROBIN]),
        reached(POLICIES[NAME]),
        by_oracle,
        clairvoyant(world, seed, settings, oracle.lessons()),
    )


class Oracle:
    """A policy that sees the true states of the problems."""

    def __init__(self, overlap: float) -> None:
        self._overlap = overlap
        self._problems: dict[str, SimulatedProblem] = {}
        self._values: dict[str, tuple[object, float]] = {}

    def look_at(self, problems: list[SimulatedProblem]) -> list[SimulatedProblem]:
        """Remember the problems of a run, and return them."""
        self._problems = {problem.key: problem for problem in problems}
        return problems

    def lessons(self) -> dict[str, int]:
        """Return the lessons of each family; empty in a world without."""
        states = {key.partition("/")[0]: _state(problem) for key, problem in self._problems.items()}
        return {name: state.family.lessons for name, state in states.items() if hasattr(state, "family")}

    def __call__(self, inputs: PolicyInputs) -> Decision:
        """Assign workers to the problems with the highest expected gain per hour."""
        values = {facts.problem: self._value(facts.problem, facts.evaluations) for facts in inputs.problems}
        crowd = dict.fromkeys(values, 0)
        present = {row.worker: row.problem for row in inputs.assignments}
        rows: dict[str, str] = {}
        # The places in decreasing order of value: the n-th worker on a problem adds only its distinct submissions.
        worth = {key: value for key, value in values.items() if value > 0}
        places = sorted(
            ((value * self._share(number), key) for key, value in worth.items() for number in range(6)), reverse=True
        )[: len(inputs.workers)]
        lowest_value = places[-1][0] if places else 0.0
        for worker in sorted(inputs.workers, key=lambda facts: facts.worker):
            current = present.get(worker.worker)
            if (
                current is not None
                and current not in worker.finished
                and values[current] * self._share(crowd[current]) >= _STAY * lowest_value
            ):
                rows[worker.worker] = current
                crowd[current] += 1
        for worker in sorted(inputs.workers, key=lambda facts: facts.worker):
            if worker.worker not in rows:
                current = present.get(worker.worker)
                best = max(
                    (key for key in values if key != current), key=lambda key: values[key] * self._share(crowd[key])
                )
                rows[worker.worker] = best
                crowd[best] += 1
        assignments = tuple(Assignment(worker=name, problem=key, wanted="oracle") for name, key in rows.items())
        return Decision(assignments=assignments, reasons=dict.fromkeys(rows, "oracle"))

    def _share(self, colleagues: int) -> float:
        """Return the share of submissions that one more worker adds on a problem with so many colleagues."""
        distinct = [(number + 1) * (1.0 - self._overlap) ** number for number in (colleagues - 1, colleagues)]
        return max(distinct[1] - distinct[0], 0.0) if colleagues else 1.0

    def _value(self, key: str, evaluations: int) -> float:
        problem = self._problems[key]
        state = _state(problem)
        mark = (evaluations, state.family.lessons // 3 if hasattr(state, "family") else 0)
        cached = self._values.get(key)
        if cached is None or cached[0] != mark:
            hours = (60.0 * problem.agent_median_min * math.exp(0.125) + problem.judge_median_s) / 3600.0
            gain = max(_expected_gain(state, attempts) / attempts for attempts in _HORIZONS)
            self._values[key] = cached = mark, gain / hours
        return cached[1]


def _state(problem: SimulatedProblem) -> State:
    return problem.attempt.__self__  # type: ignore[attr-defined] # attempts are methods of the worlds' states


def _expected_gain(state: State, attempts: int) -> float:
    """Return the expected growth of ln of the speed-up over the baseline after so many attempts."""
    if hasattr(state, "tau"):  # diminishing returns

        def envelope(passed: float) -> float:
            return max(0.0, float(-state.deficit + state.span * (1.0 - (1.0 + passed / state.tau) ** -0.5)))

        return float(envelope(state.passed + attempts * state.pass_rate) - envelope(state.passed))
    if hasattr(state, "slack"):  # breakthroughs
        tuned = state.level + state.slack * (1.0 - 0.75 ** (0.1 * state.pass_rate * attempts))
        return _by_jumps(tuned, state.level, state.reachable, state.pass_rate * state.rate * attempts, 0.4)
    learned = state.family.learned
    passing = state.pass_rate + (0.7 - state.pass_rate) * learned
    rate = state.rate * (3.0 if state.level < 0 else 1.0) * (1.0 + 2.0 * learned)
    return _by_jumps(state.level, state.level, state.reachable, passing * rate * attempts, 0.2)


def _by_jumps(tuned: float, level: float, reachable: float, expected: float, share: float) -> float:
    """Return the gain when a Poisson number of jumps each close a share of the distance to the best solution."""
    gain = 0.0
    for jumps in range(_MOST_GAINS):
        probability = math.exp(-expected) * expected**jumps / math.factorial(jumps)
        after = reachable - (reachable - max(tuned, level)) * (1.0 - share) ** jumps
        gain += probability * (max(0.0, after) - max(0.0, level))
    more_jumps = 1.0 - sum(
        math.exp(-expected) * expected**jumps / math.factorial(jumps) for jumps in range(_MOST_GAINS)
    )
    return gain + max(more_jumps, 0.0) * (max(0.0, reachable) - max(0.0, level))


@dataclass(frozen=True)
class _ObservedWorld(World):
    """A world whose problems the oracle sees."""

    oracle: Oracle

    def problems(self, count: int, seed: int) -> list[SimulatedProblem]:
        return self.oracle.look_at(super().problems(count, seed))


def clairvoyant(world: World, seed: int, settings: SimulationSettings, lessons: dict[str, int]) -> float:
    """Return the highest mean of ln of the speed-ups when the outcome of every attempt is known.

    Args:
        world: how speed-ups grow.
        seed: of the world.
        settings: number of problems, workers and hours.
        lessons: of each family, held fixed; empty in a world without.
    """
    problems = world.problems(settings.problems, seed)
    left, total = float(settings.workers * settings.hours), 0.0
    steps = [step for problem in problems for step in _hull(_trajectory(problem, lessons, left))]
    for hours, gain in sorted(steps, key=lambda step: -step[1] / step[0]):
        total += gain * min(1.0, left / hours)
        left -= hours
        if left <= 0:
            break
    return total / len(problems)


def _trajectory(problem: SimulatedProblem, lessons: dict[str, int], most_hours: float) -> Iterator[tuple[float, float]]:
    """Yield (hours of work so far, best ln speed-up over the baseline) after each attempt that is a gain."""
    hours, best = 0.0, 0.0
    for _ in range(_LONGEST_TRAJECTORY):
        if lessons:
            _state(problem).family.lessons = lessons[problem.key.partition("/")[0]]
        if hours > most_hours:
            return
        hours += (problem.agent_s() + problem.judge_s()) / 3600.0
        problem.rng.random()  # where the simulation draws if another worker's attempt is repeated
        reached = problem.attempt(problem.rng)
        if reached is not None:
            problem.rng.gauss(0.0, 1.0)  # the measurement's noise: draws are as in the simulation
        if reached is not None and reached > best:
            best = reached
            yield hours, best


def _hull(points: Iterator[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the steps (hours, gain) of the concave hull from the origin, the steepest first."""
    hull: list[tuple[float, float]] = [(0.0, 0.0)]
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in itertools.pairwise(hull)]


def _slope(start: tuple[float, float], end: tuple[float, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])


def ratio(logs: Sequence[float]) -> str:
    """Return exp(mean) with the standard error of the mean."""
    error = f" ± {math.exp(mean(logs)) * stdev(logs) / math.sqrt(len(logs)):.3f}" if len(logs) > 1 else ""
    return f"{math.exp(mean(logs)):.3f}{error}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6, help="so many of the held-out seeds")
    parser.add_argument("--world", action="append", choices=[*WORLDS])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    pairs = [(name, seed) for seed in HELD_OUT_SEEDS[: options.seeds] for name in options.world or WORLDS]
    all_bounds: list[Bounds] = []
    with ProcessPoolExecutor(options.jobs) as pool:
        for of_pair in pool.map(bounds, *zip(*pairs, strict=True)):
            all_bounds.append(of_pair)
            print(of_pair, flush=True)
    rows = []
    for name in dict.fromkeys(name for name, _ in pairs):
        of_world = [item for item in all_bounds if item.world == name]
        columns = [
            [getattr(item, planner) - item.round_robin for item in of_world]
            for planner in ("shipped", "oracle", "clairvoyant")
        ]
        rows.append((name, len(of_world), *map(ratio, columns)))
    print(tabulate(rows, headers=("world", "seeds", NAME, "oracle", "clairvoyant")))


if __name__ == "__main__":
    main()
