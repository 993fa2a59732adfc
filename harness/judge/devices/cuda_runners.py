"""Runners of a CUDA device: those that wait for a solution, and those that have been killed and have not ended yet."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from harness.judge.devices.cuda_environment import require_no_mps
from harness.judge.devices.interface import RunnerPool, RunnerTrust
from harness.judge.isolation.resource_limits import GIB
from harness.judge.runners import Runner, RunnerPlan, Standby
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage

_INDUCTOR = "/inductor"


@dataclass(frozen=True)
class RunnersAhead:
    """Numbers of runners that are started in advance."""

    candidates: int
    references: int


_MANY, _FEW = RunnersAhead(8, 3), RunnersAhead(4, 1)
"""An evaluation takes two runners for candidates and one for a reference. A start takes longer than a short evaluation:
up to 6 s of imports beside other work, then 1.3 s on the device, which must not overlap with a timing. So of eight
runners two are for this evaluation, two become warm for the next, and four import. With little memory there are
fewer."""
_MEMORY_FOR_MANY = 32 * GIB
"""Memory of a GPU, and host memory for each GPU; estimates. Each warm runner has torch, Triton and a CUDA context."""


def runners_ahead(gpus: int, device_bytes: int, host_bytes: int | None = None) -> RunnersAhead:
    """Return how many runners a judge starts in advance.

    Args:
        gpus: number of GPUs of this host, which may have a judge each.
        device_bytes: memory of the judge's GPU.
        host_bytes: memory of this host; None: measured.
    """
    if host_bytes is None:
        host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return _MANY if min(device_bytes, host_bytes // gpus) >= _MEMORY_FOR_MANY else _FEW


class CudaRunners(RunnerPool):
    """Runners of a CUDA device; see the protocol `RunnerPool`.

    Args:
        plan: configuration of the runners.
        inductor: directory of compiled code of references, which no candidate can write.
        ahead: numbers of runners that are started in advance.
    """

    def __init__(self, plan: RunnerPlan, inductor: Path, ahead: RunnersAhead) -> None:
        self._plan, self._inductor = plan, inductor
        self._standby = Standby(lambda: Runner(plan), ahead=ahead.candidates)
        self._trusted_standby = Standby(self._start_trusted, ahead=ahead.references)
        self._ending: list[Runner] = []

    def _start_trusted(self) -> Runner:
        """Start a runner for the reference, with a compiler cache that no candidate can write."""
        confined = self._plan.sandbox == "bubblewrap"
        inside = _INDUCTOR if confined else str(self._inductor)
        env = {
            **self._plan.env,
            "TORCHINDUCTOR_CACHE_DIR": inside,
            "TRITON_CACHE_DIR": f"{inside}/triton",
            "FLASHINFER_WORKSPACE_BASE": inside,  # its compiled kernels
        }
        return Runner(replace(self._plan, env=env), writable={self._inductor: inside} if confined else None)

    @timed_as(JudgeStage.WAIT)
    def take(self, trust: RunnerTrust, *, needs_torch: bool = True) -> Runner:
        """Return a new runner that can load a solution; all have imported torch.

        Args:
            trust: whose code it will execute.
            needs_torch: not used.
        """
        del needs_torch
        return (self._trusted_standby if trust is RunnerTrust.REFERENCE else self._standby).take()

    def expect(self, ahead: RunnersAhead) -> None:
        """Keep other numbers of runners started from now on, for a series of requests that takes more of one kind."""
        self._standby.expect(ahead.candidates)
        self._trusted_standby.expect(ahead.references)

    def clean(self) -> Runner:
        """Return a new runner for the judge's own calls, which is like those of candidates."""
        return self._standby.take()

    @timed_as(JudgeStage.WAIT)
    def start_standby(self) -> None:
        """Start the next runners in advance, and warm up those that have imported. Not allowed during a timing.

        Raises:
            HostFaultError: MPS is active.
        """
        require_no_mps()
        self._standby.start()
        self._trusted_standby.start()

    def after_check(self) -> None:
        """Start runners in place of those that checks took. If none is left that is warm, wait for the next one."""
        if self._standby.has_warm_runner():
            self._standby.refill()
        else:
            self._standby.start()
        self._standby.settle()

    @timed_as(JudgeStage.WAIT)
    def settle(self) -> None:
        """Wait until no start of a runner can disturb a timing, and until killed runners have ended."""
        self._standby.settle()
        self._trusted_standby.settle()
        self.wait_for_ends()

    def end(self, runner: Runner) -> None:
        """Kill a runner without waiting for its end: the driver needs 80 ms to remove its context."""
        runner.begin_kill()
        self._ending.append(runner)

    @timed_as(JudgeStage.WAIT)
    def wait_for_ends(self) -> None:
        """Wait until killed runners have ended, because their ends disturb timings and release device memory."""
        while self._ending:
            self._ending.pop().kill()

    def end_standby(self) -> None:
        """End the runners that were started ahead, each of which has a context on the device."""
        self._standby.close()
        self._trusted_standby.close()
        self.wait_for_ends()

    def close(self) -> None:
        """End all runners that were not taken, and wait until all killed runners have ended."""
        self.end_standby()
