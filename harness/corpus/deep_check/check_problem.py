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


def deep_check(problem: Problem, originals: OriginalModules | None) -> DeepFindings:
    """Check a problem at small sizes on the CPU, in one thread.

    Args:
        problem: the problem.
        originals: builds the original models of extracted problems; None to skip the comparison.
    """
    started_at = time.monotonic()
    findings = DeepFindings(problem.key)
    with _one_thread():
        try:
            _check(problem, originals, findings)
        except FormatError as error:
            findings.failures.append(error.message)
    findings.seconds = time.monotonic() - started_at
    return findings


def _check(problem: Problem, originals: OriginalModules | None, findings: DeepFindings) -> None:
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
    if originals is None:
        findings.module = ModuleComparison(skipped="--no-modules")
        return
    findings.module = originals.compare(problem)
    if findings.module.failure is not None:
        findings.failures.append(f"the original module: {findings.module.failure}")


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
