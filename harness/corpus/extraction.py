"""Extraction of verified problems from an architecture."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from harness.corpus.architectures import Architecture, BuiltModel, build_model, quiet_libraries
from harness.corpus.axis_names import constant_names
from harness.corpus.backward import backward_drafts
from harness.corpus.candidates import CandidateModule
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import export_module
from harness.corpus.problem_facts import ProblemText, backward_text, facts_of, kind_of
from harness.corpus.provenance import provenance_of
from harness.corpus.source_identity import code_fingerprint
from harness.corpus.variable_names import identifier
from harness.corpus.verification import Verified, verify
from harness.corpus.workloads import RELATIVE_ATOL, has_sums, tolerance_for, workload_lines

MAX_PROBLEMS = 6
"""Maximum problems of one architecture."""
_MAX_FORWARD = 4
"""Maximum forward problems of one architecture; the remaining ones are backward problems."""
_MIN_OPERATIONS, _MAX_OPERATIONS = 3, 160
_MAX_MODULES = 120
"""Maximum submodules of a module; one with more is a whole model or a stack of layers."""
_MAX_FORWARD_OPERATIONS = 40
"""Maximum operations of a module with backward problems; those of a layer would have two hundred."""
_MAX_TOLERANCE_FACTOR = 8.0


@dataclass(frozen=True)
class ExtractedProblem:
    """A verified problem, ready to be written."""

    key: str
    definition: dict[str, Any]
    workloads: list[dict[str, Any]]
    graph: str


@dataclass(frozen=True)
class SkippedModule:
    """A submodule without a problem, and the reason."""

    architecture: str
    module: str
    reason: str


@dataclass
class ExtractionLog:
    """Result of an extraction; graphs in the log are not extracted again."""

    graphs: dict[str, str] = field(default_factory=dict)
    """Hash of a graph -> key of its problem."""
    problems: list[ExtractedProblem] = field(default_factory=list)
    skipped: list[SkippedModule] = field(default_factory=list)
    code: dict[str, str] = field(default_factory=dict)
    """Fingerprint of a module's code -> key of the problem with its graph."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Architecture -> duration of its extraction."""


@dataclass(frozen=True)
class ExtractionOptions:
    """Limits and progress of an extraction."""

    only: Callable[[str], bool] = lambda _: True
    """Returns whether the problem with a key is extracted."""
    forward: bool = True
    """Extract forward problems. If false, only backward problems of existing forward problems are extracted."""
    backward: bool = True
    """Extract backward problems."""
    progress: Callable[[str], None] = lambda _: None
    """Called with one line of text for each step."""


def extract_architecture(
    architecture: Architecture, log: ExtractionLog, options: ExtractionOptions
) -> list[ExtractedProblem]:
    """Extract the problems of one architecture and add them to the log.

    Args:
        log: contains the graphs of other architectures; it is changed.
    """
    started_at = time.monotonic()
    problems: list[ExtractedProblem] = []
    try:
        with quiet_libraries():
            for problem in _problems(architecture, log, options):
                problems.append(problem)
                log.graphs[problem.graph] = problem.key
    except SkippedError as error:
        log.skipped.append(SkippedModule(architecture.name, "the model", error.message))
    log.problems += problems
    log.seconds[architecture.name] = time.monotonic() - started_at
    return problems


@dataclass(frozen=True)
class _NamedDraft:
    """A problem's draft with its key, its texts and its origin."""

    draft: ProblemDraft
    constants: dict[int, str]
    """Size -> name of its constant axis."""
    text: ProblemText
    key: str
    origin: dict[str, str]
    """The module's `provenance_of`."""


def _problems(architecture: Architecture, log: ExtractionLog, options: ExtractionOptions) -> Iterator[ExtractedProblem]:
    options.progress(f"{architecture.name}: building")
    model = build_model(architecture)
    drafted: list[_NamedDraft] = []
    for candidate in sorted(model.candidates, key=_rank):
        if len(drafted) >= _MAX_FORWARD:
            break
        class_name = type(candidate.module).__name__
        too_large = sum(1 for _ in candidate.module.modules()) > _MAX_MODULES
        ranks = [_rank(item.draft.exported.candidate) for item in drafted]
        if too_large or ranks.count(_rank(candidate)) >= _MAX_PER_KIND:
            continue
        options.progress(f"{architecture.name}: {class_name}")
        try:
            item = _drafted(architecture, model, candidate, log, {earlier.key for earlier in drafted})
            if not options.forward and log.graphs.get(item.draft.graph) != item.key:
                continue
            if options.forward and options.only(item.key):
                yield _finished(architecture, item, verify(item.draft))
            drafted.append(item)
        except SkippedError as error:
            log.skipped.append(SkippedModule(architecture.name, f"{class_name} ({candidate.path})", error.message))
    if options.backward:
        yield from _backward_problems(architecture, drafted, log, options)


_KINDS = ("layer", "attention", "ssm", "moe", "mlp", "conv", "norm", "rope", "head", "embedding", "block")
"""Kinds of modules; the first kinds make the most useful problems."""
_MAX_PER_KIND = 2


def _rank(candidate: CandidateModule) -> int:
    kind, _ = kind_of(type(candidate.module).__name__, ())
    return _KINDS.index(kind)


def _drafted(
    architecture: Architecture, model: BuiltModel, candidate: CandidateModule, log: ExtractionLog, used_keys: set[str]
) -> _NamedDraft:
    """Return the draft of a module whose graph no other problem has.

    Raises:
        SkippedError: the module has no draft, or another problem has its graph.
    """
    class_name = type(candidate.module).__name__
    origin = provenance_of(candidate.module, candidate.path, architecture.name)
    code = code_fingerprint(candidate.module, candidate.signature)
    if code in log.code:
        raise SkippedError(f"the same code as {log.code[code]}")
    exported, constants = export_module(candidate), constant_names(model.config, class_name)
    try:
        draft = draft_problem(exported, constants)
    except _PRINTING_ERRORS as error:
        raise SkippedError(f"the graph cannot be printed: {error_summary(error)}") from error
    if not _MIN_OPERATIONS <= len(draft.operations) <= _MAX_OPERATIONS:
        raise SkippedError(f"{len(draft.operations)} operations; expected {_MIN_OPERATIONS} to {_MAX_OPERATIONS}")
    text = facts_of(architecture, class_name, draft.operations, draft.least_precise_dtype)
    key = _free_key(architecture.checkpoint.family, text.name, candidate.path, used_keys)
    log.code[code] = log.graphs.get(draft.graph, key)
    _check_new_graph(draft, key, log)
    return _NamedDraft(draft, constants, text, key, origin)


def _check_new_graph(draft: ProblemDraft, key: str, log: ExtractionLog) -> None:
    owner = log.graphs.get(draft.graph, key)
    if owner != key:
        raise SkippedError(f"the same graph as {owner}")


_PRINTING_ERRORS = (TypeError, ValueError, KeyError, AttributeError, RuntimeError)
"""Errors of the printer on unexpected graphs; the modules are skipped with the reason."""


def _backward_problems(
    architecture: Architecture, drafted: list[_NamedDraft], log: ExtractionLog, options: ExtractionOptions
) -> Iterator[ExtractedProblem]:
    """Yield backward problems of the smallest forward problems, up to the architecture's maximum of problems."""
    count = len(drafted)
    for item in sorted(drafted, key=lambda item: len(item.draft.operations)):
        if count >= MAX_PROBLEMS or len(item.draft.operations) > _MAX_FORWARD_OPERATIONS:
            return
        options.progress(f"{architecture.name}: backward of {item.key}")
        try:
            for form, draft, verified in backward_drafts(item.draft, item.constants):
                key = f"{item.key}_backward" + ("_saved" if form == "saved" else "")
                _check_new_graph(draft, key, log)
                if count < MAX_PROBLEMS and options.only(key):
                    text = backward_text(item.text, form, len(draft.operations))
                    yield _finished(architecture, replace(item, draft=draft, text=text, key=key), verified)
                    count += 1
        except (SkippedError, *_PRINTING_ERRORS) as error:
            reason = error.message if isinstance(error, SkippedError) else error_summary(error)
            log.skipped.append(SkippedModule(architecture.name, f"backward of {item.key}", reason))


def _finished(architecture: Architecture, named: _NamedDraft, verified: Verified) -> ExtractedProblem:
    draft, text, dtype = named.draft, named.text, named.draft.least_precise_dtype
    factor = 1.0
    while verified.low_precision_error > RELATIVE_ATOL[dtype] * factor:
        factor *= 2
        if factor > _MAX_TOLERANCE_FACTOR:
            raise SkippedError(f"in {dtype} the reference itself is off by {verified.low_precision_error:.2g}")
    tolerance = tolerance_for(dtype, verified.root_mean_square, factor, has_sums=has_sums(draft))
    workloads = workload_lines(named.key, draft, architecture.shapes, tolerance)
    checkpoint = architecture.checkpoint.checkpoint
    definition = draft.definition(
        name=named.key.partition("/")[2],
        op_type=text.op_type,
        description=text.description,
        **({"hf_id": checkpoint} if checkpoint else {}),
        tags=list(text.tags),
        x_provenance={**named.origin, "graph": draft.graph, "shapes_verified": str(verified.shapes)},
    )
    return ExtractedProblem(named.key, definition, workloads, draft.graph)


def _free_key(family: str, name: str, path: str, used_keys: set[str]) -> str:
    """Return a new key; the key of a second module of a class contains the module's position in the model."""
    key, number = f"{family}/{name}", 1
    words = [word for word in path.split(".") if not word.isdigit()]
    if key in used_keys and words and not name.endswith(place := identifier(words[-1], len(path))):
        key = f"{key}_of_{place}"
    stem = key
    while key in used_keys:
        number += 1
        key = f"{stem}_{number}"
    return key
