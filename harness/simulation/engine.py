"""Discrete-event simulation of a run, with workers, GPUs and the planner's real policy, in simulated time.

Workers behave like `harness.agents.worker`. A worker runs one session after another on the problem of its row, and
leaves it after its present submission if the row changes. A session without a gain finishes the problem for the worker
until the table gives it another one. The GPUs have one queue. The planner reads the standings and decides every
`round_s` seconds.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.model.config import PolicyConfig
from harness.model.process_status import FinishReason
from harness.planner.decision import Decision, PolicyInputs, ProblemFacts, WorkerFacts
from harness.planner.facts import recent_gain
from harness.simulation.published import GPUS, PROBLEMS, WEEKS, ResultFigures, figures, sol_score
from harness.simulation.worlds import SimulatedProblem, World

if TYPE_CHECKING:
    import simpy

Policy = Callable[[PolicyInputs], Decision]
CostName = Literal["gpu_hours", "usd"]
"""A kind of cost of a run, which is a field of its samples."""
_SAMPLE_ROUNDS = 12
"""Rounds between two points of a curve: three hours by default."""
_NOISE = 0.0025
"""Standard deviation of ln(measured / true speed-up) between evaluations of one candidate on a GPU.

Source: 10 evaluations of a sealed kernel range over 0.7 % (docs/performance.md).
"""
_HALF_WIDTH = 0.005
"""`JudgeConfig.half_width_gpu`."""
_REPEATED_LOSS = 0.05
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


@dataclass(frozen=True)
class RunSample:
    """State of a run at one time."""

    hours: float
    gpu_hours: float
    """GPU-hours reserved so far: number of GPUs x hours."""
    usd: float
    """Cost of the reserved GPUs and the working agents so far."""
    evaluations: int
    log_speedup: float
    """Mean over the problems of ln(speed-up); a problem without a faster solution counts as 0."""


@dataclass(frozen=True)
class SimulatedRun:
    """Run of one policy in one realisation of a world."""

    samples: tuple[RunSample, ...]
    final: ResultFigures
    gpu_busy_hours: float


def simulate(world: World, policy: Policy, seed: int, settings: SimulationSettings) -> SimulatedRun:
    """Simulate one run.

    Args:
        policy: assigns workers to problems, as in the planner.
        seed: seed of all random numbers of the world. Runs with one seed differ only by their policies.
        settings: size, prices and behaviour of the workers.

    Raises:
        ConfigurationError: SimPy is not installed.
    """
    try:
        import simpy  # noqa: PLC0415 - an optional dependency
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "the simulation needs SimPy, which is not installed. Install it: pip install 'kernel-harness[simulate]'",
            where="harness planner simulate",
        ) from error
    environment = simpy.Environment()
    run = _Run(environment, simpy.Resource(environment, settings.gpus), world, policy, seed, settings)
    environment.process(run.plan())
    for worker in run.workers:
        environment.process(run.work(worker))
    environment.run(until=settings.hours * 3600.0)
    return run.result()


class SimulatedStanding:
    """Standing of one problem by the rules of `harness.ledger.standings`, updated with every evaluation."""

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


class _SimulatedWorker:
    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: str | None = None
        """Problem of its row in the table."""
        self.stint = 0
        self.finished: dict[str, FinishReason] = {}
        self.resting: str | None = None
        """Problem that it has just finished. It waits until its row names another one."""
        self._facts = WorkerFacts(worker=name)

    def facts(self) -> WorkerFacts:
        """Return the facts of the worker for the planner."""
        if self._facts.stint != self.stint or self._facts.finished != self.finished:
            self._facts = WorkerFacts.model_construct(worker=self.name, stint=self.stint, finished=dict(self.finished))
        return self._facts


class _Run:
    def __init__(
        self,
        environment: simpy.Environment,
        gpus: simpy.Resource,
        world: World,
        policy: Policy,
        seed: int,
        settings: SimulationSettings,
    ) -> None:
        self._environment, self._gpus, self._policy, self._settings = environment, gpus, policy, settings
        drawn = world.problems(settings.problems, seed)
        self._standings = {problem.key: SimulatedStanding(problem) for problem in drawn}
        self.workers = [_SimulatedWorker(f"w{number:03}") for number in range(1, settings.workers + 1)]
        self._rows: tuple[Assignment, ...] = ()
        self._decided = environment.event()
        self._crowd: Counter[str] = Counter()
        """Number of workers by problem."""
        self._evaluations = 0
        self._agent_s = self._gpu_busy_s = 0.0
        self._log_speedup_sum = 0.0
        self._samples: list[RunSample] = []

    def plan(self) -> Generator[simpy.Event, object, None]:
        """Decide every `round_s`, and take a sample every few rounds."""
        rounds = 0
        while True:
            self._decide()
            if rounds % _SAMPLE_ROUNDS == 0:
                self._sample()
            rounds += 1
            self._decided.succeed()
            self._decided = self._environment.event()
            yield self._environment.timeout(self._settings.round_s)

    def _decide(self) -> None:
        config = self._settings.policy
        inputs = PolicyInputs.model_construct(
            problems=tuple(standing.facts(self._evaluations, config) for standing in self._standings.values()),
            workers=tuple(worker.facts() for worker in self.workers),
            assignments=self._rows,
            policy=config,
        )
        decision = self._policy(inputs)
        self._rows = decision.assignments
        problems = {row.worker: row.problem for row in self._rows}
        for worker in self.workers:
            problem = problems.get(worker.name)
            if problem != worker.problem:
                worker.problem, worker.stint, worker.resting = problem, 0, None
        self._crowd = Counter(problems.values())

    def work(self, worker: _SimulatedWorker) -> Generator[simpy.Event, object, None]:
        """Run one worker's sessions on the problem of its row, until the end of the simulation."""
        while True:
            problem = worker.problem
            if problem is None or problem == worker.resting:
                yield self._decided
                continue
            worker.finished.pop(problem, None)
            settling_s = 60.0 * self._settings.settling_min
            self._agent_s += settling_s
            yield self._environment.timeout(settling_s)
            gained, submissions = False, 0
            while worker.problem == problem:
                gained |= yield from self._submit(worker, self._standings[problem])
                submissions += 1
                if submissions >= self._settings.session_evaluations:
                    if not gained:
                        worker.finished[problem] = "stale"
                        worker.resting = problem
                        break
                    gained, submissions = False, 0

    def _submit(self, worker: _SimulatedWorker, standing: SimulatedStanding) -> Generator[simpy.Event, object, bool]:
        """Simulate the agent's work, the queue and the judging of one submission. Return true for a gain."""
        problem = standing.problem
        agent_s = problem.agent_s()
        yield self._environment.timeout(agent_s)
        self._agent_s += agent_s
        with self._gpus.request() as request:
            yield request
            judge_s = problem.judge_s()
            yield self._environment.timeout(judge_s)
        before = max(0.0, standing.log_speedup)
        self._evaluations += 1
        other_workers = self._crowd[problem.key] - (worker.problem == problem.key)
        if problem.rng.random() < 1.0 - (1.0 - self._settings.overlap) ** other_workers:
            reached = standing.repeated()
        else:
            reached = problem.attempt(problem.rng)
        gain = standing.enter(reached, judge_s, self._evaluations, problem.rng)
        self._log_speedup_sum += max(0.0, standing.log_speedup) - before
        self._gpu_busy_s += judge_s
        if worker.problem == problem.key:
            worker.stint += 1
        return gain

    def _sample(self) -> None:
        hours = self._environment.now / 3600.0
        gpu_hours = hours * self._settings.gpus
        usd = gpu_hours * self._settings.usd_per_gpu_hour + self._agent_s / 3600.0 * self._settings.usd_per_agent_hour
        mean = self._log_speedup_sum / len(self._standings)
        self._samples.append(RunSample(hours, gpu_hours, usd, self._evaluations, mean))

    def result(self) -> SimulatedRun:
        """Return the samples and figures of the run, after its end."""
        self._sample()
        standings = list(self._standings.values())
        return SimulatedRun(
            samples=tuple(self._samples),
            final=figures(
                [standing.log_speedup for standing in standings], [standing.problem.headroom for standing in standings]
            ),
            gpu_busy_hours=self._gpu_busy_s / 3600.0,
        )


def log_speedup_at(samples: Sequence[RunSample], cost: CostName, budget: float) -> float:
    """Return ln of the geometric mean of the speed-ups at a cost, interpolated linearly between samples.

    Args:
        samples: of a run, in order of time.
        budget: the cost. Above the cost of the run, the result is that of the last sample.
    """
    costs = [getattr(sample, cost) for sample in samples]
    return float(np.interp(budget, costs, [sample.log_speedup for sample in samples]))
