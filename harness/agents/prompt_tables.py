"""The tables and lists of a worker's first message: workloads with their times, tolerances, the device, the budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from harness.agents.governor import limits_and_use
from harness.agents.kernel_facts import KernelFacts
from harness.ledger.accounts import Spent
from harness.model.config import Budget
from harness.model.judging import Baselines, Variant
from harness.model.problem import Problem, Tolerance, Workload

SHOWN_WORKLOADS = 16
SHORT_US = {"cpu": 20.0}
"""Target -> microseconds: a bound below this is short, and the fixed costs of a call outweigh its work."""
SHORT_GPU_US = 5.0
_TITLES: dict[Variant, str] = {"compile": "torch.compile", "baseline": "baseline/"}
_LIMITS = {"memory": "memory traffic", "products": "matrix products", "elementwise": "other arithmetic"}


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
    sizes = problem.sizes(problem.workloads[0]) if problem.workloads else {}
    varied = problem.workloads[0].axes if problem.workloads else {}
    fixed = {name: size for name, size in sizes.items() if name not in varied}
    if fixed:
        lines.append(f"- the same in all workloads, or derived (values of the first): {json.dumps(fixed)}")
    return "\n".join(lines)


def workload_table(problem: Problem, facts: KernelFacts) -> str:
    """Return a table of each workload's baseline times, bound, limit and champion, in microseconds per call.

    Args:
        problem: the problem; its first 16 workloads are shown.
        facts: the problem's times and bounds.
    """
    known_variants = dict.fromkeys(name for times in facts.baselines.values() for name in times)
    variants = [name for name in known_variants if any(times.get(name) for times in facts.baselines.values())]
    two_clocks = bool(facts.sealed_baselines)
    bounds, champion = facts.description.bounds, facts.champion_us
    head = [
        "workload",
        *(_TITLES.get(name, name) for name in variants),
        "bound",
        "limited by",
        "best so far",
        "share of bound",
    ]
    rows = []
    names = axes_in_words(problem)
    for work in problem.workloads[:SHOWN_WORKLOADS]:
        bound, best = bounds.get(work.uuid), champion.get(work.uuid)
        sol_us = bound.sol_us if bound else None
        times = [_baseline_times(facts, work.uuid, name, two_clocks=two_clocks) for name in variants]
        limit = _LIMITS[bound.limited_by] if bound and bound.limited_by else "?"
        share = f"{sol_us / best:.0%}" if sol_us and best else "-"
        rows.append([names[work.uuid], *times, _us(sol_us), limit, _us(best), share])
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    if len(problem.workloads) > SHOWN_WORKLOADS:
        lines.append(f"and {len(problem.workloads) - SHOWN_WORKLOADS} more in workload.jsonl")
    return "\n".join([*lines, *_remarks(facts, variants, two_clocks=two_clocks)])


def _remarks(facts: KernelFacts, variants: Sequence[Variant], *, two_clocks: bool) -> list[str]:
    lines = ["Microseconds per call with cold caches. Bound: the least time for the reference's work on this hardware."]
    if two_clocks:
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


def _baseline_times(facts: KernelFacts, uuid: str, variant: Variant, *, two_clocks: bool) -> str:
    bounded = _time(facts.baselines, uuid, variant)
    return f"{_us(_time(facts.sealed_baselines, uuid, variant))} / {_us(bounded)}" if two_clocks else _us(bounded)


def _time(baselines: Baselines, uuid: str, variant: Variant) -> float | None:
    return baselines.get(uuid, {}).get(variant)


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
        problem: the problem.
        facts: its bounds.
        target: such as `cpu` or `h200`; sets the limit below which a bound is short.
    """
    counts: dict[str, int] = {}
    short_us = SHORT_US.get(target, SHORT_GPU_US)
    for work in problem.workloads:
        bound = facts.description.bounds.get(work.uuid)
        if bound is None or bound.limited_by is None or bound.sol_us is None:
            continue
        counts[bound.limited_by] = counts.get(bound.limited_by, 0) + 1
        if bound.sol_us < short_us:
            counts["short"] = counts.get("short", 0) + 1
    return sorted(counts, key=lambda name: -counts[name]) or ["memory", "products", "elementwise", "short"]


def remaining(limits: Mapping[str, tuple[Budget, Spent]]) -> str:
    """Return the remaining budget, such as `4.20 USD, 38 submissions`: the smallest remainder for each unit.

    Args:
        limits: the holder of each limit (session, worker or run) -> the limit and the amounts that count against it.
    """
    remainders: dict[str, float] = {}
    for budget, spent in limits.values():
        for unit, limit, used in limits_and_use(budget, spent):
            remainders[unit] = min(remainders.get(unit, float("inf")), max(0.0, limit - used))
    amounts = [_amount(unit, remainder) for unit, remainder in remainders.items()]
    return ", ".join(amounts) or "no limit is set; stop when you have no further idea that is worth a submission"


def _amount(unit: str, amount: float) -> str:
    if unit == "USD":
        return f"{amount:.2f} USD"
    return f"{amount:,.0f} {'submissions' if unit == 'evaluations' else unit}"
