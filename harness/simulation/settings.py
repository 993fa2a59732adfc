"""The size, the prices and the habits of a simulated run, and its seeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.model.config import PolicyConfig
from harness.simulation.published import GPUS, PROBLEMS, WEEKS

DEVELOPMENT_SEEDS = range(100, 108)
"""Seeds that policies may be developed with."""
HELD_OUT_SEEDS = range(2000, 2020)
"""Seeds for the reported comparison. No constant of a policy may be chosen by a result on these."""


@dataclass(frozen=True)
class SimulationSettings:
    """One simulated run; the defaults are the public result's size."""

    problems: int = PROBLEMS
    gpus: int = GPUS
    workers: int = 100
    hours: float = WEEKS * 7 * 24.0
    round_s: float = 900.0
    """Seconds between two decisions of the planner. The real one decides at every change; here a worker that is done
    with its problem waits for the next round, 7.5 minutes on average, under every policy."""
    session_evaluations: int = 12
    """Submissions of one agent session. A session without a gain of its own ends the worker's stay (`stale`)."""
    settling_min: float = 10.0
    """Minutes an agent reads and sets up when it comes to a problem, besides its first submission."""
    overlap: float = 0.15
    """Share of a worker's submissions that repeat, for each other worker on the same problem, an attempt of that one.
    A repeated submission is judged and changes nothing. An assumption."""
    usd_per_gpu_hour: float = 5.0
    """Of a reserved B200, whether busy or idle. An assumption; prices in 2026 range from 3 to 9 USD."""
    usd_per_agent_hour: float = 6.0
    """Tokens of one working agent. An assumption."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
