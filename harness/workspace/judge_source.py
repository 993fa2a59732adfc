"""Sources of a daemon's judges: the devices of this host, or those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from harness.model.config import Config
from harness.model.process_status import HostStatus
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient, judge_command, judge_log_file
from harness.workspace.judge_endpoint import JudgeNotice


class JudgeSource(Protocol):
    """The judges of a daemon, on this host or on a cluster. Methods are for one thread."""

    def clients(self) -> Mapping[str, JudgeClient]:
        """Return the present judges by device."""

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the hosts of a cluster."""

    def fault(self) -> str | None:
        """Return the reason why there is no judge; None if there is one."""

    def tick(self) -> None:
        """Add the judges of new devices, and remove those of devices that have left."""

    def close(self) -> None:
        """Close the connection to other hosts."""


OpenJudges = Callable[[Callable[[JudgeNotice], None]], JudgeSource]
"""Creates a source of judges, which passes their notices to the given function."""


class LocalJudges:
    """One judge for each device of this host.

    Args:
        workspace: the workspace of the cache and the logs.
        config: has the judge's sandbox and the run's target.
        devices: names of devices, each for one judge.
        post: called with each notice of a judge, in that judge's reader thread.
    """

    def __init__(
        self, workspace: Workspace, config: Config, devices: Sequence[str], post: Callable[[JudgeNotice], None]
    ) -> None:
        self._clients = {
            device: JudgeClient(
                device,
                judge_command(device, workspace.cache, config.judge.sandbox),
                judge_log_file(workspace, device),
                post,
                target=config.target,
            )
            for device in devices
        }

    def clients(self) -> Mapping[str, JudgeClient]:
        """Return the judges by device."""
        return self._clients

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return no hosts: this one is the head."""
        return ()

    def fault(self) -> None:
        """Return None: there is a judge."""

    def tick(self) -> None:
        """Do nothing: the devices of this host do not change."""

    def close(self) -> None:
        """Do nothing: the judges are closed by their clients."""
