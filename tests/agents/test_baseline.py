"""`harness baseline --make`: one session with PyTorch only, whose best solution is kept. The judge is the stub."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.agents.baseline import install_baseline, make_baseline
from harness.formats.problems import load_problem
from harness.model.config import Config
from harness.model.judging import Cost, EnvironmentRecord, JudgeAnswer, Summary
from harness.model.verdict import Verdict
from tests.agents import agents_site
from tests.scripted_model import ModelRequest, Step, scripted
from tests.site import SOLUTION, Site

YAML = "language: pytorch\nentry: fast.py::run\n"


def judge(solution: Path) -> JudgeAnswer:
    text = (solution / "fast.py").read_text()
    speedup = 2.0 if "out=" in text else 1.2
    return JudgeAnswer(
        id="1",
        verdict=Verdict.PASSED,
        summary=Summary(speedup=speedup, speedup_ci95=(speedup, speedup), passed=2, of=2),
        device={"name": "stub", "id": "0"},  # type: ignore[arg-type]
        environment=EnvironmentRecord(harness="0", judge="sha256:0", python="3", torch="2", sandbox="none"),
        cost=Cost(),
    )


def python(body: str) -> list[Step]:
    return [
        agents_site.write("t/one", "solution.yaml", YAML),
        agents_site.write("t/one", "fast.py", f"import torch\n{body}"),
    ]


def test_the_best_becomes_the_baseline(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def script(request: ModelRequest) -> list[Step]:
        assert "Languages allowed: pytorch." in request.text
        return [
            agents_site.write("t/one", "solution.yaml", SOLUTION),
            agents_site.write("t/one", "kernel.cpp", 'extern "C" void increment() {}\n'),
            agents_site.submit("C++"),
            agents_site.bash("rm /task/problems/t/one/solutions/cpu/kernel.cpp"),
            *python("def run(x, y):\n    torch.add(x, 1, out=y)\n"),
            agents_site.submit("in place"),
            *python("def run(x, y):\n    y.copy_(x + 1)\n"),
            agents_site.submit("slower"),
        ]

    problem = load_problem(site.root / "problems/t/one")
    with scripted(script) as model:
        for name, value in agents_site.environment(model).items():
            monkeypatch.setenv(name, value)
        result = make_baseline(
            site.workspace,
            Config(),
            problem,
            judge,
            target="cpu",
            stop=threading.Event(),
            on_event=lambda _: None,
        )
        refused = model.requests[3].last_result
    assert "a baseline is written in pytorch" in refused
    assert (result.end.reason, result.speedup, result.submissions) == ("done", 2.0, 2)
    place = install_baseline(problem, result)
    assert "out=y" in (place / "fast.py").read_text()
    assert "Agent-optimised PyTorch" in (problem.directory / "BASELINE.md").read_text()
    assert load_problem(problem.directory).digest != problem.digest, "another baseline is another problem to measure"
