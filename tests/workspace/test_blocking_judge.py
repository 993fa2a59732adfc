"""A judge for one command: it answers, or the command fails with the reason; no process is left."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.model.judging import PROTOCOL_FIX, JudgeProgress
from harness.model.verdict import Verdict
from harness.workspace import judge_client
from harness.workspace.blocking_judge import JudgeProcess, judge_process
from tests.waiting import wait_until
from tests.workspace.conftest import group_of, request_for


@pytest.fixture
def judge(tmp_path: Path, stub_command: Path) -> Iterator[JudgeProcess]:
    del stub_command
    threads = set(threading.enumerate())
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as process:
        yield process
    wait_until(lambda: not group_of(process.pid), event="the end of the judge's process group")
    assert set(threading.enumerate()) <= threads, "a thread outlived the judge"


def ignore(progress: JudgeProgress) -> None:
    del progress


def test_requests_are_answered_by_one_process_with_progress(judge: JudgeProcess, problem: Path) -> None:
    stages: list[str] = []
    for number in ("1", "2"):
        request = request_for(problem, "// stub: speedup=1.5", number=number)
        answer = judge.ask(request, lambda progress: stages.append(progress.stage))
        assert (answer.id, answer.verdict) == (number, Verdict.PASSED)
    assert stages == ["timing", "timing"]
    assert judge.ready.target == "cpu"


def test_a_judge_that_is_killed_by_a_request_is_an_error_and_is_not_restarted(
    judge: JudgeProcess, problem: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"the judge of cpu was ended by SIGKILL"):
        judge.ask(request_for(problem, "// stub: kill"), ignore)
    with pytest.raises(RuntimeError, match="the judge of cpu is waiting, not idle"):
        judge.ask(request_for(problem, number="2"), ignore)


def test_a_judge_that_is_killed_between_requests_is_an_error(judge: JudgeProcess, problem: Path) -> None:
    os.kill(judge.pid, signal.SIGKILL)
    with pytest.raises(ConfigurationError, match=r"the judge of cpu was ended by SIGKILL"):
        judge.ask(request_for(problem, "// stub: hang"), ignore)


def test_a_judge_that_hangs_is_ended_at_its_deadline(
    judge: JudgeProcess, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_client, "MARGIN_S", 0.2)
    request = request_for(problem, "// stub: hang").model_copy(update={"max_judge_s": 0.1})
    with pytest.raises(ConfigurationError, match=r"the judge of cpu did not answer within 0 s"):
        judge.ask(request, ignore)
    wait_until(lambda: not group_of(judge.pid), event="the end of the judge's process group")


def test_a_request_of_another_protocol_is_refused_with_the_judges_own_words(judge: JudgeProcess, problem: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        judge.ask(request_for(problem).model_copy(update={"protocol": 1}), ignore)
    assert (caught.value.message, caught.value.remedy) == ("the client uses protocol 1, not 2", "the fix")


def test_a_judge_of_another_protocol_is_refused(
    tmp_path: Path, stub_command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del stub_command
    monkeypatch.setenv("STUB_JUDGE_PROTOCOL", "1")
    with pytest.raises(ConfigurationError) as caught:
        JudgeProcess("cpu", tmp_path / "cache", "bubblewrap")
    assert caught.value.message == "the judge of cpu uses judge protocol 1, and this process uses judge protocol 2"
    assert caught.value.remedy == PROTOCOL_FIX


@pytest.mark.parametrize(
    ("program", "message", "fix"),
    [
        ("sys.exit('harness judge: no device\\n  plug one in')", "no device", "plug one in"),
        ("sys.exit('not of ours')", "the judge of cpu ended with exit code 1 (it wrote: not of ours)", None),
        ("print('hello')", "the judge of cpu wrote a line that is not the protocol: b'hello\\n'", None),
    ],
)
def test_a_judge_that_cannot_start_is_an_error_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str, fix: str | None
) -> None:
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", shlex.join([sys.executable, "-c", f"import sys; {program}"]))
    with pytest.raises(ConfigurationError) as caught:
        JudgeProcess("cpu", tmp_path / "cache", "bubblewrap")
    assert (caught.value.message, caught.value.remedy) == (message, fix)


def test_a_judge_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_JUDGE_COMMAND", str(tmp_path / "no-such-judge"))
    with pytest.raises(ConfigurationError, match=r"the judge of cpu cannot be started: .*No such file"):
        JudgeProcess("cpu", tmp_path / "cache", "bubblewrap")
