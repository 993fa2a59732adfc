"""Actors, nodes and heads are killed at random points: each candidate has one entry, and nothing is left running."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from tests.cluster.ray_nodes import RayNodes, ray_nodes
from tests.cluster.ray_site import RaySite, needs_ray, no_judge_left, ray_site
from tests.site import site_in

pytestmark = [pytest.mark.slow, needs_ray, pytest.mark.xdist_group("ray")]

CANDIDATES = 40
KILLS = ["actor"] * 9 + ["node"] * 5 + ["daemon"] * 4 + ["ray head"] * 2
SEED = 20260601


def kill(target: str, chance: random.Random, run: RaySite, nodes: RayNodes) -> None:
    """Kill a part of the cluster, and restart the processes that a person or systemd would restart."""
    if target == "actor":
        victims = [name for name in nodes.names if nodes.processes(name, "actor")]
        if victims:
            nodes.kill(chance.choice(victims), "actor")
    elif target == "node":
        name = chance.choice([name for name in nodes.names if name != "head"])
        nodes.kill(name, "raylet")
        nodes.kill_node(name)
        nodes.add(name)
    elif target == "daemon":
        run.kill_daemon()
        run.start()
    else:  # the cluster is gone with it
        other_nodes = [name for name in nodes.names if name != "head"]
        nodes.kill("head", "gcs_server")
        for name in ["head", *other_nodes]:
            nodes.kill_node(name)
        nodes.start_head(cpu=True)
        for name in other_nodes:
            nodes.add(name)


@pytest.mark.timeout(3000)
def test_twenty_kills_leave_one_entry_for_each_of_forty_candidates(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    order = chance.sample(KILLS, len(KILLS))
    with site_in(tmp_path) as site, ray_nodes(site.environment()) as nodes, ray_site(site, nodes) as run:
        nodes.start_head(cpu=True)
        nodes.add("n1")
        nodes.add("n2")
        commits = [
            site.submit(
                f"w{number % 4}", f"t/{('one', 'two')[number % 2]}", f"{number} stub: speedup=0.9 stub: takes=1"
            )
            for number in range(CANDIDATES)
        ]
        run.start()
        for number, target in enumerate(order):
            run.wait_for_evaluations(number * CANDIDATES // len(order))
            threading.Event().wait(chance.random())  # anywhere in an evaluation
            kill(target, chance, run, nodes)
        run.wait_for_evaluations(CANDIDATES)
        output = run.end()
        no_judge_left(nodes)
        nodes.close()
        site.no_strays()
        run.assert_each_passed_once(commits)
        run.assert_audited()
        assert "lost" in output, "no kill affected the run"
