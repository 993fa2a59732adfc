"""Drafts of the small modules, made once for all tests of a process."""

from __future__ import annotations

from functools import cache

from harness.corpus.architectures import build_model, quiet_libraries, resolve_architecture
from harness.corpus.candidates import CandidateModule
from harness.corpus.draft import ProblemDraft, draft_problem
from harness.corpus.exporting import export_module


@cache
def candidates(factory: str) -> tuple[CandidateModule, ...]:
    return build_model(resolve_architecture(f"tests.corpus.small_modules:{factory}")).candidates


@cache
def draft(factory: str, place: int = 0) -> ProblemDraft:
    """Return the draft of one candidate of a factory's model."""
    with quiet_libraries():
        return draft_problem(export_module(candidates(factory)[place]), {24: "width", 40: "inner"})
