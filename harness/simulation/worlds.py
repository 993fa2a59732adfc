"""Simulated problems, and three worlds: models of the growth of a problem's speed-up with the number of attempts.

The public result has the final figures and no trajectories. Each world is one explanation that gives these figures when
the attempts are spread evenly. A policy is useful only if it helps under more than one explanation. The constants
marked "fitted" come from `python -m benchmarks.fit_worlds`; the others are assumptions, listed in `World.assumptions`
and in docs/explanation/simulation.md.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

FAMILIES = (
    "attention", "convolution", "elementwise", "embedding", "gemm", "mlp",
    "moe", "normalisation", "quantised", "reduction", "rope", "ssm",
)  # fmt: skip
"""Suites of the simulated problems. The first part of a problem's key is its family."""

_JUDGE_MEDIAN_S = 12.0
_JUDGE_SIGMA = 0.45
"""Seconds to judge one candidate with all workloads, log-normal.

Source: the 14 shipped solutions took 7.4 to 34.2 s on an H200, median 11 s (docs/performance.md). The median is
a little higher because confirmations are counted here.
"""
_AGENT_MEDIAN_MIN = 18.0
_AGENT_SIGMA_BETWEEN = 0.35
_AGENT_SIGMA_WITHIN = 0.5
"""Minutes of an agent's work per submission, log-normal, mean 21.7.

Source: an agent that worked alone on attention for 7 days explored more than 500 directions, one in 20 minutes (Chen et
al., AVO, arXiv 2603.24517).
"""

Attempt = Callable[[random.Random], float | None]
"""Makes one attempt and returns ln of the candidate's true speed-up over the baseline, or None if it does not pass.

The function has the state of the problem, which earlier attempts have changed.
"""


@dataclass(frozen=True)
class SimulatedProblem:
    """A problem of a world, with a random generator of its own, so that all policies get the same random numbers."""

    key: str
    """`family/name`."""
    headroom: float
    """ln of the speed-up at the bound."""
    judge_median_s: float
    agent_median_min: float
    attempt: Attempt
    rng: random.Random

    def agent_s(self) -> float:
        """Draw the seconds that an agent works on the next submission."""
        return 60.0 * self.agent_median_min * math.exp(self.rng.gauss(0.0, _AGENT_SIGMA_WITHIN))

    def judge_s(self) -> float:
        """Draw the seconds that a GPU is busy with the submission."""
        return self.judge_median_s * math.exp(self.rng.gauss(0.0, 0.15))


def spread_evenly(problems: Sequence[SimulatedProblem], attempts: int) -> list[float]:
    """Make attempts on each problem in turn, without a clock; the worlds are fitted with these results.

    Args:
        problems: of one realisation of a world.
        attempts: number of attempts on each problem.

    Returns:
        ln of the best speed-up of each problem; -inf if no attempt passed.
    """
    best = [-math.inf] * len(problems)
    for _ in range(attempts):
        for number, problem in enumerate(problems):
            log_speedup = problem.attempt(problem.rng)
            if log_speedup is not None and log_speedup > best[number]:
                best[number] = log_speedup
    return best


_GREATEST_HEADROOM = math.log(50.0)
_LEAST_HEADROOM = math.log(1.02)


@dataclass(frozen=True)
class Fitted:
    """Constants of a world that are fitted to the published figures."""

    headroom_median: float
    """Median over the problems of ln(speed-up at the bound)."""
    headroom_sigma: float
    """Standard deviation of the headroom's logarithm."""
    deficit_mean: float
    """Mean of ln(first passing solution's time / baseline's time), which has an exponential distribution."""
    pace: float
    """Speed of improvement, which each world defines."""


DrawProblems = Callable[[Fitted, random.Random], Iterator[tuple[str, float, Attempt]]]
"""(constants, generator) -> family, headroom and attempts of each problem of one realisation, without end."""


@dataclass(frozen=True)
class World:
    """One explanation of the public result."""

    name: str
    title: str
    assumptions: tuple[str, ...]
    fitted: Fitted
    draw: DrawProblems

    def problems(self, count: int, seed: int) -> list[SimulatedProblem]:
        """Return the problems of one realisation, without attempts."""
        realisation = f"{self.name}/{seed}"
        rng = random.Random(realisation)  # noqa: S311 - a simulation
        drawn = zip(range(count), self.draw(self.fitted, rng))  # noqa: B905 - the worlds draw without end
        return [
            SimulatedProblem(
                key=f"{family}/p{number:03}",
                headroom=headroom,
                judge_median_s=_JUDGE_MEDIAN_S * math.exp(rng.gauss(0.0, _JUDGE_SIGMA)),
                agent_median_min=_AGENT_MEDIAN_MIN * math.exp(rng.gauss(0.0, _AGENT_SIGMA_BETWEEN)),
                attempt=attempt,
                rng=random.Random(f"{realisation}/{number}"),  # noqa: S311 - as above
            )
            for number, (family, headroom, attempt) in drawn
        ]


def _headroom(fitted: Fitted, rng: random.Random, factor: float = 1.0) -> float:
    drawn = factor * fitted.headroom_median * math.exp(rng.gauss(0.0, fitted.headroom_sigma))
    return float(min(max(drawn, _LEAST_HEADROOM), _GREATEST_HEADROOM))


def _exponential(rng: random.Random, mean: float) -> float:
    return rng.expovariate(1.0 / mean)


# World 1: diminishing returns.

_POWER = 0.5
_TAU_SIGMA = 1.2
_REALISED = 0.25
_SHORT_OF_IDEA = 0.15


@dataclass(slots=True)
class _Diminishing:
    deficit: float
    span: float
    tau: float
    pass_rate: float
    passed: int = 0

    def attempt(self, rng: random.Random) -> float | None:
        if rng.random() >= self.pass_rate:
            return None
        self.passed += 1
        envelope = -self.deficit + self.span * (1.0 - math.pow(1.0 + self.passed / self.tau, -_POWER))
        return envelope if rng.random() < _REALISED else envelope - _exponential(rng, _SHORT_OF_IDEA)


def _draw_diminishing(fitted: Fitted, rng: random.Random) -> Iterator[tuple[str, float, Attempt]]:
    while True:
        headroom = _headroom(fitted, rng)
        deficit = _exponential(rng, fitted.deficit_mean)
        state = _Diminishing(
            deficit=deficit,
            span=deficit + headroom * rng.betavariate(4.0, 2.0),
            tau=fitted.pace * math.exp(rng.gauss(0.0, _TAU_SIGMA)),
            pass_rate=rng.betavariate(6.0, 4.0),
        )
        yield rng.choice(FAMILIES), headroom, state.attempt


# World 2: breakthroughs after plateaus.

_RATE_SIGMA = 1.6
_TUNING_RATE = 0.1
_TUNING_SHARE = 0.25
_SLACK = (0.02, 0.08)
_FIRST_DESIGN = 1.25
"""Largest gain of tuning the first design, as a share of its deficit. Above 1, it is faster than the baseline."""
_TYPICAL_LOSS = 0.1


@dataclass(slots=True)
class _Breakthroughs:
    level: float
    reachable: float
    rate: float
    pass_rate: float
    slack: float
    """ln of the speed-up that tuning of the present design can still gain."""

    def attempt(self, rng: random.Random) -> float | None:
        if rng.random() >= self.pass_rate:
            return None
        luck = rng.random()
        if luck < self.rate:
            self.level += (self.reachable - self.level) * rng.betavariate(2.0, 3.0)
            self.slack = min(rng.uniform(*_SLACK), self.reachable - self.level)
            return self.level
        if luck < self.rate + _TUNING_RATE:
            self.level += _TUNING_SHARE * self.slack
            self.slack *= 1.0 - _TUNING_SHARE
            return self.level
        return self.level - _exponential(rng, _TYPICAL_LOSS)


def _draw_breakthroughs(fitted: Fitted, rng: random.Random) -> Iterator[tuple[str, float, Attempt]]:
    while True:
        headroom = _headroom(fitted, rng)
        deficit = _exponential(rng, fitted.deficit_mean)
        reachable = headroom * rng.betavariate(4.0, 2.0)
        state = _Breakthroughs(
            level=-deficit,
            reachable=reachable,
            rate=min(0.5, fitted.pace * math.exp(rng.gauss(0.0, _RATE_SIGMA))),
            pass_rate=rng.betavariate(6.0, 4.0),
            slack=min(deficit * rng.uniform(0.0, _FIRST_DESIGN), reachable + deficit),
        )
        yield rng.choice(FAMILIES), headroom, state.attempt


# World 3: families with lessons, and many failures.

_LESSON_GAIN = 0.03
_HALF_LEARNED = 30
_BEST_PASS_RATE = 0.7
_LESSONS_SPEED = 3.0
_CATCHING_UP = 3.0
"""Factor of the rate of gains while a solution is slower than the baseline, because the baseline's design is known."""
_FAMILY_HEADROOM_SIGMA = 0.4
_FAMILY_RATE_SIGMA = 1.2
_PROBLEM_RATE_SIGMA = 0.8


@dataclass(slots=True)
class _OperatorFamily:
    headroom_factor: float
    rate: float
    lessons: int = 0
    """Gains of at least 3 % on any problem of the family."""

    @property
    def learned(self) -> float:
        """Share of the lessons' largest effect, from 0 to 1."""
        return self.lessons / (self.lessons + _HALF_LEARNED)


@dataclass(slots=True)
class _Taught:
    family: _OperatorFamily
    level: float
    reachable: float
    rate: float
    pass_rate: float

    def attempt(self, rng: random.Random) -> float | None:
        learned = self.family.learned
        if rng.random() >= self.pass_rate + (_BEST_PASS_RATE - self.pass_rate) * learned:
            return None
        catching_up = _CATCHING_UP if self.level < 0.0 else 1.0
        if rng.random() >= self.rate * catching_up * (1.0 + (_LESSONS_SPEED - 1.0) * learned):
            return self.level - _exponential(rng, _TYPICAL_LOSS)
        gain = (self.reachable - self.level) * rng.betavariate(1.0, 4.0)
        self.level += gain
        self.family.lessons += gain >= _LESSON_GAIN
        return self.level


def _draw_families(fitted: Fitted, rng: random.Random) -> Iterator[tuple[str, float, Attempt]]:
    families = {
        name: _OperatorFamily(
            headroom_factor=math.exp(rng.gauss(0.0, _FAMILY_HEADROOM_SIGMA)),
            rate=fitted.pace * math.exp(rng.gauss(0.0, _FAMILY_RATE_SIGMA)),
        )
        for name in FAMILIES
    }
    while True:
        name = rng.choice(FAMILIES)
        family = families[name]
        headroom = _headroom(fitted, rng, family.headroom_factor)
        state = _Taught(
            family=family,
            level=-_exponential(rng, fitted.deficit_mean),
            reachable=headroom * rng.betavariate(4.0, 2.0),
            rate=min(0.3, family.rate * math.exp(rng.gauss(0.0, _PROBLEM_RATE_SIGMA))),
            pass_rate=min(_BEST_PASS_RATE, rng.betavariate(2.0, 5.0)),
        )
        yield name, headroom, state.attempt


_SHARED = (
    "The bound is not reachable: the best possible solution has a Beta(4, 2) share (mean 0.67) of the log headroom.",
    "The headroom is log-normal; the first passing solution is slower than the baseline by an exponential deficit.",
)
_DIMINISHING = (
    "The best idea so far follows a power law of the attempts that passed, (1 + n / tau)^-0.5.",
    "tau is log-normal over the problems (sigma 1.2): most gains come early, and small ones for ever.",
    "60 % of attempts pass (Beta(6, 4)); a quarter of those realise the idea, the others lose 15 % on average.",
    "Families make no difference.",
)
_BREAKTHROUGHS = (
    "A new design arrives at random, without memory: a long plateau does not predict the next attempt.",
    "Its rate is log-normal over the problems (sigma 1.6).",
    "A breakthrough closes a Beta(2, 3) share (mean 0.4) of the distance to the best possible solution.",
    "Tuning gains 2 to 8 % after a breakthrough; of the first design, up to 1.25 times its deficit (uniform from 0).",
    "60 % of attempts pass (Beta(6, 4)). Families make no difference.",
)
_FAMILIES = (
    "Twelve families differ in headroom (sigma 0.4) and in the rate of gains (sigma 1.2).",
    "Problems of one family differ less in the rate of gains (sigma 0.8).",
    "29 % of attempts pass at first (Beta(2, 5)).",
    "Each gain of 3 % or more is a lesson for its family, which raises pass rate and rate of gains.",
    "30 lessons close half of the way to a pass rate of 70 % and to three times the rate of gains.",
    "A gain closes a Beta(1, 4) share (mean 0.2) of the distance to the best possible solution.",
    "Gains come three times as often while the solution is slower than the baseline.",
)

WORLDS: Mapping[str, World] = {
    world.name: world
    for world in (
        World(
            name="diminishing",
            title="Diminishing returns",
            assumptions=(*_SHARED, *_DIMINISHING),
            fitted=Fitted(headroom_median=0.70, headroom_sigma=1.30, deficit_mean=0.52, pace=64.0),
            draw=_draw_diminishing,
        ),
        World(
            name="breakthroughs",
            title="Breakthroughs after plateaus",
            assumptions=(*_SHARED, *_BREAKTHROUGHS),
            fitted=Fitted(headroom_median=1.21, headroom_sigma=0.32, deficit_mean=0.20, pace=0.0027),
            draw=_draw_breakthroughs,
        ),
        World(
            name="families",
            title="Families with lessons, and many failures",
            assumptions=(*_SHARED, *_FAMILIES),
            fitted=Fitted(headroom_median=0.87, headroom_sigma=1.17, deficit_mean=0.33, pace=0.0031),
            draw=_draw_families,
        ),
    )
}
