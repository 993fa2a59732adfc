"""How an attack is tried: first it fools the naive judge, then it does not fool ours."""

from __future__ import annotations

from harness.model.judging import JudgeAnswer
from harness.model.verdict import Verdict
from tests.judge.attacks.cases import Attack
from tests.judge.attacks.conftest import Case, Courts

_GAIN = 1.5
"""Times the honest solution's speed-up that an attack shows in the naive judge; most show ten or more."""
_MEASURED = 3
"""A host that takes the processor away can make one measurement many times too long or too short."""
_NOISE = 1.35
"""Times the honest solution's speed-up that the lower bound of a harmless attack may reach, on a busy machine."""


def fool(attack: Case, courts: Courts) -> None:
    """The naive judge falls for it."""
    found = courts.naive(attack)
    if attack.fools == "hang":
        assert found.hung
        return
    assert found.passed, found
    if attack.fools == "speed":
        honest = courts.naive_once(courts.honest(attack))
        for _ in range(_MEASURED):
            assert honest.passed, honest
            if found.speedup > _GAIN * honest.speedup:
                return
            found, honest = courts.naive(attack), courts.naive(courts.honest(attack))
        raise AssertionError(f"{found.speedup} is no more than an honest {honest.speedup}")
    if attack.fools == "litter":
        assert found.left_alive
    elif attack.fools == "flood":
        assert found.said_bytes > 50_000_000
    elif attack.fools == "plant":
        planted = courts.plant(attack)
        assert planted.exists()
        planted.unlink()


def catch(attack: Attack, courts: Courts) -> JudgeAnswer:
    """The naive judge falls for it, ours does not let it pass."""
    fool(attack, courts)
    answer = courts.real(attack)
    assert answer.verdict in attack.caught, answer.reason
    assert answer.reason
    assert attack.says in answer.reason, answer.reason
    assert answer.summary.speedup is None
    assert not courts.plant(attack).exists()
    return answer


def defuse(attack: Attack, courts: Courts) -> JudgeAnswer:
    """The naive judge falls for it; ours passes it with the number that it deserves."""
    fool(attack, courts)
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
        if answer.summary.speedup_ci95[0] < _NOISE * honest.summary.speedup:
            return answer
    raise AssertionError(f"{answer.summary.speedup_ci95} is more than an honest {honest.summary.speedup}")
