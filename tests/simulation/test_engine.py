"""The simulated run: the planner's real policies, one queue of GPUs, and costs that add up."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from harness.ledger.standings import Gain, Standing
from harness.model.config import PolicyConfig
from harness.planner.decision import Decision, PolicyInputs
from harness.planner.facts import problem_facts
from harness.planner.policies import POLICIES, ROUND_ROBIN
from harness.planner.policy import decide
from harness.simulation.compare import RunKey, outcomes, run_all
from harness.simulation.engine import (
    DEVELOPMENT_SEEDS,
    RunSample,
    SimulatedStanding,
    SimulationSettings,
    log_speedup_at,
    simulate,
)
from harness.simulation.worlds import WORLDS

SMALL = SimulationSettings(problems=12, gpus=2, workers=5, hours=72.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_one_seed_gives_one_run(policy: str) -> None:
    first, second = (simulate(WORLDS["families"], POLICIES[policy], 7, SMALL) for _ in range(2))
    assert first == second
    assert first != simulate(WORLDS["families"], POLICIES[policy], 8, SMALL)


def test_every_decision_is_the_policys_on_inputs_that_can_be_recorded() -> None:
    """The policy's inputs can be stored in a ledger and have the run's counts; workers follow its rows."""
    all_inputs: list[PolicyInputs] = []

    def watched(inputs: PolicyInputs) -> Decision:
        assert PolicyInputs.model_validate_json(inputs.model_dump_json()) == inputs
        if all_inputs:
            last = {row.worker: row for row in decided[-1].assignments}
            assert {row.worker: row for row in inputs.assignments} == last
        all_inputs.append(inputs.model_copy(deep=True))
        decided.append(decide(inputs))
        return decided[-1]

    decided: list[Decision] = []
    run = simulate(WORLDS["diminishing"], watched, 1, SMALL)
    assert len(all_inputs) == 72 * 4
    evaluations = [sum(facts.evaluations for facts in inputs.problems) for inputs in all_inputs]
    assert evaluations == sorted(evaluations)
    assert evaluations[0] == 0
    assert run.samples[-1].evaluations >= evaluations[-1] > 400
    assert {worker.worker for worker in all_inputs[0].workers} == {f"w{number:03}" for number in range(1, 6)}
    assert any(worker.finished for worker in all_inputs[-1].workers)
    assert any(facts.failures for facts in all_inputs[-1].problems)
    assert all((facts.score is None) == (facts.speedup is None) for facts in all_inputs[-1].problems)


def test_round_robin_spreads_evaluations_evenly() -> None:
    all_inputs: list[PolicyInputs] = []

    def watched(inputs: PolicyInputs) -> Decision:
        all_inputs.append(inputs)
        return POLICIES[ROUND_ROBIN](inputs)

    simulate(WORLDS["breakthroughs"], watched, 3, SMALL)
    evaluations = [facts.evaluations for facts in all_inputs[-1].problems]
    assert min(evaluations) > 60
    assert max(evaluations) < 1.25 * min(evaluations)


def test_gpus_are_a_queue() -> None:
    """With one GPU and slow judging, the GPU is never idle and judges one candidate at a time."""
    one_gpu = replace(SMALL, gpus=1, workers=60, problems=60, hours=30.0)
    sixty_gpus = replace(one_gpu, gpus=60)
    queued, unlimited = (
        simulate(WORLDS["diminishing"], POLICIES[ROUND_ROBIN], 2, settings) for settings in (one_gpu, sixty_gpus)
    )
    assert queued.gpu_busy_hours <= one_gpu.hours
    assert queued.samples[-1].evaluations <= unlimited.samples[-1].evaluations
    assert queued.samples[-1].gpu_hours == pytest.approx(30.0)
    assert unlimited.samples[-1].gpu_hours == pytest.approx(1800.0)


def test_workers_on_one_problem_repeat_each_other() -> None:
    """Ten workers on one problem gain more without overlap, because repeated submissions change nothing."""
    alone = replace(SMALL, problems=1, workers=10, gpus=10, hours=48.0)
    apart, repeating = (
        simulate(WORLDS["diminishing"], POLICIES[ROUND_ROBIN], 105, replace(alone, overlap=overlap))
        for overlap in (0.0, 0.5)
    )
    assert repeating.samples[-1].evaluations == pytest.approx(apart.samples[-1].evaluations, rel=0.1)
    assert repeating.samples[-1].log_speedup < 0.7 * apart.samples[-1].log_speedup


def test_dollars_are_of_gpus_and_agents() -> None:
    free_agents = simulate(WORLDS["diminishing"], POLICIES[ROUND_ROBIN], 2, replace(SMALL, usd_per_agent_hour=0.0))
    paid = simulate(WORLDS["diminishing"], POLICIES[ROUND_ROBIN], 2, SMALL)
    assert free_agents.samples[-1].usd == pytest.approx(2 * 72 * 5.0)
    agents_usd = paid.samples[-1].usd - free_agents.samples[-1].usd
    assert 0.8 * 5 * 72 * 6.0 < agents_usd <= 5 * 72 * 6.0
    usd = [sample.usd for sample in paid.samples]
    assert usd == sorted(usd)


def test_a_simulated_standing_has_the_facts_of_the_ledgers() -> None:
    """The same evaluations as a `Standing` give the same facts."""
    problem = WORLDS["diminishing"].problems(1, 1)[0]
    config = PolicyConfig(stale_after=4, return_after=9)
    simulated = SimulatedStanding(problem)

    class NoNoise(random.Random):
        def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:  # noqa: ARG002 - as the base
            return mu

    reached = [None, -0.2, -0.1, -0.3, 0.1, 0.1, None]
    gains = [
        simulated.enter(log_speedup, 10.0, number, NoNoise(0)) for number, log_speedup in enumerate(reached, start=3)
    ]
    assert gains == [False, True, True, False, True, False, False]
    standing = Standing(
        problem=problem.key,
        evaluations=7,
        verdicts={"PASSED": 5, "INCORRECT_NUMERICAL": 2},
        gains=(
            Gain(2, 2, math.exp(-0.2), None),
            Gain(3, 3, math.exp(-0.1), None),
            Gain(5, 5, math.exp(0.1), None),
        ),
        since_gain=2,
        cost_s=70.0,
        last_at="t09",
    )
    recent = [f"t{number:02}" for number in range(10, 15)]
    expected = problem_facts(standing, recent, config)
    facts = simulated.facts(14, config)
    assert facts.speedup == pytest.approx(math.exp(0.1))
    assert facts.model_copy(update={"speedup": None, "score": None}) == expected


def test_the_speedup_at_a_cost_is_interpolated() -> None:
    samples = [RunSample(0, 0, 0, 0, 0.0), RunSample(1, 10, 50, 5, 0.2), RunSample(2, 20, 60, 9, 0.3)]
    assert log_speedup_at(samples, "gpu_hours", 15) == pytest.approx(0.25)
    assert log_speedup_at(samples, "usd", 25) == pytest.approx(0.1)
    assert log_speedup_at(samples, "usd", 1000) == pytest.approx(0.3)


def test_a_comparison_divides_by_round_robin_with_the_same_seed() -> None:
    policies = list(POLICIES)
    runs = dict(run_all(["diminishing"], policies, DEVELOPMENT_SEEDS[:2], SMALL, jobs=1))
    assert set(runs) == {RunKey("diminishing", policy, seed) for policy in policies for seed in DEVELOPMENT_SEEDS[:2]}
    compared = {outcome.policy: outcome for outcome in outcomes(runs, SMALL)}
    even = compared[ROUND_ROBIN]
    assert even.ratio_half == even.ratio_half_usd == 1.0
    assert even.wins == 0
    for policy in policies:
        ratio = compared[policy].half / even.half
        assert compared[policy].ratio_half == pytest.approx(ratio)
        interval = compared[policy].ratio_half_ci95
        assert interval is not None
        assert interval[0] <= ratio <= interval[1]


def test_the_interval_has_students_quantile_of_its_number_of_seeds() -> None:
    runs = dict(run_all(["diminishing"], list(POLICIES), DEVELOPMENT_SEEDS[:2], SMALL, jobs=1))
    outcome = next(outcome for outcome in outcomes(runs, SMALL) if outcome.wins)
    logs = [
        log_speedup_at(runs[RunKey("diminishing", outcome.policy, seed)].samples, "gpu_hours", 72.0)
        - log_speedup_at(runs[RunKey("diminishing", ROUND_ROBIN, seed)].samples, "gpu_hours", 72.0)
        for seed in DEVELOPMENT_SEEDS[:2]
    ]
    assert outcome.ratio_half_ci95 is not None
    # 12.706: 97.5 % quantile of Student's t, one degree of freedom. The error of two values' mean is half of their gap.
    expected = 12.706 * abs(logs[0] - logs[1]) / 2
    assert math.log(outcome.ratio_half_ci95[1] / outcome.ratio_half) == pytest.approx(expected, rel=1e-3)


def test_one_seed_has_no_interval() -> None:
    runs = dict(run_all(["diminishing"], [ROUND_ROBIN], DEVELOPMENT_SEEDS[:1], SMALL, jobs=1))
    assert [outcome.ratio_half_ci95 for outcome in outcomes(runs, SMALL)] == [None]
