"""Sources of a daemon's judges: the devices of this host, or those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.model.config import Config
from harness.model.process_status import HostStatus
from harness.workspace.directories import Workspace
from harness.workspace.judge_client import JudgeClient, judge_command, judge_log_file
from harness.workspace.judge_endpoint import JudgeNotice


class JudgeSource:
    """The judges of a daemon: by default those of this host, whose devices do not change. Methods are for one thread.

    Args:
        clients: the judges by device.
    """

    def __init__(self, clients: Mapping[str, JudgeClient]) -> None:
        self._clients = dict(clients)

    def clients(self) -> Mapping[str, JudgeClient]:
        """Return the present judges by device."""
        return self._clients

    def hosts(self) -> tuple[HostStatus, ...]:
        """Return the hosts of a cluster."""
        return ()

    def fault(self) -> str | None:
        """Return the reason why there is no judge; None if there is one."""
        return None

    def tick(self) -> None:
        """Add the judges of new devices, and remove those of devices that have left."""

    def close(self) -> None:
        """Close the connection to other hosts."""


OpenJudges = Callable[[Callable[[JudgeNotice], None]], JudgeSource]
"""Creates a source of judges, which passes their notices to the given function."""


def local_judges(
    workspace: Workspace, config: Config, devices: Sequence[str], post: Callable[[JudgeNotice], None]
) -> JudgeSource:
    """Return one judge for each device of this host.

    Args:
        workspace: the workspace of the cache and the logs.
        devices: names of devices, each for one judge.
        post: called with each notice of a judge, in that judge's reader thread.
    """
    clients = {}
    for device in devices:
        command = judge_command(device, workspace.cache, config.judge.sandbox)
        log_file = judge_log_file(workspace, device)
        clients[device] = JudgeClient(device, command, log_file, post, target=config.target)
    return JudgeSource(clients)
