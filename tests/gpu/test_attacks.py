"""Attacks on the GPU judge: each fools a naive judge; ours catches it, or passes it with an honest number."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.gpu.attacks import ATTACKS
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts

_GAIN, _NOISE = 1.5, 1.25


def test_there_are_enough() -> None:
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(attack: Attack, courts: GpuCourts) -> None:
    found = courts.naive(attack)  # type: ignore[arg-type] # an attack of the GPU's own shape
    plant = courts.plant(attack)  # type: ignore[arg-type]
    if attack.fools == "hang":
        assert found.hung
    else:
        assert found.passed, found.said
    if attack.fools == "speed":
        honest, _ = courts.honest(attack)
        assert honest.passed, honest.said
        assert found.speedup > _GAIN * honest.speedup
    if attack.fools == "litter":
        assert found.left_alive
    if attack.fools == "flood":
        assert found.said_bytes > 50_000_000
    if attack.fools == "plant":
        assert plant.exists()
        plant.unlink()
    answer = courts.real(attack, max_judge_s=60.0)  # type: ignore[arg-type]
    assert not plant.exists()
    if answer.verdict is not Verdict.PASSED:
        assert answer.verdict in attack.caught, answer.reason
        assert answer.summary.speedup is None
        return
    assert not attack.caught or Verdict.PASSED in attack.caught or attack.fools in ("speed", "plant"), "it passed"
    _, judged = courts.honest(attack)
    assert judged.summary.speedup is not None, judged.reason
    assert answer.summary.speedup_ci95 is not None
    assert answer.summary.speedup_ci95[0] < _NOISE * judged.summary.speedup, "its number is not honest"
