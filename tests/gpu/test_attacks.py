"""Attacks on the GPU judge: each fools a naive judge; ours catches it, or passes it with an honest number."""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.gpu.attacks import ATTACKS
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts
from tests.judge.attacks.trial import fool

_GAIN = 1.2
"""Times the honest solution's speed-up that an attack shows in the naive judge."""
_NOISE = 1.25
"""Times the honest solution's speed-up that the lower bound of an attack that passes may reach."""


def test_there_are_enough() -> None:
    assert len(ATTACKS) >= 40
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(attack: Attack, courts: GpuCourts) -> None:
    fool(attack, courts, _GAIN)
    answer = courts.real(attack, max_judge_s=60.0)
    assert not courts.plant(attack).exists()
    if answer.verdict is not Verdict.PASSED:
        assert answer.verdict in attack.caught, answer.reason
        assert answer.summary.speedup is None
        return
    assert not attack.caught or Verdict.PASSED in attack.caught or attack.fools in ("speed", "plant"), "it passed"
    judged = courts.real_once(courts.honest(attack))
    assert judged.summary.speedup is not None, judged.reason
    assert answer.summary.speedup_ci95 is not None
    assert answer.summary.speedup_ci95[0] < _NOISE * judged.summary.speedup, "its number is not honest"
