"""Comparison of policies on the same realisations of the same worlds, at equal cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from operator import sub
from statistics import mean, stdev

from harness.model.interval import student_quantile
from harness.planner.policies import POLICIES, ROUND_ROBIN
from harness.simulation.engine import CostName, SimulatedRun, SimulationSettings, log_speedup_at, simulate
from harness.simulation.worlds import WORLDS

CURVE_POINTS = 60


@dataclass(frozen=True)
class RunKey:
    """One run of a comparison."""

    world: str
    policy: str
    seed: int


@dataclass(frozen=True)
class PolicyOutcome:
    """Figures of one policy in one world, over all seeds. Geometric means are of speed-ups over the baseline."""

    world: str
    policy: str
    seeds: int
    quarter: float
    """Geometric mean at a quarter of the GPU-hours."""
    half: float
    """Geometric mean at half of the GPU-hours."""
    end: float
    """Geometric mean at the end of the budget."""
    faster: float
    """Share of problems faster than the baseline, at the end."""
    above_2x: float
    """Share of problems with a speed-up above 2, at the end."""
    median_score: float
    evaluations: float
    usd: float
    """USD spent in the whole run."""
    half_usd: float
    """Geometric mean at half of the USD that round robin spends in the whole run with the same seed."""
    ratio_half: float
    """Geometric mean over the seeds of the ratio to round robin at half of the GPU-hours."""
    ratio_half_ci95: tuple[float, float] | None
    """95 % interval of `ratio_half`; None for one seed."""
    ratio_half_usd: float
    """The same ratio at half of round robin's USD."""
    ratio_half_usd_ci95: tuple[float, float] | None
    """95 % interval of `ratio_half_usd`; None for one seed."""
    wins: int
    """Number of seeds with a ratio above 1, at half of the GPU-hours."""
    curve: tuple[tuple[float, float], ...]
    """(GPU-hours, geometric mean over problems and seeds)."""
    curve_usd: tuple[tuple[float, float], ...]
    """(USD, geometric mean over problems and seeds)."""


def run_all(
    worlds: Sequence[str], policies: Sequence[str], seeds: Sequence[int], settings: SimulationSettings, jobs: int
) -> Iterator[tuple[RunKey, SimulatedRun]]:
    """Simulate every policy in every world with every seed; yield each run when it ends.

    Args:
        worlds: names of `WORLDS`.
        policies: names of `POLICIES`.
        jobs: number of processes; 1 simulates in this process.
    """
    keys = [RunKey(world, policy, seed) for seed in seeds for world in worlds for policy in policies]
    if jobs == 1:
        for key in keys:
            yield key, _simulated(key, settings)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from zip(keys, pool.map(_simulated, keys, [settings] * len(keys)), strict=True)


def _simulated(key: RunKey, settings: SimulationSettings) -> SimulatedRun:
    return simulate(WORLDS[key.world], POLICIES[key.policy], key.seed, settings)


def outcomes(runs: Mapping[RunKey, SimulatedRun], settings: SimulationSettings) -> list[PolicyOutcome]:
    """Return the figures of each world and policy.

    Args:
        runs: complete runs; each world and seed also has a run of round robin.
    """
    pairs = dict.fromkeys((key.world, key.policy) for key in runs)
    return [_outcome(runs, world, policy, settings) for world, policy in pairs]


def _outcome(
    runs: Mapping[RunKey, SimulatedRun], world: str, policy: str, settings: SimulationSettings
) -> PolicyOutcome:
    seeds = [key.seed for key in runs if (key.world, key.policy) == (world, policy)]
    own = [runs[RunKey(world, policy, seed)] for seed in seeds]
    even = [runs[RunKey(world, ROUND_ROBIN, seed)] for seed in seeds]
    budget = settings.gpus * settings.hours
    half = [budget / 2] * len(seeds)
    half_usd = [run.samples[-1].usd / 2 for run in even]
    at_half, at_half_usd = _logs_at(own, "gpu_hours", half), _logs_at(own, "usd", half_usd)
    ratios = list(map(sub, at_half, _logs_at(even, "gpu_hours", half)))
    ratios_usd = list(map(sub, at_half_usd, _logs_at(even, "usd", half_usd)))
    return PolicyOutcome(
        world=world,
        policy=policy,
        seeds=len(seeds),
        quarter=math.exp(mean(_logs_at(own, "gpu_hours", [budget / 4] * len(seeds)))),
        half=math.exp(mean(at_half)),
        end=math.exp(mean(math.log(run.final.geometric_mean) for run in own)),
        faster=mean(run.final.faster for run in own),
        above_2x=mean(run.final.above_2x for run in own),
        median_score=mean(run.final.median_score for run in own),
        evaluations=mean(run.samples[-1].evaluations for run in own),
        usd=mean(run.samples[-1].usd for run in own),
        half_usd=math.exp(mean(at_half_usd)),
        ratio_half=math.exp(mean(ratios)),
        ratio_half_ci95=_interval(ratios),
        ratio_half_usd=math.exp(mean(ratios_usd)),
        ratio_half_usd_ci95=_interval(ratios_usd),
        wins=sum(ratio > 0 for ratio in ratios),
        curve=_curve(own, "gpu_hours", budget),
        curve_usd=_curve(own, "usd", min(run.samples[-1].usd for run in [*own, *even])),
    )


def _logs_at(runs: Sequence[SimulatedRun], cost: CostName, budgets: Sequence[float]) -> list[float]:
    """Return ln of the geometric mean of the speed-ups of each run at its budget."""
    return [log_speedup_at(run.samples, cost, budget) for run, budget in zip(runs, budgets, strict=True)]


def _interval(logs: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of exp(mean(logs)) by Student's t; None for one value."""
    if len(logs) < 2:
        return None
    half = student_quantile(len(logs) - 1, 0.975) * stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean(logs) - half), math.exp(mean(logs) + half)


def _curve(runs: Sequence[SimulatedRun], cost: CostName, budget: float) -> tuple[tuple[float, float], ...]:
    costs = [budget * number / CURVE_POINTS for number in range(CURVE_POINTS + 1)]
    return tuple((spent, math.exp(mean(_logs_at(runs, cost, [spent] * len(runs))))) for spent in costs)
