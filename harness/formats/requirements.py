"""Can a problem be judged on a target here? What can be told from its files, without running anything of it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from harness.model.problem import Problem, Workload

COPIES = 3
"""The judge holds a workload's tensors at least so often: given, expected, and as a candidate left them."""
_VARYING = re.compile(r"`[^`]*`|\"[^\"]*\"|\b\d[\d.,]*\b")


def obstacles(problem: Problem, target: str, *, memory_bytes: float | None) -> list[str]:
    """Why a problem that reads well cannot be judged on a target, a sentence each; [] where nothing speaks against it.

    Args:
        problem: read and checked.
        target: `cpu`, `h200` ...
        memory_bytes: of the device; None where it is not known.
    """
    return [*_reference(problem.definition.reference, target), *_memory(problem, target, memory_bytes)]


def memory_of(target: str, memory_gb: float | None) -> float | None:
    """A target's memory in bytes: this host's for `cpu`, else what its datasheet says."""
    if target == "cpu":
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return memory_gb * 1e9 if memory_gb else None


def causes(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Reasons that differ in names and numbers only, counted together, the most frequent first."""
    counted = Counter(_VARYING.sub("…", reason.partition("\n")[0]) for reason in reasons)
    return counted.most_common()


def _reference(source: str, target: str) -> Iterator[str]:
    tree = ast.parse(source)
    for name in sorted(_imported(tree)):
        if name not in sys.stdlib_module_names and importlib.util.find_spec(name) is None:
            yield f"its reference imports `{name}`, which is not installed here"
    if target == "cpu" and _asks_for_cuda(tree):
        yield "its reference asks for a CUDA device by name"


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _asks_for_cuda(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            return True
    return False


def _memory(problem: Problem, target: str, memory_bytes: float | None) -> Iterator[str]:
    if memory_bytes is None:
        return
    needs = {workload.uuid: COPIES * _bytes(problem, workload) for workload in problem.workloads}
    large = {uuid: need for uuid, need in needs.items() if need > memory_bytes}
    if large:
        most = max(large.values()) / 1e9
        yield (
            f"{len(large)} of {len(needs)} workloads need up to {most:.0f} GB for {COPIES} copies of their tensors; "
            f"{target} has {memory_bytes / 1e9:.0f} GB"
        )


def _bytes(problem: Problem, workload: Workload) -> int:
    sizes = problem.sizes(workload)
    specs = [*problem.definition.inputs.values(), *problem.definition.outputs.values()]
    return sum(problem.nbytes(spec, sizes) for spec in specs)
