"""Requirements of a problem on a target that follow from its files: modules, CUDA and memory. No code of it is run."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator

from harness.formats.library_baselines import imported_modules
from harness.model.problem import Problem, Workload

COPIES = 3
"""Minimum copies of a workload's tensors in the judge's memory: inputs, expected outputs, the candidate's tensors."""
_NAMES_AND_NUMBERS = re.compile(r"`[^`]*`|\"[^\"]*\"|\b\d[\d.,]*\b")


def unmet_requirements(problem: Problem, target: str, *, memory_bytes: float | None) -> list[str]:
    """Return the reasons why a valid problem cannot be judged on a target, one sentence each; [] without a reason.

    Args:
        problem: a problem without errors.
        memory_bytes: memory of the device; None where it is unknown, then memory is not checked.
    """
    return [*_reference(problem.definition.reference, target), *_memory(problem, target, memory_bytes)]


def target_memory_bytes(target: str, memory_gb: float | None) -> float | None:
    """Return a target's memory in bytes; None where it is unknown.

    Args:
        target: `cpu` for the memory of this host.
        memory_gb: memory of another target in GB, from its datasheet.
    """
    if target == "cpu":
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return memory_gb * 1e9 if memory_gb else None


def count_causes(reasons: Iterable[str]) -> list[tuple[str, int]]:
    """Return the reasons with their numbers of occurrences, the most frequent first.

    Reasons that differ only in names and numbers count as one.
    """
    return Counter(_NAMES_AND_NUMBERS.sub("…", reason.partition("\n")[0]) for reason in reasons).most_common()


def _reference(source: str, target: str) -> Iterator[str]:
    tree = ast.parse(source)
    for name in sorted(imported_modules(tree)):
        if name not in sys.stdlib_module_names and importlib.util.find_spec(name) is None:
            yield f"its reference imports `{name}`, which is not installed here"
    if target == "cpu" and _names_cuda(tree):
        yield "its reference asks for a CUDA device by name"


def _names_cuda(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"cuda(:\d+)?", node.value):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            return True
    return False


def _memory(problem: Problem, target: str, memory_bytes: float | None) -> Iterator[str]:
    if memory_bytes is None:
        return
    needed_bytes = [COPIES * _bytes(problem, workload) for workload in problem.workloads]
    too_large = [size for size in needed_bytes if size > memory_bytes]
    if too_large:
        yield (
            f"{len(too_large)} of {len(needed_bytes)} workloads need up to {max(too_large) / 1e9:.0f} GB for {COPIES} "
            f"copies of their tensors; {target} has {memory_bytes / 1e9:.0f} GB"
        )


def _bytes(problem: Problem, workload: Workload) -> int:
    sizes = problem.sizes(workload)
    return sum(problem.nbytes(spec, sizes) for spec in problem.definition.tensors.values())
