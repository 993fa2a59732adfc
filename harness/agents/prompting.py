"""The prompts of a worker's agent: the system prompt (instructions, tools, languages) and the first message.

The first message has tables and lists: workloads with their times, tolerances, the device, the budget.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from harness.agents.confinement import TASK
from harness.agents.governor import UsageLimits
from harness.agents.kernel_facts import KernelFacts
from harness.model.config import Config
from harness.model.judging import Variant
from harness.model.languages import prompted_languages
from harness.model.paths import problem_path, solution_path
from harness.model.printable import amount_of
from harness.model.problem import Problem, Tolerance, Workload

PROMPTS = Path(__file__).parent / "prompts"
_LONGEST_REFERENCE = 12_000
_OF_POLICY = re.compile(r"(coverage|expected gain|stays|pinned to)\b")
"""Matches the reasons that the planner's policy gives for an assignment, which are of no use to an agent."""
_SHOWN_WORKLOADS = 16
_SHORT_CPU_US, _SHORT_GPU_US = 20.0, 5.0
"""A bound below this is short: the fixed costs of a call outweigh its work."""
_TITLES: dict[Variant, str] = {"compile": "torch.compile", "baseline": "baseline/"}
_LIMITS = {"memory": "memory traffic", "products": "matrix products", "elementwise": "other arithmetic"}


@cache
def prompt_file(name: str) -> str:
    """Return the text of one file of `prompts/`."""
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()


def guides(config: Config, target: str) -> tuple[str, ...]:
    """Return the languages that a worker's prompt describes: those of its target that the run allows."""
    of_target = prompted_languages("cpu" if target == "cpu" else "cuda")
    return tuple(name for name in of_target if not config.languages or name in config.languages) or of_target


def system(config: Config, *, worker: str, target: str, programs: Sequence[str] = ()) -> str:
    """Return the system prompt of a worker.

    Args:
        worker: its name.
        programs: programs of this host that the sandbox shows.
    """
    allowed = ", ".join(config.languages) or ", ".join(guides(config, target))
    local = (
        f"Programs in your shell: {', '.join(programs)}. They run on this machine's CPU, and their timings do not "
        "count. Use them to compile, disassemble, and test index formulas and numerics in Python."
    )
    parts = [
        prompt_file("worker"),
        prompt_file("tools_cpu" if target == "cpu" else "tools_gpu"),
        local if programs else "",
        f"You are worker {worker} of run {config.run}. Target: {target}. Languages allowed: {allowed}.",
        *(prompt_file(f"language_{name}") for name in guides(config, target)),
    ]
    return "\n\n".join(part for part in parts if part)


def assignment(
    problem: Problem, wanted: str, *, target: str, facts: KernelFacts, attempts: str, remaining: str = ""
) -> str:
    """Return the first message of a session.

    Args:
        wanted: the instruction of the assignment.
        attempts: earlier attempts and lessons, one line each.
        remaining: the remaining budget as text; empty for none.
    """
    root = f"{TASK}/{problem_path(problem.key)}"
    solution = f"{TASK}/{solution_path(problem.key, target)}"
    definition, device = problem.definition, facts.description.device
    goal = "" if not wanted or _OF_POLICY.match(wanted) else f" Requested: {wanted}."
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
        "\n- ".join(["## Hardware", *device]) if device else "",
        f"## What to try for each limit\n{_advice(problem, facts, target)}",
        f"## What was tried\n{attempts}",
    ]
    return "\n\n".join(part for part in parts if part)


def _advice(problem: Problem, facts: KernelFacts, target: str) -> str:
    """Return the advice for the bottlenecks of this problem."""
    text = prompt_file("limits_cpu" if target == "cpu" else "limits_gpu")
    sections = {title: body.strip() for title, _, body in (part.partition("\n") for part in text.split("### ") if part)}
    return "\n".join(f"- **{name}**: {sections[name]}" for name in limit_classes(problem, facts, target))


def axes_in_words(problem: Problem) -> dict[str, str]:
    """Return each workload's variable sizes by uuid, such as `batch=8 seq=128`."""
    return {
        work.uuid: " ".join(f"{name}={size}" for name, size in work.axes.items()) or work.uuid[:12]
        for work in problem.workloads
    }


def tensors(problem: Problem) -> str:
    """Return the inputs, outputs and axes of a problem, one line each."""
    definition = problem.definition
    lines = []
    for kind, specs in (("input", definition.inputs), ("output", definition.outputs)):
        for name, spec in specs.items():
            shape = "scalar" if spec.shape is None else f"[{', '.join(spec.shape)}]"
            about = f": {spec.description}" if spec.description else ""
            begins = f" (begins as `{spec.x_updates}`, updated in place)" if spec.x_updates else ""
            lines.append(f"- {kind} `{name}` {spec.dtype} {shape}{begins}{about}")
    for work in problem.workloads[:1]:
        fixed = {name: size for name, size in problem.sizes(work).items() if name not in work.axes}
        if fixed:
            lines.append(f"- the same in all workloads, or derived (values of the first): {json.dumps(fixed)}")
    return "\n".join(lines)


def workload_table(problem: Problem, facts: KernelFacts) -> str:
    """Return a table of each workload's baseline times, bound, limit and champion, in microseconds per call.

    Args:
        problem: the problem; its first 16 workloads are shown.
    """
    variants = [*dict.fromkeys(name for times in facts.baselines.values() for name, us in times.items() if us)]
    bounds, champion = facts.description.bounds, facts.champion_us
    titles = [_TITLES.get(name, name) for name in variants]
    head = ["workload", *titles, "bound", "limited by", "best so far", "share of bound"]
    rows = [head, ["---"] * len(head)]
    names = axes_in_words(problem)
    for work in problem.workloads[:_SHOWN_WORKLOADS]:
        bound, best = bounds.get(work.uuid), champion.get(work.uuid)
        sol_us = bound.sol_us if bound else None
        times = [_baseline_times(facts, work.uuid, name) for name in variants]
        limit = _LIMITS[bound.limited_by] if bound and bound.limited_by else "?"
        share = f"{sol_us / best:.0%}" if sol_us and best else "-"
        rows.append([names[work.uuid], *times, _us(sol_us), limit, _us(best), share])
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    if len(problem.workloads) > _SHOWN_WORKLOADS:
        lines.append(f"and {len(problem.workloads) - _SHOWN_WORKLOADS} more in workload.jsonl")
    return "\n".join([*lines, *_remarks(facts, variants)])


def _remarks(facts: KernelFacts, variants: Sequence[Variant]) -> list[str]:
    lines = ["Microseconds per call with cold caches. Bound: the least time for the reference's work on this hardware."]
    if facts.sealed_baselines:
        lines.append(
            "Two baseline times: kernels only (what sealed and recorded solutions are compared with) / with launches "
            "(the others)."
        )
    if not variants:
        lines.append("The baselines are not measured yet; the first submission measures them. Submit early.")
    elif "compile" not in variants:
        lines.append("torch.compile could not be measured here: speed-ups are relative to eager.")
    reasons = sorted({bound.reason for bound in facts.description.bounds.values() if bound.reason})
    lines += [f"No bound for some workloads: {reason}" for reason in reasons[:1]]
    if not facts.description.bounds:
        lines.append("No bounds are available yet; `submit` reports them.")
    if facts.champion is None:
        lines.append("No solution is confirmed yet.")
    return lines


def _baseline_times(facts: KernelFacts, uuid: str, variant: Variant) -> str:
    clocks = (facts.sealed_baselines, facts.baselines) if facts.sealed_baselines else (facts.baselines,)
    return " / ".join(_us(times.get(uuid, {}).get(variant)) for times in clocks)


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:,.2f}" if time_us < 100 else f"{time_us:,.0f}"


def tolerances(problem: Problem) -> str:
    """Return the rules by which outputs count as equal, one line for all workloads that share a rule."""
    names = axes_in_words(problem)
    groups: dict[Tolerance, list[Workload]] = {}
    for work in problem.workloads:
        groups.setdefault(work.tolerance, []).append(work)
    lines = []
    for rule, works in groups.items():
        listed = ", ".join(names[work.uuid] for work in works[:4]) + (" ..." if len(works) > 4 else "")
        where = f" ({listed})" if len(groups) > 1 else ""
        cap = f", no error above {rule.max_error_cap:g}" if rule.max_error_cap is not None else ""
        lines.append(
            f"|actual - expected| <= {rule.max_atol:g} + {rule.max_rtol:g} * |expected| for "
            f"{rule.required_matched_ratio:.4g} of the elements{cap}{where}"
        )
    lines.append("Integers and booleans are exact. Elements outside the tolerance must not be far off either.")
    return "\n".join(lines)


def limit_classes(problem: Problem, facts: KernelFacts, target: str) -> list[str]:
    """Return the bottleneck classes of the workloads, the most frequent first; all classes without bounds.

    Args:
        target: such as `cpu` or `h200`; sets the limit below which a bound is short.
    """
    counts = Counter[str]()
    short_us = _SHORT_CPU_US if target == "cpu" else _SHORT_GPU_US
    for work in problem.workloads:
        bound = facts.description.bounds.get(work.uuid)
        if bound is not None and bound.limited_by is not None and bound.sol_us is not None:
            counts.update([bound.limited_by, "short"] if bound.sol_us < short_us else [bound.limited_by])
    return [name for name, _ in counts.most_common()] or [*_LIMITS, "short"]


def remaining(limits: UsageLimits) -> str:
    """Return the remaining budget, such as `4.20 USD, 38 submissions`: the smallest remainder for each unit."""
    remainders: dict[str, float] = {}
    for limit in limits:
        for unit, amount, used in limit.amounts():
            remainders[unit] = min(remainders.get(unit, math.inf), max(0.0, amount - used))
    amounts = [
        f"{amount:.2f} USD"
        if unit == "USD"
        else amount_of(round(amount), "submission" if unit == "evaluation" else unit)
        for unit, amount in remainders.items()
    ]
    return ", ".join(amounts) or "no limit is set; stop when you have no further idea that is worth a submission"
