"""Standing of one problem in a simulated run, by the rules of `harness.ledger.standings`."""

from __future__ import annotations

import math
import random

from harness.model.config import PolicyConfig
from harness.planner.decision import ProblemFacts
from harness.planner.facts import recent_gain
from harness.simulation.problems import SimulatedProblem
from harness.simulation.published import sol_score

_NOISE = 0.0025
"""Standard deviation of ln(measured / true speed-up) between evaluations of one candidate on a GPU.

Source: 10 evaluations of a sealed kernel range over 0.7 % (docs/performance.md).
"""
_HALF_WIDTH = 0.005
"""`JudgeConfig.half_width_gpu`."""
_REPEATED_LOSS = 0.05


class SimulatedStanding:
    """Standing of one problem, updated with every evaluation."""

    def __init__(self, problem: SimulatedProblem) -> None:
        self.problem = problem
        self.evaluations = 0
        self.failures = 0
        self.cost_s = 0.0
        self.last_evaluation = 0
        """Number of this problem's last evaluation among those of the whole run; 0 before the first."""
        self.log_speedup = -math.inf
        """True ln of the speed-up of the best candidate."""
        self._gains: list[tuple[int, float]] = []
        self._best_measured = 0.0
        self._gain_mark = 0.0
        self._facts: ProblemFacts | None = None

    def enter(self, log_speedup: float | None, cost_s: float, number: int, rng: random.Random) -> bool:
        """Enter one evaluation.

        Args:
            log_speedup: true ln of the candidate's speed-up; None if it did not pass.
            cost_s: seconds of building and judging.
            number: number of the evaluation in the whole run, from 1.
            rng: generator of the measurement's noise.

        Returns:
            True for a gain, whose whole interval is above the last gain.
        """
        self.evaluations += 1
        self.cost_s += cost_s
        self.last_evaluation = number
        self._facts = None
        if log_speedup is None:
            self.failures += 1
            return False
        measured = math.exp(log_speedup + rng.gauss(0.0, _NOISE))
        if measured > self._best_measured:
            self._best_measured, self.log_speedup = measured, log_speedup
        if measured * (1.0 - _HALF_WIDTH) <= self._gain_mark:
            return False
        self._gain_mark = measured
        self._gains.append((self.evaluations, measured))
        return True

    def repeated(self) -> float | None:
        """Return ln of the speed-up of a candidate that repeats an attempt; None if no candidate has passed."""
        return self.log_speedup - _REPEATED_LOSS if self._best_measured else None

    def facts(self, run_evaluations: int, policy: PolicyConfig) -> ProblemFacts:
        """Return the facts as `harness.planner.facts` derives them from the ledger.

        Args:
            run_evaluations: number of evaluations of the whole run so far.
            policy: configuration of the policy.
        """
        elsewhere = min(run_evaluations - self.last_evaluation, policy.return_after + 1) if self.evaluations else 0
        # Facts are not validated, and are copied if only `elsewhere` changed: this takes most of the time of a round.
        if self._facts is None:
            self._facts = ProblemFacts.model_construct(
                problem=self.problem.key,
                evaluations=self.evaluations,
                failures=self.failures,
                duplicates=0,
                speedup=self._best_measured or None,
                score=self._score(),
                since_gain=self.evaluations - (self._gains[-1][0] if self._gains else 0),
                recent_gain=recent_gain(self._gains, self.evaluations, policy.stale_after),
                gains=len(self._gains),
                half_gain=recent_gain(self._gains, self.evaluations, (self.evaluations + 1) // 2),
                cost_s=round(self.cost_s, 3),
                elsewhere=elsewhere,
            )
        elif self._facts.elsewhere != elsewhere:
            self._facts = self._facts.model_copy(update={"elsewhere": elsewhere})
        return self._facts

    def _score(self) -> float | None:
        if not self._best_measured:
            return None
        return sol_score(min(math.log(self._best_measured), self.problem.headroom), self.problem.headroom)
