"""What an agent is told: who it is, the problem, how solutions are written and judged, and its assignment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.agents.confinement import TASK
from harness.model.assignment import Assignment
from harness.model.config import Config
from harness.model.paths import problem_path, solution_path
from harness.model.problem import Problem

PROMPTS = Path(__file__).parent / "prompts"
_LANGUAGES_OF_GPU = ("cuda", "triton", "cute_dsl")
_LONGEST_REFERENCE = 12_000
_SHOWN_WORKLOADS = 16


@cache
def prompt_file(name: str) -> str:
    """One file of the prompts."""
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()


def guides(config: Config, target: str) -> tuple[str, ...]:
    """The languages that a worker is told about: those the run allows, of those that its target has."""
    there = ("cpp", "pytorch") if target == "cpu" else _LANGUAGES_OF_GPU
    return tuple(each for each in there if not config.languages or each in config.languages) or there


def system(config: Config, *, worker: str, target: str) -> str:
    """The system prompt of a worker."""
    allowed = ", ".join(config.languages) or ", ".join(guides(config, target))
    parts = [
        prompt_file("worker"),
        f"You are worker {worker} of run {config.run}. Target: {target}. Languages this run allows: {allowed}.",
        *(prompt_file(f"language_{name}") for name in guides(config, target)),
    ]
    return "\n\n".join(parts)


def assignment(problem: Problem, row: Assignment, *, target: str, stands: str) -> str:
    """The first message of a session.

    Args:
        problem: what is to be made fast.
        row: the assignment.
        target: for what.
        stands: what was tried and learned, in lines.
    """
    root = f"{TASK}/{problem_path(problem.key)}"
    solution = f"{TASK}/{solution_path(problem.key, target)}"
    definition = problem.definition
    return "\n\n".join(
        [
            f"Assignment: problem {problem.key}, target {target}. Wanted: {row.wanted or 'make it faster'}.",
            (
                f"The problem is in {root}/; your solution is {solution}/, the only directory you may "
                f"change. {TASK}/COORDINATION.md has the rules and the standings, {TASK}/docs/ the documentation."
            ),
            f"{definition.description or ''}\n\n{_axes(problem)}",
            f"Reference (PyTorch):\n```python\n{definition.reference[:_LONGEST_REFERENCE]}\n```",
            f"Workloads:\n{_workloads(problem)}",
            f"How it stands:\n{stands}",
        ]
    )


def axes_in_words(problem: Problem) -> dict[str, str]:
    """Workload uuid -> its variable sizes, such as `batch=8 seq=128`."""
    return {
        work.uuid: " ".join(f"{name}={size}" for name, size in work.axes.items()) or work.uuid[:12]
        for work in problem.workloads
    }


def _axes(problem: Problem) -> str:
    definition = problem.definition
    specs = {
        "inputs": {name: [spec.shape, spec.dtype] for name, spec in definition.inputs.items()},
        "outputs": {name: [spec.shape, spec.dtype] for name, spec in definition.outputs.items()},
        **({"outputs that begin as an input, to update in place": definition.updates} if definition.updates else {}),
    }
    lines = [f"{kind}: {json.dumps(each, default=str)}" for kind, each in specs.items()]
    sizes = problem.sizes(problem.workloads[0]) if problem.workloads else {}
    return "\n".join([*lines, f"axes of the first workload: {json.dumps(sizes)}"])


def _workloads(problem: Problem) -> str:
    named: Sequence[str] = list(axes_in_words(problem).values())
    more = [f"and {len(named) - _SHOWN_WORKLOADS} more"] if len(named) > _SHOWN_WORKLOADS else []
    return "\n".join(f"- {each}" for each in [*named[:_SHOWN_WORKLOADS], *more])
