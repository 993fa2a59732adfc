"""Runners of a GPU judge: how many start in advance, and their end. The runners here use no GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.judge.devices.cuda_runners import CudaRunners, RunnersAhead, runners_ahead
from harness.judge.devices.interface import RunnerTrust
from harness.judge.isolation.resource_limits import GIB, SandboxLimits
from harness.judge.runners import RunnerPlan

pytestmark = pytest.mark.xdist_group("judge")


@pytest.mark.parametrize(
    ("gpus", "device_bytes", "host_bytes", "ahead"),
    [
        (1, 139 * GIB, 128 * GIB, RunnersAhead(8, 3)),
        (8, 179 * GIB, 2048 * GIB, RunnersAhead(8, 3)),
        (1, 22 * GIB, 128 * GIB, RunnersAhead(4, 1)),
        (1, 139 * GIB, 16 * GIB, RunnersAhead(4, 1)),
        (8, 139 * GIB, 128 * GIB, RunnersAhead(4, 1)),
    ],
)
def test_with_little_memory_fewer_runners_start_in_advance(
    gpus: int, device_bytes: int, host_bytes: int, ahead: RunnersAhead
) -> None:
    assert runners_ahead(gpus, device_bytes, host_bytes) == ahead


def test_a_killed_runner_is_gone_when_its_end_was_waited_for(tmp_path: Path) -> None:
    plan = RunnerPlan(sandbox="bubblewrap", limits=SandboxLimits(), scratch=tmp_path)
    runners = CudaRunners(plan, tmp_path / "inductor", RunnersAhead(1, 0))
    runner = runners.take(RunnerTrust.CANDIDATE)
    process = runner.processes.runner
    runners.end(runner)
    runners.wait_for_ends()
    runners.wait_for_ends()  # nothing is left to wait for
    assert not runner.directory.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    runners.close()
