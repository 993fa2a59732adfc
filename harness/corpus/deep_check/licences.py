"""Licences of the source code of extracted problems."""

from __future__ import annotations

from harness.formats.problem_tags import provenance_in
from harness.model.problem import Problem

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
