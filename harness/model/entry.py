"""Ledger entries: one YAML document each (docs/formats.md)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.model.base_models import StrictModel
from harness.model.counters import KernelResources
from harness.model.judging import (
    Baselines,
    Cost,
    DeviceRecord,
    EnvironmentRecord,
    Recording,
    Screened,
    Summary,
    WorkloadResult,
)
from harness.model.verdict import EntryKind, Trust, Verdict

LEDGER_FORMAT: Literal[1] = 1
"""Format of ledger documents."""
MEASURED = (EntryKind.EVALUATION, EntryKind.CONFIRMATION, EntryKind.BASELINE)
"""Kinds of entries with measurements of a judge."""


def stamp(at: datetime) -> str:
    """Return a time in the format of entries: UTC, milliseconds, `2026-11-21T02:00:00.000Z`."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Candidate(StrictModel):
    """The judged solution: its commit, tree and origin."""

    commit: str
    tree: str
    """Git tree id of the solution directory; problem and tree identify the candidate."""
    branch: str
    worker: str
    language: str


class Fingerprint(StrictModel):
    """Hashes that nearly identical candidates share; null where there is none."""

    source: str | None = None
    """`sha256:...` of the sources and settings without formatting."""
    binary: str | None = None
    """`sha256:...` of the compiled code, and of the launches where the harness makes them."""


class EntryDraft(StrictModel):
    """An entry without the fields that the ledger assigns: `seq`, `prev` and `at`."""

    kind: EntryKind
    run: str
    problem: str
    problem_digest: str
    target: str
    cites: int | None = None
    """confirmation -> its evaluation; champion -> its confirmation; evaluation -> the baseline entry it used."""
    candidate: Candidate | None = None
    fingerprint: Fingerprint | None = None
    """Of an evaluation; null for a candidate that was not built."""
    answered_from: int | None = None
    """Kind `evaluation`: `seq` of the evaluation of the same binary whose measurement this entry repeats."""
    device: DeviceRecord | None = None
    environment: EnvironmentRecord | None = None
    judge_protocol: int | None = Field(default=None, ge=1)
    """Protocol version of the judge that measured; null for kinds of entries without a measurement."""
    verdict: Verdict | None = None
    reason: str | None = None
    trust: Trust | None = None
    recording: Recording | None = None
    """Only for a Triton solution that was judged on a GPU."""
    resources: tuple[KernelResources, ...] = ()
    """Resources of the kernels of a sealed or recorded solution."""
    workloads: tuple[WorkloadResult, ...] = ()
    baselines: Baselines = Field(default_factory=dict)
    sealed_baselines: Baselines = Field(default_factory=dict)
    """Measured by the clock for sealed candidates; empty where the device has one clock."""
    screened: Screened = Field(default_factory=dict)
    """Variants of `baselines` whose time comes from a few calls; none of them is the fastest."""
    sealed_screened: Screened = Field(default_factory=dict)
    """The same for `sealed_baselines`."""
    summary: Summary | None = None
    cost: Cost | None = None
    note: str | None = None

    @field_validator("reason")
    @classmethod
    def _one_line(cls, reason: str | None) -> str | None:
        return None if reason is None else " ".join(reason.split()) or None

    @model_validator(mode="after")
    def _kind_has_its_parts(self) -> Self:
        missing = [name for name in _PARTS[self.kind] if getattr(self, name) is None]
        if missing:
            raise ValueError(f"an entry of kind {self.kind} needs {', '.join(missing)}")
        if self.verdict not in (None, Verdict.PASSED) and self.reason is None:
            raise ValueError(f"the verdict {self.verdict} needs a reason, in one line")
        if self.answered_from is not None and self.kind is not EntryKind.EVALUATION:
            raise ValueError(f"an entry of kind {self.kind} is not answered from another one")
        return self


class Entry(EntryDraft):
    """One document of `ledger/<suite>/<name>.yaml`: a draft with its position in the chain.

    `seq` counts a file's documents from 1. `prev` is the sha256 of the previous document's exact bytes; it is null in
    the first document.
    """

    format: Literal[1] = LEDGER_FORMAT
    seq: int = Field(ge=1)
    prev: str | None
    at: str = Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
    """Time as of `stamp`; never before that of the previous entry."""

    @property
    def speedup_ci95_low(self) -> float | None:
        """Lower bound of the 95 % interval of the speed-up; None where the entry has none."""
        return self.summary.speedup_ci95[0] if self.summary and self.summary.speedup_ci95 else None


_PARTS: dict[EntryKind, tuple[str, ...]] = {
    EntryKind.EVALUATION: ("candidate", "environment", "judge_protocol", "verdict", "summary"),
    EntryKind.CONFIRMATION: ("candidate", "environment", "judge_protocol", "verdict", "summary", "cites"),
    EntryKind.BASELINE: ("environment", "judge_protocol", "verdict"),
    EntryKind.CHAMPION: ("candidate", "cites"),
    EntryKind.NOTE: ("note",),
}
