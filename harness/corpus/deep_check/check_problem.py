"""The deep check of problems (`harness problems check --deep`), in one process or in several."""

from __future__ import annotations

import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from harness.corpus.deep_check.mutants import SKIPPED_INPUT
from harness.corpus.deep_check.original_module import ModuleComparison, compare_with_module
from harness.corpus.deep_check.outputs_and_inputs import input_failures, output_failures
from harness.corpus.deep_check.small_judge import SmallJudge
from harness.corpus.deep_check.verdicts import Verdicts, verdicts
from harness.errors import FormatError
from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem
from harness.sol.roofline import NoBoundError, bounds
from harness.sol.targets import hardware

_TARGET = "h200"
_BOUND_SECONDS = 30.0
"""Time limit for one workload. With the 1 s of an evaluation, the result would depend on the machine's load."""


@dataclass
class DeepFindings:
    """Results of the deep check of one problem."""

    key: str
    failures: list[str] = field(default_factory=list)
    """Failures besides those in `verdicts`, which exceptions may cover."""
    verdicts: Verdicts = field(default_factory=lambda: Verdicts((), (), None))
    module: ModuleComparison = field(default_factory=lambda: ModuleComparison(skipped="the problem fails before"))
    seconds: float = 0.0


def check_all(problems: Sequence[Problem], jobs: int, *, modules: bool = True) -> Iterator[DeepFindings]:
    """Yield the findings of each problem; with several processes in the order of completion.

    Args:
        jobs: number of processes. Each computes in one thread and may need 8 GB for a problem with large weights.
        modules: compare extracted problems with their original modules.
    """
    groups = by_architecture(problems) if modules else [[problem] for problem in problems]
    if jobs <= 1:
        for problem in (problem for group in groups for problem in group):
            yield deep_check(problem, modules=modules)
        return
    # A forked process inherits torch's threads in an undefined state.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_check_group, group, modules) for group in groups]):
            yield from future.result()


def by_architecture(problems: Sequence[Problem]) -> list[list[Problem]]:
    """Return groups of problems from the same model; a problem written by hand is a separate group."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[str((provenance_in(problem.definition) or {}).get("architecture", problem.key))].append(problem)
    return list(groups.values())


def _check_group(group: Sequence[Problem], modules: bool) -> list[DeepFindings]:
    return [deep_check(problem, modules=modules) for problem in group]


def deep_check(problem: Problem, *, modules: bool) -> DeepFindings:
    """Check a problem at small sizes on the CPU, in one thread.

    Args:
        modules: compare an extracted problem with its original module.
    """
    started_at = time.monotonic()
    findings = DeepFindings(problem.key)
    with _one_thread():
        try:
            _check(problem, findings, modules=modules)
        except FormatError as error:
            findings.failures.append(error.message)
    findings.seconds = time.monotonic() - started_at
    return findings


def _check(problem: Problem, findings: DeepFindings, *, modules: bool) -> None:
    objection = licence_objection(problem)
    if objection is not None:
        findings.failures.append(objection)
    findings.failures += bound_failures(problem)
    judge = SmallJudge(problem)
    findings.failures += output_failures(problem, judge.reference)
    findings.verdicts = verdicts(judge, judge.draw().expected)
    killed = {item.name for item in findings.verdicts.mutants if item.kind == SKIPPED_INPUT and item.fate == "killed"}
    ordinary = judge.draw()
    findings.failures += input_failures(problem, judge.reference, ordinary.inputs, ordinary.expected, killed)
    del ordinary, judge  # frees memory for the module's weights
    findings.module = compare_with_module(problem) if modules else ModuleComparison(skipped="--no-modules")
    if findings.module.failure is not None:
        findings.failures.append(f"the original module: {findings.module.failure}")


PERMISSIVE = frozenset({"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "0BSD", "CC0-1.0", "Unlicense"})
"""SPDX identifiers of licences that permit use, changes and sale of works made from the source."""


def licence_objection(problem: Problem) -> str | None:
    """Return the reason why the licence of a problem's source does not permit redistribution; None if it does."""
    provenance = provenance_in(problem.definition)
    if provenance is None:
        return None
    licence = str(provenance.get("licence", ""))
    if not licence:
        return "`x_provenance` names no licence"
    if licence.partition(" ")[0] not in PERMISSIVE:
        return f"the licence `{licence}` of its source is not one of {', '.join(sorted(PERMISSIVE))}"
    return None


def bound_failures(problem: Problem) -> list[str]:
    """Return a failure for each workload without a bound on the corpus' target device."""
    machine = hardware(_TARGET)
    failures = []
    for workload in problem.workloads:
        try:
            bounds(problem, workload, machine, most_s=_BOUND_SECONDS)
        except NoBoundError as error:
            failures.append(f"workload {workload.uuid} has no bound: {error}")
    return failures


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch in one thread, which is faster for small tensors, particularly on a loaded machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
