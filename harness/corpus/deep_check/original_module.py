"""Comparison of extracted problems with their original modules, if the model libraries are installed."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.corpus.architectures import BuiltModel, build_model, quiet_libraries, resolve_architecture
from harness.corpus.axis_names import constant_names
from harness.corpus.backward import backward_drafts
from harness.corpus.deep_check.small_judge import LEAST_SHAPES
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.errors import SkippedError, error_summary
from harness.corpus.exporting import export_module
from harness.corpus.verification import Verified, verify
from harness.errors import ConfigurationError
from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem

_KEYS = ("axes", "inputs", "outputs", "reference")


@dataclass(frozen=True)
class ModuleComparison:
    """Result of comparing a problem's reference with the original module."""

    shapes: int = 0
    """Number of shapes with equal results, including sequence length 1."""
    failure: str | None = None
    skipped: str | None = None
    """Reason why they were not compared."""


def compare_with_module(problem: Problem) -> ModuleComparison:
    """Compare a problem with its module; consecutive problems of one architecture share the model."""
    provenance = provenance_in(problem.definition)
    if provenance is None or "module" not in provenance or "architecture" not in provenance:
        return ModuleComparison(skipped="written by hand")
    missing = _missing_library(provenance)
    if missing is not None:
        return ModuleComparison(skipped=missing)
    try:
        with quiet_libraries():
            verified = _verified(problem, provenance)
    except ConfigurationError as error:
        return ModuleComparison(skipped=error.message)
    except SkippedError as error:
        return ModuleComparison(failure=error.message)
    except Exception as error:  # noqa: BLE001 - the model library's own code
        return ModuleComparison(failure=f"it cannot be built or printed: {error_summary(error)}")
    too_few = verified.shapes < LEAST_SHAPES
    failure = f"compared at {verified.shapes} shapes only; expected {LEAST_SHAPES}" if too_few else None
    return ModuleComparison(verified.shapes, failure=failure)


def _verified(problem: Problem, provenance: Mapping[str, Any]) -> Verified:
    """Check that the module's draft equals the problem, and verify the draft.

    Raises:
        SkippedError: they differ, or the verification fails.
        ConfigurationError: the architecture does not exist in the installed libraries.
    """
    draft, constants = _forward(provenance)
    if "backward" not in ((problem.definition.model_extra or {}).get("tags") or ()):
        _check_same(problem, draft)
        return verify(draft)
    last_error = SkippedError("the module gives no backward problem of this form")
    for _, backward, verified in backward_drafts(draft, constants):
        try:
            _check_same(problem, backward)
        except SkippedError as error:
            last_error = error
        else:
            return verified
    raise last_error


def _forward(provenance: Mapping[str, Any]) -> tuple[ProblemDraft, dict[int, str]]:
    architecture, module = str(provenance["architecture"]), str(provenance["module"])
    model = _built(architecture)
    constants = constant_names(model.config, module)
    for candidate in model.candidates:
        if candidate.path == provenance.get("path", "") and type(candidate.module).__qualname__ == module:
            return draft_problem(export_module(candidate), constants), constants
    raise SkippedError(f"{architecture} has no module {module} at its path")


@functools.lru_cache(maxsize=1)
def _built(architecture: str) -> BuiltModel:
    """Return the most recent model, built on the meta device from its configuration, without a download."""
    return build_model(resolve_architecture(architecture))


def _missing_library(provenance: Mapping[str, Any]) -> str | None:
    """Return the reason why a problem's library cannot be used; None if it is installed in the problem's version."""
    library, version = str(provenance.get("library", "")), str(provenance.get("version", ""))
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("diffusers") is None:
        return "the extra `extract` is not installed: python -m pip install 'kernel-harness[extract]'"
    try:
        installed = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return f"{library} is not installed"
    return None if installed == version else f"made with {library} {version}; {installed} is installed"


def _check_same(problem: Problem, draft: ProblemDraft) -> None:
    """Raise SkippedError if a problem differs from the module's draft."""
    drafted = draft.definition(name=problem.definition.name)
    shipped = problem.definition.model_dump(mode="json")
    for key in _KEYS:
        if not _contains_all(drafted[key], shipped[key]):
            raise SkippedError(f"`{key}` is not what the module gives now: extract the problem again")


def _contains_all(drafted: Any, shipped: Any) -> bool:  # noqa: ANN401 - JSON
    """Return true if the shipped definition contains the drafted one; it may also contain defaults of the schema."""
    if isinstance(drafted, dict) and isinstance(shipped, dict):
        return list(drafted) == [key for key in shipped if key in drafted] and all(
            _contains_all(value, shipped[key]) for key, value in drafted.items()
        )
    return bool(drafted == shipped)
