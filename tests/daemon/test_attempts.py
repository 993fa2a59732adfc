from __future__ import annotations

from pathlib import Path

import pytest

from harness.daemon.attempts import Attempts, Loss
from harness.daemon.drafts import verdict_of_losses
from harness.errors import ConfigurationError
from harness.model.verdict import Verdict

DIED = Loss(cause="ended", reason="the judge of cpu was ended by SIGKILL")
HUNG = Loss(cause="deadline", reason="the judge of cpu did not answer within 120 s")
ONE, OTHER = ("evaluation", "t/one", "tree"), ("confirmation", "t/one", "tree")


def test_losses_are_counted_per_measurement_and_survive_the_process(tmp_path: Path) -> None:
    assert Attempts(tmp_path / "attempts").losses(ONE) == ()
    Attempts(tmp_path / "attempts").lost(ONE, DIED)
    assert Attempts(tmp_path / "attempts").lost(ONE, HUNG) == (DIED, HUNG)
    assert Attempts(tmp_path / "attempts").losses(OTHER) == ()


def test_a_measurement_with_its_entry_is_forgotten(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path)
    attempts.lost(ONE, DIED)
    attempts.forget(ONE)
    attempts.forget(ONE)
    assert attempts.losses(ONE) == ()


def test_a_record_that_cannot_be_read_is_no_attempt(tmp_path: Path) -> None:
    Attempts(tmp_path).lost(ONE, DIED)
    (file,) = tmp_path.iterdir()
    for torn in (b"", b"{", b'{"losses": 3}', b'{"losses": [{"cause": "?"}]}'):
        file.write_bytes(torn)
        assert Attempts(tmp_path).losses(ONE) == ()


def test_a_disk_that_takes_no_record_makes_no_candidate_immortal(tmp_path: Path) -> None:
    blocked = tmp_path / "attempts"
    blocked.write_text("a file where the directory should be")
    attempts = Attempts(blocked)
    for _ in range(2):
        with pytest.raises(ConfigurationError):
            attempts.lost(ONE, DIED)
    assert attempts.losses(ONE) == (DIED, DIED)


def test_only_deadlines_are_a_timeout() -> None:
    assert verdict_of_losses((HUNG, HUNG))[0] is Verdict.TIMEOUT
    assert verdict_of_losses((HUNG, DIED))[0] is Verdict.RUNTIME_ERROR
    assert verdict_of_losses((DIED, DIED))[1] == (
        "judging this candidate has ended the judge twice; the last time, the judge of cpu was ended by SIGKILL"
    )
