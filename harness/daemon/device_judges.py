"""Judge processes of the daemon, one for each device: which are ready, and when one is given up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from harness.daemon.status_writer import pausing_fault
from harness.model.config import Config
from harness.model.judging import JudgeReady
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient, JudgeNotice, judge_command, judge_log_file

_FIRST_STARTS = 5
"""Failed starts in a row after which a judge that was never ready is given up: 3 s if each ends immediately."""
_LATER_STARTS = 16
"""As above for a judge that was ready before: 5 min if each ends immediately. A GPU may be full for some minutes."""


class DeviceJudges:
    """One judge for each device.

    Args:
        workspace: the workspace of the cache and the logs.
        config: has the judge's sandbox and the run's target.
        devices: names of devices, each for one judge.
        notify: called with each notice of a judge, in that judge's reader thread.
    """

    def __init__(
        self, workspace: Workspace, config: Config, devices: Sequence[str], notify: Callable[[JudgeNotice], None]
    ) -> None:
        self._clients = {
            device: JudgeClient(
                device,
                judge_command(device, workspace.cache, config.judge.sandbox),
                judge_log_file(workspace, device),
                notify,
                target=config.target,
            )
            for device in devices
        }
        self._ready: dict[str, JudgeReady] = {}
        self._targets: dict[str, str] = {}
        """Device -> its target, for judges that were ready and are not given up."""

    def __iter__(self) -> Iterator[JudgeClient]:
        return iter(self._clients.values())

    def of(self, device: str) -> JudgeClient:
        """Return the judge of a device."""
        return self._clients[device]

    def start(self) -> None:
        """Start all processes."""
        for judge in self:
            judge.start()

    def tick(self) -> None:
        """Start the judges whose pause has ended, and end overdue ones."""
        for judge in self:
            judge.tick()

    def next_ticks(self) -> list[float]:
        """Return the times (`time.monotonic`) of the next actions of `tick`."""
        return [at for judge in self if (at := judge.next_tick()) is not None]

    def close(self) -> None:
        """End all processes simultaneously."""
        for judge in self:
            judge.hang_up()
        for judge in self:
            judge.close()

    def became_ready(self, device: str, ready: JudgeReady) -> None:
        """Record that a judge is ready.

        Args:
            device: its device.
            ready: its message, which has its target.
        """
        self._ready[ready.target] = ready
        self._targets[device] = ready.target

    def ready(self) -> dict[str, JudgeReady]:
        """Return target -> a judge of it that is ready, or was ready in this invocation."""
        return dict(self._ready)

    def must_be_given_up(self, judge: JudgeClient) -> bool:
        """Return true if a judge failed to start too often."""
        return judge.failed_starts >= (_LATER_STARTS if judge.became_ready else _FIRST_STARTS)

    def give_up(self, judge: JudgeClient) -> str | None:
        """Continue without a judge.

        Returns:
            The target without another judge; None if there is another judge of it, or the judge was never ready.
        """
        judge.give_up()
        target = self._targets.pop(judge.device, None)
        if target is None or target in self._targets.values():
            return None
        with contextlib.suppress(KeyError):
            del self._ready[target]
        return target

    @property
    def are_given_up(self) -> bool:
        """True if no judge is left."""
        return all(judge.state == "given up" for judge in self)

    @property
    def are_idle(self) -> bool:
        """True if no judge that is left starts, or works."""
        return all(judge.state in {"idle", "given up"} for judge in self)

    def pausing_fault(self) -> str | None:
        """Return the fault of this machine that prevents the work of all judges; None if one can work."""
        return pausing_fault(list(self))
