"""Runners of the CPU. One that has imported torch is started ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.judge.devices.interface import RunnerPool, RunnerTrust
from harness.judge.runners import Runner, RunnerPlan, Standby
from harness.judge.stages import timed_as
from harness.model.judging import JudgeStage

_CACHE, _INDUCTOR = "TORCHINDUCTOR_CACHE_DIR", "/inductor"
_WITHOUT_TORCH = {"HARNESS_RUNNER_TORCH": "0"}
"""Environment of a runner for compiled code. It is started on demand, without the import of torch, which takes 2 s."""


class CpuRunners(RunnerPool):
    """Runners of the CPU; see the protocol `RunnerPool`.

    Args:
        plan: configuration of the runners.
        cache: directory of compiled code.
    """

    def __init__(self, plan: RunnerPlan, cache: Path) -> None:
        self.plan = plan
        self._inductor = cache / "inductor"
        self._inductor.mkdir(parents=True, exist_ok=True)
        self._standby = Standby(lambda: Runner(plan))

    @timed_as(JudgeStage.WAIT)
    def take(self, trust: RunnerTrust, *, needs_torch: bool = True) -> Runner:
        """Return a new runner; see `RunnerPool.take`.

        Args:
            trust: whose code it will execute.
            needs_torch: return the standby runner, which has imported torch.
        """
        if trust is RunnerTrust.REFERENCE:
            if self.plan.sandbox == "none":
                return Runner(self._with_env({_CACHE: str(self._inductor)}))
            return Runner(self._with_env({_CACHE: _INDUCTOR}), writable={self._inductor: _INDUCTOR})
        return self._standby.take() if needs_torch else Runner(self._with_env(_WITHOUT_TORCH))

    def without_torch(self) -> Runner:
        """Return a new runner for the judge's own calls."""
        return Runner(self._with_env(_WITHOUT_TORCH))

    def _with_env(self, env: Mapping[str, str]) -> RunnerPlan:
        return replace(self.plan, env={**self.plan.env, **env})

    @timed_as(JudgeStage.WAIT)
    def start_standby(self) -> None:
        """Start the next runner in advance."""
        self._standby.start()

    @timed_as(JudgeStage.WAIT)
    def settle(self) -> None:
        """Wait until the standby runner has started."""
        self._standby.settle()

    def after_check(self) -> None:
        """Do nothing: a start would disturb the evaluation, and a runner without torch starts at once."""

    def end(self, runner: Runner) -> None:
        """End a runner."""
        runner.kill()

    def end_standby(self) -> None:
        """End the standby runner."""
        self._standby.close()

    def close(self) -> None:
        """End the standby runner."""
        self._standby.close()
