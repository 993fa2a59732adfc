"""Selection of problems by family, direction, dtypes and tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.formats.small_profile import PROFILE_KEY
from harness.model.problem import Definition

PROVENANCE_KEY = "x_provenance"
"""Key of definition.json with the source of an extracted problem."""


@dataclass(frozen=True)
class ProblemTags:
    """Facts of one problem, from its definition and key."""

    suite: str
    family: str
    """The first tag, such as `llm` or `vision`; the suite where a problem has no tags."""
    direction: str
    """`forward` or `backward`."""
    dtypes: frozenset[str]
    """dtypes of all inputs and outputs."""
    tags: tuple[str, ...]
    model: str | None
    """The model that the problem's sizes come from."""
    profile: str | None
    """Name of the profile that scaled its workloads, such as `small`."""


@dataclass(frozen=True)
class ProblemFilter:
    """Conditions on a problem; a field that is None or empty is no condition."""

    family: str | None = None
    direction: str | None = None
    dtype: str | None = None
    """A dtype of an input or output, or a format among the tags (`nvfp4`, `int4`)."""
    tags: tuple[str, ...] = ()
    """The problem must have all of these tags."""
    suite: str | None = None

    def admits(self, facts: ProblemTags) -> bool:
        """Return true if a problem with these facts meets every condition."""
        return (
            self.family in {None, facts.family}
            and self.direction in {None, facts.direction}
            and self.suite in {None, facts.suite}
            and (self.dtype is None or self.dtype in facts.dtypes or self.dtype in facts.tags)
            and set(self.tags) <= set(facts.tags)
        )


def provenance_in(definition: Definition) -> Mapping[str, Any] | None:
    """Return the recorded source of an extracted problem; None for a problem written by hand."""
    provenance = (definition.model_extra or {}).get(PROVENANCE_KEY)
    return provenance if isinstance(provenance, dict) else None


def tags_of(key: str, definition: Definition) -> ProblemTags:
    """Return the facts of a problem.

    Args:
        key: `suite/name`.
    """
    suite, _, name = key.partition("/")
    extra: Mapping[str, Any] = definition.model_extra or {}
    listed = extra.get("tags")
    tags = tuple(dict.fromkeys(tag for tag in listed if isinstance(tag, str))) if isinstance(listed, list) else ()
    provenance = provenance_in(definition)
    model = definition.hf_id if provenance is None else provenance.get("architecture")
    return ProblemTags(
        suite=suite,
        family=tags[0] if tags else suite,
        direction="backward" if "backward" in tags or "backward" in name else "forward",
        dtypes=frozenset(spec.dtype for spec in definition.tensors.values()),
        tags=tags,
        model=model if isinstance(model, str) else None,
        profile=extra.get(PROFILE_KEY) if isinstance(extra.get(PROFILE_KEY), str) else None,
    )
