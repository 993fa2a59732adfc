"""Attacks on the GPU judge: each succeeds in a naive judge; the project's judge rejects it or measures it correctly.

If the naive judge lacks the attacked part (`off`), the attack runs in the project's judge without the named defences.
"""

from __future__ import annotations

import pytest

from harness.model.verdict import Verdict
from tests.gpu.attacks import ATTACKS
from tests.gpu.cases import Attack
from tests.gpu.conftest import GpuCourts
from tests.judge.attacks.trial import fool, is_honest, speedup

_GAIN = 1.2
"""Least ratio of an attack's speed-up to the honest version's without the defence."""
_MEASURED = 3
_HALF_WIDTH = 0.03
_REASONS: dict[Verdict, tuple[str, ...]] = {
    Verdict.INCORRECT_NUMERICAL: ("output `",),
    Verdict.RUNTIME_ERROR: (
        "inputs are read-only", "exited with code", "No such file", "Permission denied", "illegal memory access",
    ),
    Verdict.REWARD_HACK: (
        "device work went on after the batch", "keeps the device busy between calls", "it watches the inputs",
        "work begins before the call is made", "outputs changed after the call was answered", "forged an answer",
    ),
    Verdict.SUSPECT: ("below the floor",),
    Verdict.TIMEOUT: ("no answer within",),
}  # fmt: skip
"""Parts of reasons that name a defence, by verdict."""
_BY_DEFENCES = sorted((attack for attack in ATTACKS if attack.off), key=lambda attack: attack.off)
"""Attacks in the order of their missing defences, so that one judge serves those with the same ones."""


@pytest.mark.parametrize("attack", _BY_DEFENCES, ids=lambda attack: attack.name)
def test_gains_without_the_defence(attack: Attack, courts: GpuCourts) -> None:
    honest = courts.honest(attack)
    for _ in range(_MEASURED):
        gained, usual = (courts.undefended(case, attack.off, max_judge_s=60.0) for case in (attack, honest))
        assert usual.verdict is Verdict.PASSED, usual.reason
        assert gained.verdict is Verdict.PASSED, gained.reason
        if not attack.gains or speedup(gained) > _GAIN * speedup(usual):
            return
    raise AssertionError(f"{speedup(gained)} is no more than an honest {speedup(usual)}")


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_attack(attack: Attack, courts: GpuCourts) -> None:
    if attack.gains and not attack.off:
        fool(attack, courts, _GAIN)
    for _ in range(_MEASURED):
        answer = courts.real(attack, max_judge_s=60.0, half_width=_HALF_WIDTH)
        assert not courts.plant(attack).exists()
        if answer.verdict is not Verdict.PASSED:
            assert answer.verdict in attack.caught, answer.reason
            assert answer.summary.speedup is None
            reasons = attack.reasons or _REASONS[answer.verdict]
            assert any(part in (answer.reason or "") for part in reasons), answer.reason
            return
        assert not attack.caught or Verdict.PASSED in attack.caught or attack.fools in ("speed", "plant"), "passed"
        if attack.replay_refused:
            assert answer.recording is not None
            assert str(answer.recording.reason).startswith("replayed, its launches do something else")
        honest = courts.real_once(courts.honest(attack), max_judge_s=60.0, half_width=_HALF_WIDTH)
        assert honest.verdict is Verdict.PASSED, honest.reason
        if is_honest(answer, honest):
            return
        courts.forget(courts.honest(attack))
    raise AssertionError(f"{answer.summary}: an honest version has {honest.summary}")
