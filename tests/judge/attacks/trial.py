"""Trial of an attack: it succeeds in the naive judge, and it fails in the project's judge.

`make test` runs the project's judge only, and compares times with a wide margin. `make test-long` also shows that each
attack succeeds in the naive judge, and limits its gain in the project's judge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

from harness.model.judging import JudgeAnswer
from harness.model.verdict import Verdict
from tests.judge.attacks.cases import Attack
from tests.judge.attacks.conftest import Case, Courts

_GAIN = 1.5
"""Least ratio of an attack's speed-up to the honest solution's in the naive judge; most attacks reach ten or more."""
_FALSE = 1.2
"""Least ratio in the project's judge without the defence."""
_MEASURED = 3
"""Number of measurements: preemption by the host can make a single one many times too long or too short."""
_LEAST_ERROR = 0.03
"""Share of the honest version's number that a harmless attack may gain, or the clock's error if that is more."""
_HALF_WIDTH = 0.05
_BUSY = 4.0
"""Largest ratio of the lower bound of a harmless attack to the honest solution's speed-up, on a machine where other
programs use most of the processors; an attack that works gains ten and more."""


def fool(attack: Case, courts: Courts, gain: float = _GAIN) -> None:
    """Assert that the naive judge accepts the attack, with at least `gain` times the honest solution's speed-up."""
    naive_answer = courts.naive(attack)
    if attack.fools == "hang":
        assert naive_answer.hung
        return
    assert naive_answer.passed, naive_answer
    if attack.fools == "speed":
        honest = courts.naive_once(courts.honest(attack))
        for repeated in range(_MEASURED):
            if repeated:
                naive_answer, honest = courts.naive(attack), courts.naive(courts.honest(attack))
            assert honest.passed, honest
            if naive_answer.speedup > gain * honest.speedup:
                return
        raise AssertionError(f"{naive_answer.speedup} is no more than an honest {honest.speedup}")
    if attack.fools == "litter":
        assert naive_answer.left_alive
    elif attack.fools == "flood":
        assert naive_answer.output_bytes > 50_000_000
    elif attack.fools == "plant":
        planted = courts.plant(attack)
        assert planted.exists()
        planted.unlink()


def catch(attack: Attack, courts: Courts) -> JudgeAnswer:
    """Assert that the project's judge rejects the attack, and return its answer."""
    answer = courts.real(attack)
    assert answer.verdict in attack.caught, answer.reason
    assert answer.reason
    assert attack.reason_part in answer.reason, answer.reason
    assert answer.summary.speedup is None
    assert not courts.plant(attack).exists()
    return answer


def defuse(attack: Attack, courts: Courts) -> JudgeAnswer:
    """Assert that the project's judge rejects the attack or measures an honest speed-up, and return its answer."""
    for _ in range(_MEASURED):
        answer = courts.real(attack)
        assert not courts.plant(attack).exists()
        if attack.caught and answer.verdict in attack.caught:
            return answer
        assert answer.verdict is Verdict.PASSED, answer.reason
        honest = courts.real_once(courts.honest(attack))
        assert honest.verdict is Verdict.PASSED, honest.reason
        assert answer.summary.speedup_ci95 is not None
        assert honest.summary.speedup is not None
        if answer.summary.speedup_ci95[0] < _BUSY * honest.summary.speedup:
            return answer
    raise AssertionError(f"{answer.summary.speedup_ci95} is more than an honest {honest.summary.speedup}")


def fool_and_defuse(attack: Attack, courts: Courts) -> None:
    """Assert `fool` and `gain_nothing`; this needs an otherwise idle machine."""
    fool(attack, courts)
    gain_nothing(attack, courts)


def gain_nothing(attack: Attack, courts: Courts) -> None:
    """Assert that the attack is rejected or measured like the honest solution; this needs an otherwise idle machine."""
    for _ in range(_MEASURED):
        answer = courts.real(attack, half_width=_HALF_WIDTH)
        assert not courts.plant(attack).exists()
        if attack.caught and answer.verdict in attack.caught:
            return
        honest = courts.real(courts.honest(attack), half_width=_HALF_WIDTH)
        for judged in (answer, honest):
            assert judged.verdict is Verdict.PASSED, judged.reason
        if is_honest(answer, honest):
            return
    raise AssertionError(f"{answer.summary} is more than an honest {honest.summary}")


def is_honest(answer: JudgeAnswer, honest: JudgeAnswer) -> bool:
    """Return true if speed-up and latency are no better than the honest ones within the clock's error."""
    error = max(_LEAST_ERROR, _half_width(answer) + _half_width(honest))
    latency, usual = (judged.workloads[-1].latency_us for judged in (answer, honest))
    assert latency is not None
    assert usual is not None
    return math.log(speedup(answer) / speedup(honest)) <= error and math.log(usual / latency) <= error


def speedup(answer: JudgeAnswer) -> float:
    """Return the measured speed-up of a candidate that passed."""
    assert answer.summary.speedup is not None
    return answer.summary.speedup


def _half_width(answer: JudgeAnswer) -> float:
    """Return the half-width of the interval of ln(speed-up)."""
    assert answer.summary.speedup_ci95 is not None
    speedup_ci95_low, speedup_ci95_high = answer.summary.speedup_ci95
    return math.log(speedup_ci95_high / speedup_ci95_low) / 2


def gains_without(attack: Attack, undefended: Courts) -> None:
    """Assert that a judge without the defence measures a false speed-up."""
    for _ in range(_MEASURED):
        answer, honest = undefended.real(attack), undefended.real(undefended.honest(attack))
        for judged in (answer, honest):
            assert judged.verdict is Verdict.PASSED, judged.reason
        if speedup(answer) > _FALSE * speedup(honest):
            return
    raise AssertionError(f"{speedup(answer)} is no more than an honest {speedup(honest)}")


def sampled(attacks: Iterable[Attack], often: frozenset[str]) -> list[ParameterSet]:
    """Return attacks as parameters of a test; those that `often` does not name are marked slow."""
    names = {attack.name for attack in attacks}
    assert often <= names, often - names
    return [
        pytest.param(attack, id=attack.name, marks=() if attack.name in often else pytest.mark.slow)
        for attack in attacks
    ]
