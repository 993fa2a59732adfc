"""Ledger entries: one YAML document each (docs/formats.md)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from harness.model.judging import (
    Cost,
    DeviceRecord,
    EnvironmentRecord,
    Summary,
    Variant,
    WorkloadResult,
)
from harness.model.verdict import EntryKind, Trust, Verdict


class Candidate(BaseModel):
    """Which solution was judged."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    commit: str
    tree: str
    """Git tree id of the solution directory: with the problem it names the candidate."""
    branch: str
    worker: str
    language: str


class Entry(BaseModel):
    """One document of `ledger/<suite>/<name>.yaml`.

    `seq` and `prev` are given by the ledger when it appends; `prev` is the sha256 of the previous document's bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int
    prev: str | None
    kind: EntryKind
    run: str
    problem: str
    problem_digest: str
    target: str
    cites: int | None = None
    """confirmation -> its evaluation; champion -> its confirmation; evaluation -> the baseline entry it used."""
    candidate: Candidate | None = None
    device: DeviceRecord | None = None
    environment: EnvironmentRecord | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    trust: Trust | None = None
    workloads: tuple[WorkloadResult, ...] = ()
    baselines: dict[str, dict[Variant, float | None]] = {}
    summary: Summary | None = None
    cost: Cost | None = None
    note: str | None = None
    at: str
    """UTC, milliseconds, `2026-11-21T02:00:00.000Z`."""
