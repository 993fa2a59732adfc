"""Weaknesses of a measured number: recorded facts that make it less reliable than other numbers.

Every report derives them here from the entries, so that entries of earlier versions have them too. A report puts
`SYMBOL` after the number and the sentence below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.model.entry import EntryDraft
from harness.model.judging import JudgeAnswer
from harness.model.printable import one_line
from harness.model.verdict import Trust

SYMBOL = "†"
"""The mark after a weakened number."""
OLD_CALIBRATION_S = 24 * 3600.0
"""Age in seconds from which a calibration of the clock counts as old: conditions may have changed since."""
_PARTS = ("device", "environment", "baselines", "sealed_baselines")
_LONGEST_REASON = 160
_NAMED_PROBLEMS, _NAMED_ENTRIES = 3, 4
_CALIBRATED = ("handshake_us", "around_us", "events_us")
"""Overheads in a device's record, any of which shows that the clock was calibrated."""


class WeaknessKind(StrEnum):
    """Kinds of weaknesses, in the order in which reports list them."""

    NO_COMPILE = "no-compile-baseline"
    NO_COMPILE_BY_EVENTS = "no-compile-baseline-by-events"
    NO_SANDBOX = "no-sandbox"
    SHARED_DEVICE = "shared-device"
    THROTTLED = "throttled"
    LAUNCH_BOUND = "launch-bound"
    NO_CALIBRATION = "no-calibration"
    OLD_CALIBRATION = "old-calibration"


_SENTENCES = {
    WeaknessKind.NO_COMPILE: "no torch.compile baseline: the speed-up is over the fastest of the other baselines",
    WeaknessKind.NO_COMPILE_BY_EVENTS: (
        "no torch.compile baseline by the device's events: the speed-up is over the fastest of the other baselines"
    ),
    WeaknessKind.NO_SANDBOX: "judged without a sandbox: the candidate's code could reach the judge",
    WeaknessKind.SHARED_DEVICE: "other processes used the device during the measurement",
    WeaknessKind.THROTTLED: "the device was throttled during the measurement",
    WeaknessKind.LAUNCH_BOUND: "launch-bound: most of each call is the launch, which a kernel cannot make faster",
    WeaknessKind.NO_CALIBRATION: "no calibration of the clock is recorded: its overhead may be part of the times",
    WeaknessKind.OLD_CALIBRATION: "the clock was calibrated more than 24 h before the measurement",
}


@dataclass(frozen=True)
class Weakness:
    """One reason why a number is less reliable."""

    kind: WeaknessKind
    detail: str = ""
    """Facts of this measurement, such as the compiler's message: one line."""

    @property
    def sentence(self) -> str:
        """The reason and its detail, without a full stop."""
        return f"{_SENTENCES[self.kind]} ({self.detail})" if self.detail else _SENTENCES[self.kind]


@dataclass(frozen=True)
class MeasurementFacts:
    """The fields of a ledger document from which weaknesses are derived.

    They are not validated, so values may be of any type.
    """

    device: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, object] = field(default_factory=dict)
    trust: str | None = None
    baselines: Mapping[str, object] = field(default_factory=dict)
    sealed_baselines: Mapping[str, object] = field(default_factory=dict)


def facts_of(record: EntryDraft | JudgeAnswer) -> MeasurementFacts:
    """Return the facts of an entry or of a judge's answer."""
    return facts_of_document(record.model_dump(include={"trust", *_PARTS}))


def facts_of_document(document: Mapping[str, object]) -> MeasurementFacts:
    """Return the facts of a ledger document in the newest format; a part that is not a mapping counts as empty."""
    parts = {name: _mapping(document.get(name)) for name in _PARTS}
    trust = document.get("trust")
    return MeasurementFacts(**parts, trust=trust if isinstance(trust, str) else None)


def weaknesses(facts: MeasurementFacts, baseline: MeasurementFacts | None = None) -> tuple[Weakness, ...]:
    """Return the weaknesses of a measurement, in the order of `WeaknessKind`.

    Args:
        facts: of a baseline, an evaluation or a confirmation. Without an environment there is no measurement.
        baseline: for an evaluation or confirmation, the baseline entry that it used; None where it is unknown. Then
            missing baselines are read from the measurement itself.
    """
    if not facts.environment:
        return ()
    reasons = [*_missing_compile(facts, baseline)]
    if facts.environment.get("sandbox") == "none":
        reasons.append(Weakness(WeaknessKind.NO_SANDBOX))
    other_processes = _number(facts.device.get("others"))
    if other_processes:
        reasons.append(Weakness(WeaknessKind.SHARED_DEVICE, f"{other_processes:.0f} of them"))
    throttle = facts.device.get("throttle")
    if isinstance(throttle, list | tuple) and throttle:
        reasons.append(Weakness(WeaknessKind.THROTTLED, one_line(", ".join(map(str, throttle)), _LONGEST_REASON)))
    if facts.trust == Trust.LAUNCH_BOUND:
        reasons.append(Weakness(WeaknessKind.LAUNCH_BOUND))
    age_s = _number(facts.device.get("calibration_age_s"))
    if not any(_number(facts.device.get(name)) for name in _CALIBRATED):
        reasons.append(Weakness(WeaknessKind.NO_CALIBRATION))
    elif age_s is not None and age_s > OLD_CALIBRATION_S:
        reasons.append(Weakness(WeaknessKind.OLD_CALIBRATION, f"{age_s / 3600:.0f} h"))
    return tuple(reasons)


def _missing_compile(facts: MeasurementFacts, baseline: MeasurementFacts | None) -> list[Weakness]:
    """Return a weakness for each relevant clock by which `torch.compile` has no latency."""
    if facts.baselines:
        return [*_gap(facts, WeaknessKind.NO_COMPILE), *_gap(facts, WeaknessKind.NO_COMPILE_BY_EVENTS)]
    source = baseline or facts
    by_events = facts.trust in (Trust.SEALED, Trust.RECORDED)
    # Without sealed baselines, a sealed candidate is compared with the fastest baseline by the other clock.
    if by_events and (baseline is None or baseline.sealed_baselines):
        return _gap(source, WeaknessKind.NO_COMPILE_BY_EVENTS)
    return _gap(source, WeaknessKind.NO_COMPILE)


def _gap(facts: MeasurementFacts, kind: WeaknessKind) -> list[Weakness]:
    sealed = kind is WeaknessKind.NO_COMPILE_BY_EVENTS
    table = facts.sealed_baselines if sealed else facts.baselines
    reasons = _mapping(facts.environment.get("missing_sealed_baselines" if sealed else "missing_baselines"))
    missing = [uuid for uuid, times in table.items() if _mapping(times).get("compile") is None]
    if not missing and "compile" not in reasons:
        return []
    share = f"on {len(missing)} of {len(table)} workloads" if 0 < len(missing) < len(table) else ""
    reason = one_line(str(reasons.get("compile", "")), _LONGEST_REASON)
    return [Weakness(kind, ": ".join(filter(None, (share, reason))))]


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def weakness_mark(reasons: Sequence[Weakness]) -> str:
    """Return the symbol that follows a number with weaknesses; an empty text for a number without any."""
    return SYMBOL if reasons else ""


def weakness_lines(reasons: Sequence[Weakness]) -> list[str]:
    """Return a line for each weakness of one measurement: the symbol and the sentence."""
    return [f"{SYMBOL} {weakness.sentence}" for weakness in reasons]


def weakness_legend(marked: Iterable[tuple[str, int | None, Sequence[Weakness]]]) -> list[str]:
    """Return a line for each kind of weakness among marked numbers: the symbol, the problems and the sentence.

    Args:
        marked: for each number its problem, the `seq` of its entry (None where the problem has one number), and its
            weaknesses.
    """
    places: dict[WeaknessKind, dict[str, list[int]]] = {}
    details: dict[WeaknessKind, set[str]] = {}
    for problem, seq, reasons in marked:
        for weakness in reasons:
            seqs = places.setdefault(weakness.kind, {}).setdefault(problem, [])
            seqs += [] if seq is None else [seq]
            details.setdefault(weakness.kind, set()).add(weakness.detail)
    lines = []
    for kind in WeaknessKind:
        if kind in places:
            shared = Weakness(kind, details[kind].pop() if len(details[kind]) == 1 else "")
            lines.append(f"{SYMBOL} {_named(places[kind])}: {shared.sentence}")
    return lines


def _named(places: Mapping[str, Sequence[int]]) -> str:
    """Return the names of the first problems, each with its first entries."""
    parts = []
    for problem, seqs in [*places.items()][:_NAMED_PROBLEMS]:
        remaining = f" and {len(seqs) - _NAMED_ENTRIES} more" if len(seqs) > _NAMED_ENTRIES else ""
        parts.append(f"{problem} seq {', '.join(map(str, seqs[:_NAMED_ENTRIES]))}{remaining}" if seqs else problem)
    unnamed = len(places) - _NAMED_PROBLEMS
    return "; ".join(parts) + (f"; {unnamed} more {'problem' if unnamed == 1 else 'problems'}" if unnamed > 0 else "")


def for_scripts(reasons: Sequence[Weakness]) -> list[dict[str, str]]:
    """Return the weaknesses as plain data for JSON."""
    return [{"kind": str(weakness.kind), "sentence": weakness.sentence} for weakness in reasons]


def to_text(reasons: Sequence[Weakness]) -> str | None:
    """Return the weaknesses as one text for a column of the index, a line each; None without any."""
    return "\n".join(f"{weakness.kind} {weakness.detail}" for weakness in reasons) or None


def from_text(text: str | None) -> tuple[Weakness, ...]:
    """Return the weaknesses of a text of `to_text`."""
    lines = [line.partition(" ") for line in (text or "").splitlines()]
    return tuple(Weakness(WeaknessKind(kind), detail) for kind, _, detail in lines)
