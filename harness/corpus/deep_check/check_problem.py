"""The deep check of one problem (`harness problems check --deep`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from harness.corpus.deep_check.licences import licence_objection
from harness.corpus.deep_check.mutants import SKIPPED_INPUT
from harness.corpus.deep_check.original_module import ModuleComparison, OriginalModules
from harness.corpus.deep_check.outputs_and_inputs import input_failures, output_failures
from harness.corpus.deep_check.small_judge import SmallJudge
from harness.corpus.deep_check.verdicts import Verdicts, verdicts
from harness.errors import FormatError
from harness.model.problem import Problem
from harness.sol.roofline import NoBoundError, bounds
from harness.sol.targets import hardware

_TARGET = "h200"
_BOUND_SECONDS = 30.0
"""For one workload. The limit of 1 s of an evaluation would make the result depend on how busy this machine is."""


@dataclass
class DeepFindings:
    """Results of the deep check of one problem."""

    key: str
    failures: list[str] = field(default_factory=list)
    """Besides those of `verdicts`, which exceptions may cover."""
    verdicts: Verdicts = field(default_factory=lambda: Verdicts((), (), None))
    module: ModuleComparison = field(default_factory=lambda: ModuleComparison(skipped="the problem fails before"))
    seconds: float = 0.0


def deep_check(problem: Problem, originals: OriginalModules | None) -> DeepFindings:
    """Check a problem at small sizes on the CPU, in one thread.

    Args:
        problem: the problem.
        originals: builds the models that extracted problems come from; without it they are not compared.
    """
    began = time.monotonic()
    found = DeepFindings(problem.key)
    with _one_thread():
        try:
            _check(problem, originals, found)
        except FormatError as error:
            found.failures.append(error.message)
    found.seconds = time.monotonic() - began
    return found


def _check(problem: Problem, originals: OriginalModules | None, found: DeepFindings) -> None:
    objection = licence_objection(problem)
    if objection is not None:
        found.failures.append(objection)
    found.failures += bound_failures(problem)
    judge = SmallJudge(problem)
    found.failures += output_failures(problem, judge.reference)
    found.verdicts = verdicts(judge, judge.draw().expected)
    killed = {item.name for item in found.verdicts.mutants if item.kind == SKIPPED_INPUT and item.fate == "killed"}
    ordinary = judge.draw()
    found.failures += input_failures(problem, judge.reference, ordinary.inputs, ordinary.expected, killed)
    del ordinary, judge  # a module's weights need the memory
    if originals is None:
        found.module = ModuleComparison(skipped="--no-modules")
        return
    found.module = originals.compare(problem)
    if found.module.failure is not None:
        found.failures.append(f"the original module: {found.module.failure}")


def bound_failures(problem: Problem) -> list[str]:
    """Workloads without a bound on the device that the corpus is written for."""
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
    """Small tensors are faster without a second thread, and much faster on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
