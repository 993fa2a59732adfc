"""Weaknesses of a number follow from its entry and its baseline entry."""

from __future__ import annotations

from typing import Any

import pytest

from harness.model.entry import EntryDraft
from harness.model.judging import DeviceRecord, EnvironmentRecord
from harness.model.verdict import Trust
from harness.model.weaknesses import (
    SYMBOL,
    MeasurementFacts,
    Weakness,
    WeaknessKind,
    facts_of,
    facts_of_document,
    from_text,
    to_text,
    weakness_legend,
    weaknesses,
)
from tests.ledger.ledgers import draft

SOUND: dict[str, Any] = {
    "device": {"handshake_us": 90.0, "calibration_age_s": 3600, "others": 0, "throttle": []},
    "environment": {"sandbox": "bubblewrap"},
    "trust": "bounded",
}
BASELINE = MeasurementFacts(**SOUND, baselines={"a": {"eager": 2.0, "compile": 1.0}})


def kinds(facts: MeasurementFacts, baseline: MeasurementFacts | None = BASELINE) -> list[str]:
    return [weakness.kind for weakness in weaknesses(facts, baseline)]


def facts(**parts: Any) -> MeasurementFacts:
    return MeasurementFacts(**{**SOUND, **parts})


def test_a_sound_number_has_none() -> None:
    assert kinds(facts()) == []
    assert kinds(BASELINE) == []
    assert weaknesses(MeasurementFacts()) == (), "a champion entry has no measurement of its own"


@pytest.mark.parametrize(
    ("changed", "kind", "words"),
    [
        ({"environment": {"sandbox": "none"}}, WeaknessKind.NO_SANDBOX, "judged without a sandbox"),
        ({"device": {**SOUND["device"], "others": 2}}, WeaknessKind.SHARED_DEVICE, "(2 of them)"),
        ({"device": {**SOUND["device"], "throttle": ["sw_thermal"]}}, WeaknessKind.THROTTLED, "(sw_thermal)"),
        ({"trust": "launch-bound"}, WeaknessKind.LAUNCH_BOUND, "most of each call is the launch"),
        ({"device": {"name": "EPYC"}}, WeaknessKind.NO_CALIBRATION, "no calibration of the clock is recorded"),
        ({"device": {"handshake_us": 0.0}}, WeaknessKind.NO_CALIBRATION, "no calibration of the clock is recorded"),
        (
            {"device": {**SOUND["device"], "calibration_age_s": 30 * 3600}},
            WeaknessKind.OLD_CALIBRATION,
            "calibrated more than 24 h before the measurement (30 h)",
        ),
        (
            {"environment": {"sandbox": "bubblewrap", "missing_baselines": {"compile": "no C++ compiler"}}},
            WeaknessKind.NO_COMPILE,
            "fastest of the other baselines (no C++ compiler)",
        ),
    ],
)
def test_each_fact_is_a_weakness_of_its_own(changed: dict[str, Any], kind: WeaknessKind, words: str) -> None:
    (weakness,) = weaknesses(facts(**changed))
    assert weakness.kind is kind
    assert words in weakness.sentence


@pytest.mark.parametrize(
    ("trust", "sealed", "kind"),
    [
        ("bounded", {"a": {"compile": None}}, None),
        ("bounded", {}, None),
        ("sealed", {"a": {"compile": None}}, WeaknessKind.NO_COMPILE_BY_EVENTS),
        ("recorded", {"a": {"compile": None}}, WeaknessKind.NO_COMPILE_BY_EVENTS),
        ("sealed", {"a": {"compile": 1.0}}, None),
        ("sealed", {}, None),
    ],
)
def test_a_candidate_misses_the_baselines_of_the_clock_that_timed_it(
    trust: str, sealed: dict[str, Any], kind: WeaknessKind | None
) -> None:
    baseline = MeasurementFacts(**SOUND, baselines=BASELINE.baselines, sealed_baselines=sealed)
    assert kinds(facts(trust=trust), baseline) == ([kind] if kind else [])
    without = MeasurementFacts(**SOUND, baselines={"a": {"eager": 1.0, "compile": None}}, sealed_baselines=sealed)
    expected = [WeaknessKind.NO_COMPILE] if trust == "bounded" or not sealed else [kind] if kind else []
    assert kinds(facts(trust=trust), without) == expected


def test_a_variant_that_is_missing_on_some_workloads_is_counted() -> None:
    times = {"a": {"eager": 2.0, "compile": None}, "b": {"eager": 2.0, "compile": 1.0}}
    environment = {"sandbox": "bubblewrap", "missing_baselines": {"compile": "workload a: wrong\n values"}}
    baseline = MeasurementFacts(**{**SOUND, "environment": environment}, baselines=times)
    (weakness,) = weaknesses(facts(), baseline)
    assert weakness.detail == "on 1 of 2 workloads: workload a: wrong values"
    assert weaknesses(baseline) == (weakness,), "the baseline entry is marked too"


def test_an_entry_and_its_document_have_the_same_facts() -> None:
    launch_bound = draft(trust=Trust.LAUNCH_BOUND)
    changed = launch_bound.model_copy(
        update={
            "device": DeviceRecord.model_validate({"name": "H200", "id": "GPU-1", "others": 1, "around_us": 17.0}),
            "environment": EnvironmentRecord.model_validate(
                {**launch_bound.environment.model_dump(), "sandbox": "none"}
            )
            if launch_bound.environment
            else None,
        }
    )
    entry = EntryDraft.model_validate(changed.model_dump())
    of_entry = weaknesses(facts_of(entry))
    assert of_entry == weaknesses(facts_of_document(entry.model_dump(mode="json")))
    assert [weakness.kind for weakness in of_entry] == ["no-sandbox", "shared-device", "launch-bound"]
    assert from_text(to_text(of_entry)) == of_entry
    assert to_text(()) is None


def test_a_document_with_parts_of_other_types_is_read_as_far_as_it_can_be() -> None:
    document = {"device": ["x"], "environment": {"sandbox": 3, "missing_baselines": "all"}, "trust": 7, "baselines": 1}
    assert [weakness.kind for weakness in weaknesses(facts_of_document(document))] == ["no-calibration"]


def test_the_legend_has_a_line_for_each_kind_and_names_three_problems() -> None:
    shared = [Weakness(WeaknessKind.SHARED_DEVICE, f"{number} of them") for number in range(4)]
    marked: list[tuple[str, int | None, list[Weakness]]] = [
        (f"t/{number}", None, [shared[number]]) for number in range(4)
    ]
    marked += [("t/4", seq, [Weakness(WeaknessKind.THROTTLED, "sw_thermal")]) for seq in range(1, 7)]
    assert weakness_legend(marked) == [
        f"{SYMBOL} t/0; t/1; t/2; 1 more problem: other processes used the device during the measurement",
        f"{SYMBOL} t/4 seq 1, 2, 3, 4 and 2 more: the device was throttled during the measurement (sw_thermal)",
    ]
    assert weakness_legend([("t/5", None, [])]) == []
