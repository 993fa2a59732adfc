"""Standby runners in the real sandbox."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from harness.errors import ConfigurationError
from harness.judge.channel import RunnerRecord
from harness.judge.devices.interface import Clock, RunnerTrust
from harness.judge.isolation import sandbox
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.runners import NoDeviceMemory, Runner, RunnerFailed, RunnerPlan, Standby
from harness.judge.sides import Staged, load
from harness.model.verdict import Verdict
from harness.runner import wire
from harness.runner.messages import Program
from harness.workspace.processes import oom_kills
from tests.waiting import wait_until

pytestmark = pytest.mark.xdist_group("judge")


@pytest.fixture
def plan(tmp_path: Path) -> RunnerPlan:
    return RunnerPlan(sandbox="bubblewrap", limits=SandboxLimits(), scratch=tmp_path)


@pytest.fixture
def starved(plan: RunnerPlan) -> RunnerPlan:
    """The plan of runners with too little memory for their start."""
    return replace(plan, limits=SandboxLimits(address_space_bytes=64 << 20))


def test_a_runner_that_did_not_start_is_not_handed_out(plan: RunnerPlan, starved: RunnerPlan) -> None:
    plans = iter((starved, plan, starved))
    standby = Standby(lambda: Runner(next(plans)))
    standby.start()
    runner = standby.take()
    runner.wait_ready()
    runner.kill()
    standby.start()
    standby.settle()  # returns without an error, because no start is pending
    standby.close()
    assert next(plans, None) is None


def test_an_error_states_that_no_runner_starts(starved: RunnerPlan) -> None:
    standby = Standby(lambda: Runner(starved))
    standby.start()
    with pytest.raises(ConfigurationError, match="the runner does not start in its sandbox"):
        standby.take()


def test_a_started_runner_is_warm_once_its_start_was_waited_for(plan: RunnerPlan) -> None:
    standby = Standby(lambda: Runner(plan))
    standby.refill()
    assert not standby.has_warm_runner()
    standby.settle()
    assert standby.has_warm_runner()
    standby.close()
    assert not standby.has_warm_runner()


@pytest.mark.parametrize("kills_sandbox", [True, False])
def test_a_runner_that_is_killed_while_it_is_stopped_is_not_accused(plan: RunnerPlan, kills_sandbox: bool) -> None:
    runner = Runner(plan)
    runner.stop()
    runner.check_still_stopped()
    if kills_sandbox:
        runner.begin_kill()
    else:
        os.kill(runner.processes.runner, signal.SIGKILL)  # as the kernel kills a process when memory is out
    failure = wait_until(lambda: _failure(runner), event="the end of the runner")
    assert failure.verdict is Verdict.RUNTIME_ERROR
    assert "ended while it was stopped" in str(failure)
    assert "(killed by SIGKILL)" in str(failure)
    runner.kill()


def _failure(runner: Runner) -> RunnerFailed | None:
    try:
        runner.check_still_stopped()
    except RunnerFailed as failure:
        return failure
    return None


@pytest.mark.parametrize("reached_limit", [True, False, None])
def test_a_stopped_runner_that_is_killed_for_other_processes_is_no_verdict(
    plan: RunnerPlan, monkeypatch: pytest.MonkeyPatch, reached_limit: bool | None
) -> None:
    runner = Runner(plan)
    runner.stop()
    os.kill(runner.processes.runner, signal.SIGKILL)
    wait_until(lambda: _state(runner.processes.runner) == "Z", event="the end of the runner")
    kills_before = oom_kills()
    monkeypatch.setattr(sandbox, "oom_kills", lambda: kills_before + 1)
    monkeypatch.setattr(sandbox, "reached_memory_limit", lambda _: reached_limit)
    with pytest.raises(RunnerFailed if reached_limit else MemoryError, match=r"ended while|within its memory limit"):
        runner.check_still_stopped()
    runner.kill()


def _state(process: int) -> str:
    """Return the state of a process, as in /proc/PID/stat."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0]


def test_settle_does_not_wait_for_imports_on_other_processors(plan: RunnerPlan) -> None:
    runner = Runner(replace(plan, warms=True, imports_apart=True))
    runner.settle()
    first = runner.channel.expect(wire.Code.HELLO, time.monotonic() + 60.0)  # `settle` has not read the message
    assert first.code is wire.Code.HELLO
    runner.kill()


def test_a_device_that_cannot_be_prepared_is_reported(plan: RunnerPlan) -> None:
    runner = Runner(replace(plan, warms=True, env={"HARNESS_RUNNER_DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": ""}))
    with pytest.raises(ConfigurationError, match=r"the runner does not start in its sandbox: .*(CUDA|cuda|NVIDIA)"):
        runner.wait_ready()


def test_a_runner_without_memory_for_its_context_is_a_lack_of_memory(plan: RunnerPlan) -> None:
    runner = Runner(replace(plan, warms=True))
    usual = runner.channel.expect

    def expect(code: wire.Code, deadline: float) -> RunnerRecord:
        return usual(code, deadline) if code is wire.Code.HELLO else RunnerRecord(wire.Code.NO_MEMORY, 0, 0, 0)

    with (
        mock.patch.object(runner.channel, "expect", side_effect=expect),
        mock.patch.object(runner.channel, "send"),
        pytest.raises(NoDeviceMemory, match="a new runner gets no device memory"),
    ):
        runner.wait_ready()
    assert not runner.directory.exists(), "the runner has ended"


def test_a_runner_is_ended_when_its_files_cannot_be_written() -> None:
    def put(_: object) -> Program:
        raise OSError(errno.ENOSPC, "No space left on device")

    clock, runner = mock.create_autospec(Clock, instance=True), mock.create_autospec(Runner, instance=True)
    clock.runners, runner.stage = mock.Mock(), Path("/stage")
    with pytest.raises(OSError, match="No space left"):
        load(clock, runner, Staged(put, 1.0), RunnerTrust.CANDIDATE)
    clock.runners.end.assert_called_once_with(runner)
