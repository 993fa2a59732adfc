"""Judge processes of the daemon, one for each device: which are ready, and when one is given up."""

from __future__ import annotations

from collections.abc import Iterator

from harness.model.judging import JudgeReady
from harness.model.process_status import HostStatus
from harness.workspace.judge_client import JudgeClient
from harness.workspace.judge_source import JudgeSource

_FIRST_STARTS = 5
"""Failed starts in a row after which a judge that was never ready is given up: 3 s if each ends immediately."""
_LATER_STARTS = 16
"""As above for a judge that was ready before: 5 min if each ends immediately. A GPU may be full for some minutes."""


class DeviceJudges:
    """One judge for each device. Devices of a cluster are added and removed during the run."""

    def __init__(self, source: JudgeSource) -> None:
        self._source = source
        self._ready: dict[str, JudgeReady] = {}
        self._targets: dict[str, str] = {}
        """Device -> its target, for judges that were ready and are not given up."""

    def __iter__(self) -> Iterator[JudgeClient]:
        return iter(list(self._source.clients().values()))

    def of(self, device: str) -> JudgeClient | None:
        """Return the judge of a device; None if the device has left the cluster."""
        return self._source.clients().get(device)

    def tick(self) -> None:
        """Start the judges whose pause has ended, end overdue ones, and follow changes of a cluster's hosts.

        Raises:
            ConfigurationError: the cluster cannot be used.
        """
        self._source.tick()
        for judge in self:
            judge.tick()

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the hosts of the cluster."""
        return self._source.hosts()

    def next_ticks(self) -> list[float]:
        """Return the times (`time.monotonic`) of the next actions of `tick`."""
        return [at for judge in self if (at := judge.next_tick()) is not None]

    def close(self) -> None:
        """End all processes simultaneously."""
        for judge in self:
            judge.hang_up()
        self._source.close()
        for judge in self:
            judge.close()

    def became_ready(self, device: str, ready: JudgeReady) -> None:
        """Record that a judge is ready.

        Args:
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
        self._ready.pop(target, None)
        return target

    @property
    def are_given_up(self) -> bool:
        """True if no judge is left."""
        return {judge.state for judge in self} == {"given up"}

    @property
    def are_idle(self) -> bool:
        """True if there are judges, and none of those left starts or works."""
        states = {judge.state for judge in self}
        return bool(states) and states <= {"idle", "given up"}

    def pausing_fault(self) -> str | None:
        """Return the fault of this machine or the cluster that prevents all judges' work; None if one can work."""
        faults = [judge.host_fault for judge in self if judge.state != "given up"]
        return self._source.fault() or (faults[0] if faults and all(faults) else None)
