"""The judge's process: its lock, its end, its sandbox, and its answer to another protocol."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from harness.errors import ConfigurationError
from harness.model.judging import JUDGE_PROTOCOL, PROTOCOL_FIX
from harness.model.verdict import Verdict
from harness.workspace.blocking_judge import JudgeProcess, judge_process
from harness.workspace.judge_client import judge_command
from tests.judge.courtroom import KERNEL, judge, write_cpp, write_problem, write_pytorch
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("judge")


def _descendants(pid: int) -> set[int]:
    parents = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(") ")[2].split()
                parents[int(directory.name)] = int(fields[1])
    pids, grown = {pid}, True
    while grown:
        new = {child for child, parent in parents.items() if parent in pids} - pids
        grown = bool(new)
        pids |= new
    return pids - {pid}


@pytest.mark.slow
def test_one_judge_holds_the_device_and_nothing_outlives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as first:
        with pytest.raises(ConfigurationError, match="is used by process"):
            JudgeProcess("cpu", tmp_path / "cache", "bubblewrap")
        pidfds = [os.pidfd_open(pid) for pid in _descendants(first.pid)]
        assert pidfds
        os.kill(first.pid, signal.SIGKILL)
        for descriptor in pidfds:
            wait_until(lambda fd=descriptor: _ended(fd), event="the end of a killed judge's runners")  # type: ignore[misc]
            os.close(descriptor)
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as second:
        assert second.ready.target == "cpu"


@pytest.mark.slow
def test_a_judge_that_is_ended_while_it_starts_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = judge_command("cpu", tmp_path / "cache", "bubblewrap")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as judge:
        wait_until(lambda: list(tmp_path.glob("kernel-harness-judge-*")), event="the judge's directory")
        judge.terminate()
        judge.wait(timeout=60)
    assert list(tmp_path.glob("kernel-harness-judge-*")) == []


def _ended(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


_CONTINUED_BY_A_TIMER = """
#include <csignal>
#include <ctime>
static timer_t timer;
static bool has_timer() {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGCONT;
    signal(SIGCONT, [](int) {});  // Linux does not start a timer again whose signal is ignored
    return timer_create(CLOCK_MONOTONIC, &event, &timer) == 0;
}
static void continue_me_later() {
    static const bool made = has_timer();
    const itimerspec once{{0, 0}, {0, 3000000}};
    if (made) timer_settime(timer, 0, &once, nullptr);
}
"""


@pytest.mark.slow
def test_a_timer_that_would_continue_a_stopped_runner_is_refused_or_detected(
    court: JudgeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without bubblewrap there is no system-call filter, and the timer is detected instead."""
    problem = write_problem(tmp_path)
    solution = write_cpp(
        tmp_path / "solution", _CONTINUED_BY_A_TIMER + KERNEL.replace("for (", "continue_me_later();\n    for (")
    )
    answer = judge(court, problem, solution)
    assert answer.verdict is Verdict.PASSED, answer.reason
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    with judge_process("cpu", tmp_path / "cache", "none") as process:
        answer = judge(process, problem, solution)
    assert answer.verdict is Verdict.REWARD_HACK
    assert "while it was stopped" in str(answer.reason)


@pytest.mark.slow
def test_without_bubblewrap_the_answer_states_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    with judge_process("cpu", tmp_path / "cache", "none") as unconfined:
        answer = judge(unconfined, write_problem(tmp_path), write_cpp(tmp_path / "solution"))
    assert answer.verdict is Verdict.PASSED, answer.reason
    assert answer.environment.sandbox == "none"


@pytest.mark.parametrize(
    "place",
    [
        "judge.built",
        "judge.standby_taken",
        "judge.before_timing",
    ],
)
@pytest.mark.slow
def test_a_judge_killed_anywhere_leaves_a_cache_that_the_next_one_can_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    problem = write_problem(tmp_path)
    if place == "judge.standby_taken":  # this failpoint needs a runner with torch, which C++ does not use
        source = "import torch\ndef run(x, factor, y):\n    torch.mul(x, factor, out=y)\n"
        solution = write_pytorch(tmp_path / "solution", source)
    else:
        solution = write_cpp(tmp_path / "solution")
    monkeypatch.setenv("HARNESS_FAILPOINT", place)
    with pytest.raises(ConfigurationError), judge_process("cpu", tmp_path / "cache", "bubblewrap") as killed:
        judge(killed, problem, solution)
    monkeypatch.delenv("HARNESS_FAILPOINT")
    with judge_process("cpu", tmp_path / "cache", "bubblewrap") as next_judge:
        assert judge(next_judge, problem, solution).verdict is Verdict.PASSED


@pytest.mark.slow
@pytest.mark.serial
def test_the_handshake_with_a_runner_is_short(court: JudgeProcess) -> None:
    record = court.ready.device.model_dump()
    assert 20.0 < record["handshake_us"] < 1000.0
    assert 0 <= record["calibration_age_s"] < 24 * 3600, "the clock was calibrated when the judge started"
    assert 0.1 < record["dispatch_us"] < 20.0
    assert record["cold"] is True


@pytest.mark.slow
def test_a_request_of_another_protocol_ends_the_judge_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    process = JudgeProcess("cpu", tmp_path / "cache", "bubblewrap")
    with contextlib.closing(process), pytest.raises(ConfigurationError) as refused:
        judge(process, write_problem(tmp_path), None, protocol=JUDGE_PROTOCOL + 1)
    client_protocol, judge_protocol = JUDGE_PROTOCOL + 1, JUDGE_PROTOCOL
    expected = (
        f"the client uses judge protocol {client_protocol}, and this process uses judge protocol {judge_protocol}"
    )
    assert refused.value.message == f"a request on stdin: {expected}"
    assert refused.value.remedy == PROTOCOL_FIX
