"""A complete run: two workers and a planner, all with Claude, the real judge, and two starter problems on the CPU.

One worker submits a wrong kernel, and a correct one after reading the answer. When it has finished, the planner moves
it to the other problem. A script replaces the model.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Say, Step, Use, scripted
from tests.site import Site, git, site_in
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PROBLEMS = Path(__file__).parents[2] / "problems" / "starter"
RMSNORM, ROPE = "starter/rmsnorm_h4096", "starter/rope_gqa"
QUICK = """
workers: 2
agent: {kind: claude}
planner: {kind: claude, deadline_s: 600}
policy: {slice_evaluations: 1}
judge: {half_width_cpu: 0.5, max_judge_s: 120}
"""


def solution(problem: str, change: tuple[str, str] | None = None) -> list[Step]:
    """Return the steps that write the problem's own solution with one change."""
    directory = PROBLEMS / problem.partition("/")[2] / "solutions" / "cpu"
    texts = {file.name: file.read_text() for file in sorted(directory.iterdir())}
    if change:
        assert any(change[0] in text for text in texts.values())
    return [agents_site.write(problem, name, text.replace(*change) if change else text) for name, text in texts.items()]


def worker(request: ModelRequest) -> list[Step]:
    problem = re.search(r"Assignment: problem (\S+),", request.text)
    assert problem
    key = problem[1]
    name = re.search(r"You are worker (w\d+)", request.text)
    assert name
    if key == RMSNORM and name[1] == "w01":
        return [
            *solution(key, ("+ 1e-5f", "+ 0.5f")),
            agents_site.submit("a first version"),
            lambda request: agents_site.bash(
                "echo " + ("wrong" if "INCORRECT_NUMERICAL" in request.last_result else "other")
            ),
            *solution(key),
            agents_site.submit("the right epsilon"),
            Use("mcp__harness__note", {"text": "epsilon is added inside the root"}),
            Say("Done."),
        ]
    if key == ROPE and name[1] == "w02":
        return [*solution(key), agents_site.submit("the shipped kernel, as a start"), Say("Done.")]
    # The second problem of each, without an end: a run with nothing left to try would end before the test ends it.
    return [Use("mcp__harness__history", {"query": str(number)}, takes_s=1.0) for number in range(1000)]


def planner(request: ModelRequest) -> list[Step]:
    rows = [("w01", RMSNORM), ("w02", ROPE)]
    reason = "one each to begin with"
    if RMSNORM in _finished(request)["w01"]:
        rows, reason = [("w01", ROPE), ("w02", RMSNORM)], "rmsnorm is done for w01"
    table = [{"worker": name, "problem": key, "wanted": "go on", "reason": reason} for name, key in rows]
    return [Use("mcp__harness__propose", {"assignments": table}), Say("Done.")]


def _finished(request: ModelRequest) -> dict[str, set[str]]:
    """Return worker -> its finished problems, from the situation in the planner's request."""
    content = request.body["messages"][0]["content"]
    text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
    facts, _ = json.JSONDecoder().raw_decode(text[text.index('{\n "problems"') :])
    return {row["worker"]: set(row["finished"]) for row in facts["workers"]}


def script(request: ModelRequest) -> list[Step]:
    return planner(request) if "You plan the work" in request.text else worker(request)


def test_two_workers_and_a_planner_take_two_problems_to_passed(tmp_path: Path) -> None:
    with site_in(tmp_path, stub=False) as site, scripted(script) as model:
        (site.root / "problems").joinpath("starter").mkdir()
        for name in ("rmsnorm_h4096", "rope_gqa"):
            _copy(PROBLEMS / name, site.root / "problems/starter" / name)
        agents_site.configure(site, QUICK)
        git(site.root, "rm", "-r", "--quiet", "problems/t")
        git(site.root, "add", "--all")
        git(site.root, "commit", "--quiet", "-m", "Two starter problems, without solutions")
        start = site.start("start", "--device", "cpu", extra=agents_site.environment(model))
        wait_until(
            lambda: start.poll() is not None or _has_happened(site),
            event="a passed kernel for both problems, and w01's move to the other",
            deadline_s=480,
            poll_s=0.5,
        )
        stopped = site.call("stop")
        output, _ = start.communicate(timeout=120)
        assert stopped.returncode == 0, output
        assert start.returncode == 0, output
        assert agents_site.verdicts(site, RMSNORM)[:2] == ["INCORRECT_NUMERICAL", "PASSED"], output + agents_site.log(
            site
        )
        assert "PASSED" in agents_site.verdicts(site, ROPE), output
        decisions = list(yaml.safe_load_all(git(site.root, "show", "main:ledger/decisions.yaml")))
        tables = _tables(decisions)
        assert tables[0] == {"w01": RMSNORM, "w02": ROPE}
        assert any(table.get("w01") == ROPE for table in tables[1:]), tables
        by_model = [
            decision for decision in decisions if "decision" in decision and decision["policy"].startswith("claude")
        ]
        assert _tables(by_model)[0] == tables[0], "the policy may decide while everything ends"
        assert any(table.get("w01") == ROPE for table in _tables(by_model)), decisions
        assert "rmsnorm is done for w01" in git(site.root, "show", "main:COORDINATION.md")
        assert "epsilon is added inside the root" in git(site.root, "show", f"main:ledger/lessons/{RMSNORM}.yaml")
        accounts = list(yaml.safe_load_all(git(site.root, "show", "main:ledger/accounts.yaml")))
        assert {account["worker"] for account in accounts if "worker" in account} == {"w01", "w02", "planner"}
        assert model.keys == {agents_site.KEY}
        assert site.strays() == {}


def _has_happened(site: Site) -> bool:
    """Return true once both problems have a passed kernel, and the table gives the reason for the move of w01."""
    if not all("PASSED" in agents_site.verdicts(site, problem) for problem in (RMSNORM, ROPE)):
        return False
    text = git(site.root, "show", "main:COORDINATION.md")
    return (
        "rmsnorm is done for w01" in text and git(site.root, "ls-tree", "main", f"ledger/lessons/{RMSNORM}.yaml") != ""
    )


def _tables(decisions: list[Any]) -> list[dict[str, str]]:
    """Return worker -> problem of each decision."""
    return [
        {row["worker"]: row["problem"] for row in decision["decision"]["assignments"]}
        for decision in decisions
        if "decision" in decision
    ]


def _copy(source: Path, target: Path) -> None:
    """Copy a problem without its solutions and with one workload, to save time."""
    target.mkdir()
    for file in source.iterdir():
        if file.name == "workload.jsonl":
            (target / file.name).write_text("".join(file.read_text().splitlines(keepends=True)[:1]))
        elif file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
