"""Judge processes of the daemon, one for each device: which are ready, and when one is given up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.daemon.status_writer import pausing_fault
from harness.model.judging import JudgeReady
from harness.model.process_status import HostStatus
from harness.workspace.judge_client import JudgeClient
from harness.workspace.judge_source import JudgeSource

_FIRST_STARTS = 5
"""A judge that was never ready is given up after so many starts in a row: 3 s where each ends at once."""
_LATER_STARTS = 16
"""A judge that was ready before is given up later: 5 min where each ends at once. A GPU may be full for a while."""


class DeviceJudges:
    """One judge for each device. With a cluster, devices come and go.

    Args:
        source: has the judges.
    """

    def __init__(self, source: JudgeSource) -> None:
        self._source = source
        self._ready: dict[str, JudgeReady] = {}
        self._targets: dict[str, str] = {}
        """Device -> its target, for judges that were ready and are not given up."""

    def __iter__(self) -> Iterator[JudgeClient]:
        return iter(list(self._source.clients().values()))

    def of(self, device: str) -> JudgeClient | None:
        """Return the judge of a device; None where the device has gone."""
        return self._source.clients().get(device)

    def tick(self) -> None:
        """Do what is due: starts, deadlines, and hosts of a cluster that come and go.

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
        """Return the times (`time.monotonic`) at which `tick` has something to do."""
        return [at for judge in self if (at := judge.next_tick()) is not None]

    def close(self) -> None:
        """End all processes, at once and all together."""
        for judge in self:
            judge.hang_up()
        self._source.close()
        for judge in self:
            judge.close()

    def became_ready(self, device: str, ready: JudgeReady) -> None:
        """Note that a judge is ready, and for which target."""
        self._ready[ready.target] = ready
        self._targets[device] = ready.target

    def ready(self) -> dict[str, JudgeReady]:
        """Target -> a judge of it that is ready, or has been in this invocation."""
        return dict(self._ready)

    def must_be_given_up(self, judge: JudgeClient) -> bool:
        """Return true if a judge failed to start too often."""
        return judge.failed_starts >= (_LATER_STARTS if judge.became_ready else _FIRST_STARTS)

    def give_up(self, judge: JudgeClient) -> str | None:
        """Go on without a judge.

        Returns:
            The target that no judge is left for; None where there is another judge of it, or it was never ready.
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
        states = {judge.state for judge in self}
        return states == {"given up"}

    @property
    def are_idle(self) -> bool:
        """True if there are judges, and none that is left starts or works."""
        states = {judge.state for judge in self}
        return bool(states) and states <= {"idle", "given up"}

    def pausing_fault(self) -> str | None:
        """Return the fault of this machine, or of the cluster, that lets no judge work; None where one can."""
        return self._source.fault() or pausing_fault(list(self))
