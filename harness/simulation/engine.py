"""Discrete-event simulation of a run, with workers, GPUs and the planner's real policy, in simulated time.

Workers behave like `harness.agents.worker`. A worker runs one session after another on the problem of its row, and
leaves it after its present submission if the row changes. A session without a gain finishes the problem for the worker
until the table gives it another one. The GPUs have one queue. The planner reads the standings and decides every
`round_s` seconds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import ConfigurationError
from harness.model.assignment import Assignment
from harness.model.process_status import FinishReason
from harness.planner.decision import Decision, PolicyInputs, WorkerFacts
from harness.simulation.ledger_model import SimulatedStanding
from harness.simulation.published import ResultFigures, figures
from harness.simulation.settings import SimulationSettings
from harness.simulation.worlds import World

if TYPE_CHECKING:
    import simpy

Policy = Callable[[PolicyInputs], Decision]
_SAMPLE_ROUNDS = 12
"""Rounds between two points of a curve: three hours by default."""


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
        world: model of the growth of speed-ups.
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
            yield from self._settle()
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

    def _settle(self) -> Generator[simpy.Event, object, None]:
        seconds = 60.0 * self._settings.settling_min
        self._agent_s += seconds
        yield self._environment.timeout(seconds)

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
                [standing.log_speedup for standing in standings],
                [standing.problem.headroom for standing in standings],
            ),
            gpu_busy_hours=self._gpu_busy_s / 3600.0,
        )


def at_cost(samples: Sequence[RunSample], cost: Callable[[RunSample], float], budget: float) -> float:
    """Return the geometric mean of the speed-ups at a cost. Its logarithm is interpolated linearly between samples.

    Args:
        samples: of a run, in order of time.
        cost: returns the cost of the run at a sample.
        budget: the cost, in the same unit. Above the cost of the run, the result is that of the last sample.
    """
    before = samples[0]
    for sample in samples:
        if cost(sample) >= budget:
            width = cost(sample) - cost(before)
            share = (budget - cost(before)) / width if width else 1.0
            return math.exp(before.log_speedup + share * (sample.log_speedup - before.log_speedup))
        before = sample
    return math.exp(before.log_speedup)
