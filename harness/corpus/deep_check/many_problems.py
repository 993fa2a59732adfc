"""The deep check of many problems, in one process or in several."""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from harness.corpus.deep_check.check_problem import DeepFindings, deep_check
from harness.corpus.deep_check.original_module import OriginalModules
from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem


def check_all(problems: Sequence[Problem], jobs: int, *, modules: bool = True) -> Iterator[DeepFindings]:
    """Yield the findings of each problem; with several processes in the order of completion.

    Args:
        problems: the problems.
        jobs: number of processes. Each computes in one thread and may need 8 GB for a problem with large weights.
        modules: compare extracted problems with their original modules.
    """
    groups = by_architecture(problems) if modules else [[problem] for problem in problems]
    if jobs <= 1:
        for group in groups:
            yield from _check_group(group, modules=modules)
        return
    # A forked process inherits torch's threads in an undefined state.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_findings_of_group, group, modules) for group in groups]):
            yield from future.result()


def by_architecture(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Return groups of problems from the same model; a problem written by hand is a separate group."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[str((provenance_in(problem.definition) or {}).get("architecture", problem.key))].append(problem)
    return list(groups.values())


def _check_group(group: Sequence[Problem], *, modules: bool) -> Iterator[DeepFindings]:
    originals = OriginalModules() if modules else None
    for problem in group:
        yield deep_check(problem, originals)


def _findings_of_group(group: Sequence[Problem], modules: bool) -> list[DeepFindings]:
    return list(_check_group(group, modules=modules))
