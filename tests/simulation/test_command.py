"""`harness planner simulate`: its table, its page, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.cli import cli
from harness.errors import ConfigurationError
from harness.planner.policies import POLICIES, ROUND_ROBIN
from harness.planner.policy import NAME
from harness.report.simulation_page import render_simulation
from harness.simulation.compare import outcomes, run_all
from harness.simulation.engine import DEVELOPMENT_SEEDS, HELD_OUT_SEEDS, SimulationSettings
from harness.simulation.worlds import WORLDS

SMALL = SimulationSettings(problems=24, gpus=3, workers=10, hours=168.0)
TINY = ["--problems", "6", "--gpus", "1", "--workers", "3", "--days", "1", "--seed-count", "2", "--jobs", "1"]


def call(*words: str) -> str:
    completed = CliRunner().invoke(cli, ["planner", "simulate", *words], catch_exceptions=False)
    assert completed.exit_code == 0, completed.output
    return completed.stdout


def test_the_table_as_json() -> None:
    rows = json.loads(call(*TINY, "--world", "families", "--policy", "gain-bandit", "--json"))
    assert [(row["world"], row["policy"]) for row in rows] == [("families", NAME), ("families", ROUND_ROBIN)]
    assert rows[1]["ratio_half"] == 1.0
    assert all(row["seeds"] == 2 and row["evaluations"] > 50 for row in rows)


def test_two_processes_give_the_result_of_one() -> None:
    arguments = [*TINY, "--world", "diminishing", "--policy", "round-robin", "--json"]
    assert call(*arguments) == call(*arguments, "--jobs", "2")


def test_the_page_has_a_curve_for_each_policy(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    table = call(*TINY, "--seeds", "held-out", "-o", str(page))
    assert all(world in table for world in WORLDS)
    text = page.read_text()
    assert text.count("<svg") == 2 * len(WORLDS)
    assert text.count('<path class="line"') == 2 * len(WORLDS) * len(POLICIES)
    for world in WORLDS.values():
        assert all(sentence in text for sentence in world.assumptions)
    assert f"2 held-out seeds, from {HELD_OUT_SEEDS[0]}" in text
    assert "<script" not in text
    assert "://" not in text


def test_the_page_escapes_what_it_is_given() -> None:
    world = WORLDS["diminishing"]
    runs = dict(run_all([world.name], [ROUND_ROBIN], DEVELOPMENT_SEEDS[:1], SMALL, jobs=1))
    (outcome,) = outcomes(runs, SMALL)
    shown = {**outcome.__dict__, "policy": "<b>mine</b>"}
    data = {
        "settings": SMALL.__dict__,
        "seeds": "<i>",
        "shipped": NAME,
        "published": {"geometric_mean": 1.38, "faster": 0.63, "above_2x": 0.19, "median_score": 0.56},
        "worlds": [{"name": "w", "title": "<u>", "assumptions": ["<s>"], "outcomes": [shown]}],
    }
    text = render_simulation(data)
    assert not any(tag in text for tag in ("<b>mine", "<i>", "<u>", "<s>"))
    assert "&lt;b&gt;mine" in text


@pytest.mark.parametrize(
    ("words", "message"), [(["--world", "flat"], "no world `flat`"), (["--policy", "best"], "no policy `best`")]
)
def test_unknown_names_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        call(*words)


def ratio(world: str, seeds: range, settings: SimulationSettings) -> float:
    """Return the shipped policy's geometric mean divided by round robin's, at the end of the run."""
    runs = dict(run_all([world], [NAME, ROUND_ROBIN], seeds, settings, jobs=1))
    ends = {outcome.policy: outcome.end for outcome in outcomes(runs, settings)}
    return ends[NAME] / ends[ROUND_ROBIN]


@pytest.mark.parametrize("world", ["diminishing", "families"])
def test_the_shipped_policy_beats_round_robin_in_a_small_run(world: str) -> None:
    assert ratio(world, DEVELOPMENT_SEEDS[:2], SMALL) > 1.01


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_the_shipped_policy_beats_round_robin_at_half_of_the_public_budget(world: str) -> None:
    """On the first three held-out seeds, it is worse in no world; docs/explanation/simulation.md has the first nine.

    The least ratio of the three is 1.017, in the world `breakthroughs`.
    """
    half = SimulationSettings(hours=SimulationSettings.hours / 2)
    assert ratio(world, HELD_OUT_SEEDS[:3], half) > 1.0
