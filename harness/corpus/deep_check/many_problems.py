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
    """Yield the findings of each problem; with several processes in the order of their ends.

    Args:
        problems: the problems.
        modules: compare extracted problems with the modules that they come from.
        jobs: number of processes. Each computes in one thread and may need 8 GB for a problem with large weights.
    """
    groups = by_architecture(problems) if modules else [[problem] for problem in problems]
    if jobs <= 1:
        for group in groups:
            yield from _check_group(group, modules=modules)
        return
    # A forked process would inherit torch's threads in an unknown state.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(_check_group_whole, group, modules) for group in groups]):
            yield from done.result()


def by_architecture(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Groups whose problems share one model; a problem written by hand is a group of its own."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[str((provenance_in(problem.definition) or {}).get("architecture", problem.key))].append(problem)
    return list(groups.values())


def _check_group(group: Sequence[Problem], *, modules: bool) -> Iterator[DeepFindings]:
    originals = OriginalModules() if modules else None
    for problem in group:
        yield deep_check(problem, originals)


def _check_group_whole(group: Sequence[Problem], modules: bool) -> list[DeepFindings]:
    return list(_check_group(group, modules=modules))
