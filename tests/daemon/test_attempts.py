from __future__ import annotations

from pathlib import Path

from harness.daemon.attempts import Attempts, Loss
from harness.daemon.drafts import verdict_of_losses
from harness.model.verdict import Verdict

DIED = Loss(how="ended", reason="the judge of cpu was ended by SIGKILL")
HUNG = Loss(how="deadline", reason="the judge of cpu did not answer within 120 s")
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
    attempts = Attempts(tmp_path)
    attempts.lost(ONE, DIED)
    (file,) = tmp_path.iterdir()
    for torn in (b"", b"{", b'{"losses": 3}', b'{"losses": [{"how": "?"}]}'):
        file.write_bytes(torn)
        assert attempts.losses(ONE) == ()


def test_only_deadlines_are_a_timeout() -> None:
    assert verdict_of_losses((HUNG, HUNG))[0] is Verdict.TIMEOUT
    assert verdict_of_losses((HUNG, DIED))[0] is Verdict.RUNTIME_ERROR
    assert verdict_of_losses((DIED, DIED))[1] == (
        "judging this candidate has ended the judge twice; the last time, the judge of cpu was ended by SIGKILL"
    )
