"""The prompts of a worker's agent: the system prompt (instructions, tools, languages) and the first message."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.agents.confinement import TASK
from harness.agents.kernel_facts import KernelFacts
from harness.agents.prompt_tables import limit_classes, tensors, tolerances, workload_table
from harness.model.assignment import Assignment
from harness.model.config import Config
from harness.model.device_description import DeviceDescription
from harness.model.languages import prompted_languages
from harness.model.paths import problem_path, solution_path
from harness.model.problem import Problem

PROMPTS = Path(__file__).parent / "prompts"
_LONGEST_REFERENCE = 12_000
_OF_POLICY = re.compile(r"(coverage|expected gain|stays|pinned to)\b")
"""Matches the reasons that the planner's policy gives for an assignment, which are of no use to an agent."""


@cache
def prompt_file(name: str) -> str:
    """Return the text of one file of `prompts/`."""
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()


def guides(config: Config, target: str) -> tuple[str, ...]:
    """Return the languages that a worker's prompt describes: those of its target that the run allows.

    Args:
        config: lists the allowed languages; an empty list allows all.
        target: such as `cpu` or `h200`.
    """
    of_target = prompted_languages("cpu" if target == "cpu" else "cuda")
    return tuple(name for name in of_target if not config.languages or name in config.languages) or of_target


def system(config: Config, *, worker: str, target: str, programs: Sequence[str] = ()) -> str:
    """Return the system prompt of a worker.

    Args:
        config: names the run and its languages.
        worker: its name.
        target: such as `cpu` or `h200`.
        programs: programs of this host that the sandbox shows.
    """
    allowed = ", ".join(config.languages) or ", ".join(guides(config, target))
    parts = [
        prompt_file("worker"),
        prompt_file("tools_cpu" if target == "cpu" else "tools_gpu"),
        _local(programs),
        f"You are worker {worker} of run {config.run}. Target: {target}. Languages allowed: {allowed}.",
        *(prompt_file(f"language_{name}") for name in guides(config, target)),
    ]
    return "\n\n".join(part for part in parts if part)


def _local(programs: Sequence[str]) -> str:
    if not programs:
        return ""
    return (
        f"Programs in your shell: {', '.join(programs)}. They run on this machine's CPU, and their timings do not "
        "count. Use them to compile, disassemble, and test index formulas and numerics in Python."
    )


def assignment(
    problem: Problem, row: Assignment, *, target: str, facts: KernelFacts, attempts: str, remaining: str = ""
) -> str:
    """Return the first message of a session.

    Args:
        problem: the problem to optimise.
        row: the assignment.
        target: such as `cpu` or `h200`.
        facts: the problem's times and bounds.
        attempts: earlier attempts and lessons, one line each.
        remaining: the remaining budget as text; empty for none.
    """
    root = f"{TASK}/{problem_path(problem.key)}"
    solution = f"{TASK}/{solution_path(problem.key, target)}"
    definition = problem.definition
    goal = "" if not row.wanted or _OF_POLICY.match(row.wanted) else f" Requested: {row.wanted}."
    parts = [
        f"Assignment: problem {problem.key}, target {target}. Make it faster on every workload.{goal}",
        (
            f"Your solution is {solution}/, the only directory that you may change. The problem is in {root}/, the "
            f"documentation in {TASK}/docs/. {TASK}/others/ has the best solution so far and the best solutions of "
            "other workers."
        ),
        f"Budget left: {remaining}." if remaining else "",
        f"## Problem\n{definition.description or ''}\n\n{tensors(problem)}",
        f"Reference (PyTorch):\n```python\n{definition.reference[:_LONGEST_REFERENCE].strip()}\n```",
        f"## Workloads\n{workload_table(problem, facts)}",
        f"## Tolerance\n{tolerances(problem)}",
        _device(facts.description),
        f"## What to try for each limit\n{_advice(problem, facts, target)}",
        f"## What was tried\n{attempts}",
    ]
    return "\n\n".join(part for part in parts if part)


def _device(description: DeviceDescription) -> str:
    return "## Hardware\n" + "\n".join(f"- {line}" for line in description.device) if description.device else ""


def _advice(problem: Problem, facts: KernelFacts, target: str) -> str:
    """Return the advice for the bottlenecks of this problem."""
    text = prompt_file("limits_cpu" if target == "cpu" else "limits_gpu")
    sections = {title: body.strip() for title, _, body in (part.partition("\n") for part in text.split("### ") if part)}
    return "\n".join(f"- **{name}**: {sections[name]}" for name in limit_classes(problem, facts, target))
