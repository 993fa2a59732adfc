"""A handshake that is far above the usual one is not subtracted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.judge.handshake import HandshakeCalibration, calibrate_handshake, remember_handshake, usual_handshake_ns
from harness.workspace.blocking_judge import judge_process

pytestmark = pytest.mark.xdist_group("judge")


@pytest.mark.parametrize(
    ("values", "usual", "handshake", "reading_count"),
    [
        ([110, 100, 105], None, HandshakeCalibration(100), 3),
        ([900, 500, 300, 110, 100], None, HandshakeCalibration(100), 5),
        ([1142, 1150, 1145, 130, 128], 110.0, HandshakeCalibration(128), 5),
        ([1142] * 20, 110.0, HandshakeCalibration(110.0, refused_ns=1142), 12),
        ([100 * 2**n for n in range(20)], None, HandshakeCalibration(100), 12),
    ],
    ids=["steady", "after a while", "repeated", "outlier", "unsteady"],
)
def test_calibration_continues_until_it_is_steady_and_usual(
    values: Sequence[float], usual: float | None, handshake: HandshakeCalibration, reading_count: int
) -> None:
    source = iter(values)
    assert calibrate_handshake(lambda: next(source), usual) == handshake
    assert len(values) - len(list(source)) == reading_count


def test_accepted_calibrations_are_stored_for_each_host(tmp_path: Path) -> None:
    assert usual_handshake_ns(tmp_path, "a") is None
    for ns in (500.0, *range(100, 109)):
        remember_handshake(tmp_path, "a", HandshakeCalibration(ns))
    remember_handshake(tmp_path, "a", HandshakeCalibration(1.0, refused_ns=900.0))
    remember_handshake(tmp_path, "b", HandshakeCalibration(7.0))
    assert usual_handshake_ns(tmp_path, "a") == 104.0
    assert usual_handshake_ns(tmp_path, "b") == 7.0
    (tmp_path / "handshakes.json").write_text("{")
    assert usual_handshake_ns(tmp_path, "a") is None


@pytest.mark.slow
def test_a_judge_does_not_subtract_a_handshake_far_above_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    file = tmp_path / "cache" / "handshakes.json"
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as first:
        accepted = first.ready.device.model_dump()
    assert "handshake_refused_us" not in accepted
    stored = json.loads(file.read_text())
    stored["handshakes"] = {key: [ns / 10 for ns in values] for key, values in stored["handshakes"].items()}
    file.write_text(json.dumps(stored))
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as second:
        refused = second.ready.device.model_dump()
    assert refused["handshake_us"] == pytest.approx(accepted["handshake_us"] / 10, abs=0.01)
    assert refused["handshake_refused_us"] > 2 * refused["handshake_us"]
    assert json.loads(file.read_text()) == stored
