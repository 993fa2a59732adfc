"""Rows of the index: one ledger entry without its workloads, with the values that standings, queue and log need."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from harness.errors import LedgerError
from harness.formats.ledger_documents import parse
from harness.model.entry import Entry
from harness.model.interval import geometric_mean
from harness.model.judging import JudgeStage
from harness.model.weaknesses import MeasurementFacts, Weakness, facts_of_document, from_text, to_text, weaknesses

# The ledger's writer puts each top-level key at the start of a line and never breaks a string: a block ends at the
# next key.
_WORKLOADS = re.compile(rb"^workloads:\n(?:[- ].*\n)*", re.MULTILINE)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TIMES = ("latency_us", "baseline_us", "sol_us")
# A blank precedes each name, because a row begins with its uuid: `re` is fastest with a literal prefix.
_TIME = {name: re.compile(rb" " + name.encode() + rb": ([0-9.e+-]+)") for name in _TIMES}


class Row(NamedTuple):
    """An entry without its workloads. Fields that the entry's kind lacks are null."""

    problem: str
    seq: int
    kind: str
    run: str
    target: str
    problem_digest: str
    at: str
    cites: int | None = None
    commit: str | None = None
    tree: str | None = None
    branch: str | None = None
    worker: str | None = None
    language: str | None = None
    source_hash: str | None = None
    """`Fingerprint.source`."""
    binary_hash: str | None = None
    """`Fingerprint.binary`."""
    answered_from: int | None = None
    """`seq` of the evaluation whose measurement the entry repeats."""
    judge: str | None = None
    """The judge version."""
    judge_protocol: int | None = None
    """The judge's protocol version."""
    verdict: str | None = None
    reason: str | None = None
    trust: str | None = None
    speedup: float | None = None
    speedup_ci95_low: float | None = None
    """Lower bound of the speed-up's 95 % interval."""
    speedup_ci95_high: float | None = None
    score: float | None = None
    passed: int | None = None
    of: int | None = None
    baseline_us: float | None = None
    """Geometric mean over the workloads, in microseconds; of a baseline entry, of the fastest correct variants."""
    latency_us: float | None = None
    bound_us: float | None = None
    """Geometric mean of the workloads' speed-of-light bounds; null unless each has one."""
    cost_s: float | None = None
    """Seconds of building and judging."""
    stages_text: str | None = None
    """`stages` as one column of text; null without any."""
    note: str | None = None
    weaknesses_text: str | None = None
    """`weaknesses` as one column of text; null without any."""

    @property
    def stages(self) -> dict[JudgeStage, float]:
        """Seconds of building and judging by stage; empty in older entries."""
        return stages_from_text(self.stages_text)

    @property
    def weaknesses(self) -> tuple[Weakness, ...]:
        """Reasons that weaken the entry's numbers."""
        return from_text(self.weaknesses_text)


def stages_from_text(text: str | None) -> dict[JudgeStage, float]:
    """Return the seconds by stage in a row's `stages_text`."""
    words = (text or "").split()
    return {JudgeStage(name): float(seconds) for name, seconds in zip(words[::2], words[1::2], strict=True)}


_OPTIONAL = ("cites", "judge_protocol", "verdict", "reason", "trust", "note", "answered_from")
BaselineOf = Callable[[str, int | None], MeasurementFacts | None]
"""Returns the facts of the baseline entry of an entry, from the entry's kind and the `seq` that it cites."""
ROW_FIELDS = Row._fields
"""Columns of the index that a row has."""


def row_of(raw: bytes, where: str, baseline_of: BaselineOf = lambda *_: None) -> Row:
    """Return a document's row. Only the text before and after the workloads is parsed, in a tenth of the time.

    Args:
        where: its place, for error messages.
        baseline_of: finds the baseline entry, whose gaps weaken this entry's numbers.

    Raises:
        LedgerError: the document cannot be read as an entry.
    """
    block = _WORKLOADS.search(raw)
    numbers = _without_strings(block[0]) if block else b""
    head = raw if block is None else raw[: block.start()] + raw[block.end() :]
    document = parse(head, where)
    if "workloads" in document:  # not in the layout of the ledger's writer: parse the whole document
        return _row_of_entry(document, where, baseline_of)
    times = {name: [float(text) for text in pattern.findall(numbers)] for name, pattern in _TIME.items()}
    return _row(document, where, baseline_of, times)


def _without_strings(text: bytes) -> bytes:
    """Return the text with empty strings, so that no text of an agent is read as a number."""
    return _STRING.sub(b'""', text) if b"\\" in text else b'""'.join(text.split(b'"')[::2])


def _row_of_entry(document: Mapping[str, Any], where: str, baseline_of: BaselineOf) -> Row:
    try:
        entry = Entry.model_validate(document)
    except ValidationError as error:
        raise LedgerError(f"not a ledger entry: {error}", where=where) from error
    all_times = {name: [getattr(workload, name) for workload in entry.workloads] for name in _TIMES}
    times = {name: [time for time in values if time is not None] for name, values in all_times.items()}
    return _row(document, where, baseline_of, times)


def _row(document: Mapping[str, Any], where: str, baseline_of: BaselineOf, times: Mapping[str, Sequence[float]]) -> Row:
    """Return the row.

    Args:
        document: its workloads are not read.
        where: its place.
        times: each of `_TIMES` -> the values of the workloads, in microseconds.
    """
    candidate, summary = document.get("candidate") or {}, document.get("summary") or {}
    cost, baselines = document.get("cost") or {}, document.get("baselines") or {}
    fingerprint = document.get("fingerprint") or {}
    try:
        ci95_low, ci95_high = summary.get("speedup_ci95") or (None, None)
        baseline_us = _mean_time(times["baseline_us"])
        if baseline_us is None and baselines:
            fastest = [[time for time in variants.values() if time is not None] for variants in baselines.values()]
            baseline_us = _mean_time([min(variants) for variants in fastest if variants])
        bounds = times["sol_us"]
        values: dict[str, Any] = {
            **{name: document[name] for name in ("problem", "seq", "kind", "run", "target", "problem_digest", "at")},
            **{name: document.get(name) for name in _OPTIONAL},
            **{f"{name}_hash": fingerprint.get(name) for name in ("source", "binary")},
            **{name: candidate.get(name) for name in ("commit", "tree", "branch", "worker", "language")},
            **{name: summary.get(name) for name in ("speedup", "score", "passed", "of")},
            "judge": (document.get("environment") or {}).get("judge"),
            "speedup_ci95_low": ci95_low,
            "speedup_ci95_high": ci95_high,
            "baseline_us": baseline_us,
            "latency_us": _mean_time(times["latency_us"]),
            "bound_us": _mean_time(bounds) if len(bounds) == summary.get("of") else None,
            "cost_s": float(cost.get("build_s", 0)) + float(cost.get("judge_s", 0)) if cost else None,
            "stages_text": _stages_text(cost.get("stages") or {}),
            "weaknesses_text": to_text(
                weaknesses(facts_of_document(document), baseline_of(document["kind"], document.get("cites")))
            ),
        }
        return Row(**values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LedgerError(f"not a ledger entry: {error!r}", where=where) from error


def _stages_text(stages: Mapping[str, float]) -> str | None:
    """Return the text of a row's stages, such as `build 0.5 fill 1.25`; None without any."""
    return " ".join(f"{JudgeStage(name)} {float(seconds)}" for name, seconds in stages.items()) or None


def _mean_time(times: Sequence[float]) -> float | None:
    """Return the geometric mean; None without times, or with one that is not positive."""
    return geometric_mean(times) if times and min(times) > 0 else None
