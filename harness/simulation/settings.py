"""Settings of a simulated run: its size, prices, the workers' behaviour, and the seeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.model.config import PolicyConfig
from harness.simulation.published import GPUS, PROBLEMS, WEEKS

DEVELOPMENT_SEEDS = range(100, 108)
"""Seeds for the development of policies."""
HELD_OUT_SEEDS = range(2000, 2020)
"""Seeds for the reported comparison. No constant of a policy may be chosen by results with these seeds."""


@dataclass(frozen=True)
class SimulationSettings:
    """Settings of one simulated run; the default size is that of the public result."""

    problems: int = PROBLEMS
    gpus: int = GPUS
    workers: int = 100
    hours: float = WEEKS * 7 * 24.0
    round_s: float = 900.0
    """Seconds between two decisions of the planner. The real planner decides at every change. In the simulation, a
    worker that has finished its problem waits for the next round, 7.5 minutes on average, with every policy."""
    session_evaluations: int = 12
    """Submissions of one agent session. After a session without a gain, the problem is finished for the worker."""
    settling_min: float = 10.0
    """Minutes that an agent needs to read and set up a new problem, before it works on its first submission."""
    overlap: float = 0.15
    """Probability that a submission repeats an attempt of another worker on the same problem, for each such worker. A
    repeated submission is judged and changes nothing. This is an assumption."""
    usd_per_gpu_hour: float = 5.0
    """Price of a reserved B200, busy or idle. This is an assumption; prices in 2026 range from 3 to 9 USD."""
    usd_per_agent_hour: float = 6.0
    """Price of the tokens of one working agent. This is an assumption."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
