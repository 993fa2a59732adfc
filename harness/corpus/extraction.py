"""From an architecture to verified problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from harness.corpus.architectures import Architecture, BuiltModel, build_model, quiet_libraries
from harness.corpus.axis_names import constant_names
from harness.corpus.candidates import FIRST_SIZES, SECOND_SIZES, CandidateModule, candidate_modules
from harness.corpus.captures import one_line, record_calls
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError
from harness.corpus.exporting import export_module
from harness.corpus.problem_facts import ProblemText, facts_of
from harness.corpus.provenance import provenance_of
from harness.corpus.source_identity import code_fingerprint
from harness.corpus.verification import Verified, verify
from harness.corpus.workloads import RELATIVE_ATOL, tolerance_for, workload_lines

MOST_PROBLEMS = 6
"""Of one architecture."""
_LEAST_OPERATIONS, _MOST_OPERATIONS = 3, 160
_MOST_MODULES = 120
"""A module with more submodules is a whole model or a stack of layers."""
_WIDEST_TOLERANCE = 8.0


@dataclass(frozen=True)
class ExtractedProblem:
    """A verified problem, ready to be written."""

    key: str
    definition: dict[str, Any]
    workloads: list[dict[str, Any]]
    graph: str


@dataclass(frozen=True)
class SkippedModule:
    """A submodule that became no problem."""

    architecture: str
    module: str
    reason: str


@dataclass
class ExtractionLog:
    """Outcome of an extraction; graphs that are known are not extracted again."""

    graphs: dict[str, str] = field(default_factory=dict)
    """Hash -> key of the problem that has it."""
    problems: list[ExtractedProblem] = field(default_factory=list)
    skipped: list[SkippedModule] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    """Fingerprint of a module's code -> key of the problem with its graph."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Architecture -> duration of its extraction."""


def extract_architecture(
    architecture: Architecture,
    log: ExtractionLog,
    *,
    only: Callable[[str], bool] = lambda _: True,
    progress: Callable[[str], None] = lambda _: None,
) -> list[ExtractedProblem]:
    """Extract the problems of one architecture and add them to the log.

    Args:
        architecture: the model.
        log: knows the graphs of other architectures.
        only: takes a problem's key; false leaves it out.
        progress: called with one line of text for each step.
    """
    began = time.monotonic()
    found: list[ExtractedProblem] = []
    try:
        with quiet_libraries():
            for problem in _problems(architecture, log, only, progress):
                found.append(problem)
                log.graphs[problem.graph] = problem.key
    except SkippedError as error:
        log.skipped.append(SkippedModule(architecture.name, "the model", error.what))
    log.problems += found
    log.seconds[architecture.name] = time.monotonic() - began
    return found


def _problems(
    architecture: Architecture, log: ExtractionLog, only: Callable[[str], bool], progress: Callable[[str], None]
) -> Iterator[ExtractedProblem]:
    progress(f"{architecture.name}: building")
    model = build_model(architecture, (FIRST_SIZES, SECOND_SIZES))
    first, second = (record_calls(model.module, model.arguments[sizes]) for sizes in (FIRST_SIZES, SECOND_SIZES))
    taken: set[str] = set()
    count = 0
    for candidate in candidate_modules(first, second):
        if count >= MOST_PROBLEMS:
            break
        if sum(1 for _ in candidate.module.modules()) > _MOST_MODULES:
            continue
        class_name = type(candidate.module).__name__
        progress(f"{architecture.name}: {class_name}")
        try:
            problem = _problem(architecture, model, candidate, log, taken, only)
        except SkippedError as error:
            log.skipped.append(SkippedModule(architecture.name, f"{class_name} ({candidate.path})", error.what))
            continue
        if problem is not None:
            count += 1
            taken.add(problem.key)
            yield problem


def _problem(
    architecture: Architecture,
    model: BuiltModel,
    candidate: CandidateModule,
    log: ExtractionLog,
    taken: set[str],
    only: Callable[[str], bool],
) -> ExtractedProblem | None:
    class_name = type(candidate.module).__name__
    origin = provenance_of(candidate.module, candidate.path, architecture.name)
    code = code_fingerprint(candidate.module, candidate.signature)
    if code in log.code:
        raise SkippedError(f"the same code as {log.code[code]}")
    exported = export_module(candidate)
    try:
        draft = draft_problem(exported, constant_names(model.config))
    except SkippedError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        raise SkippedError(f"the graph cannot be printed: {one_line(error)}") from error
    if not _LEAST_OPERATIONS <= len(draft.operations) <= _MOST_OPERATIONS:
        raise SkippedError(f"{len(draft.operations)} operations; expected {_LEAST_OPERATIONS} to {_MOST_OPERATIONS}")
    facts = facts_of(
        architecture.name,
        class_name,
        draft.operations,
        family=architecture.family,
        dtype=_dtype_of(draft),
        checkpoint=architecture.checkpoint.checkpoint,
        like=architecture.checkpoint.like,
    )
    key = _free_key(architecture.family, facts.name, taken)
    owner = log.graphs.get(draft.graph, key)
    log.code[code] = owner
    if owner != key:
        raise SkippedError(f"the same graph as {owner}")
    if not only(key):
        return None
    verified = verify(draft)
    provenance = {**origin.as_data(), "graph": draft.graph, "shapes_verified": str(verified.shapes)}
    return _finished(architecture, draft, facts, key, verified, provenance)


def _finished(
    architecture: Architecture,
    draft: ProblemDraft,
    facts: ProblemText,
    key: str,
    verified: Verified,
    provenance: dict[str, str],
) -> ExtractedProblem:
    dtype = _dtype_of(draft)
    factor = 1.0
    while verified.low_precision_error > RELATIVE_ATOL[dtype] * factor:
        factor *= 2
        if factor > _WIDEST_TOLERANCE:
            raise SkippedError(f"in {dtype} the reference itself is off by {verified.low_precision_error:.2g}")
    tolerance = tolerance_for(dtype, verified.root_mean_square, factor)
    workloads = workload_lines(key, draft, architecture.shapes, tolerance)
    definition = draft.definition(
        name=key.partition("/")[2],
        op_type=facts.op_type,
        description=facts.description,
        **({"hf_id": architecture.checkpoint.checkpoint} if architecture.checkpoint.checkpoint else {}),
        tags=list(facts.tags),
        x_provenance=provenance,
    )
    return ExtractedProblem(key, definition, workloads, draft.graph)


def _dtype_of(draft: ProblemDraft) -> str:
    """The least exact dtype of a problem's tensors."""
    dtypes = {spec["dtype"] for spec in (*draft.inputs.values(), *draft.outputs.values())}
    return next((dtype for dtype in ("bfloat16", "float16") if dtype in dtypes), "float32")


def _free_key(family: str, name: str, taken: set[str]) -> str:
    key, number = f"{family}/{name}", 1
    while key in taken:
        number += 1
        key = f"{family}/{name}_{number}"
    return key
