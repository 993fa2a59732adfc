"""The cluster of a run, for commands: its hosts, its target, and what is wrong with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from harness.cli.devices import DeviceChoice
from harness.cli.preflight.check import Check
from harness.errors import ConfigurationError, HarnessError
from harness.model.config import Config
from harness.model.printable import count_of
from harness.model.process_status import HostStatus
from harness.sol.hardware import CPU, target_name
from harness.workspace.directories import Workspace
from harness.workspace.judge_source import OpenJudges
from harness.workspace.processes import PARENT_VARIABLE

_LIST_S = 150.0
_CONNECT_S = 5.0
_NOTABLE_SKEW_S = 60.0


def cluster_hosts(address: str) -> tuple[HostStatus, ...]:
    """Return the hosts of a cluster. Ray is used in a process of its own, which it may end.

    Raises:
        ConfigurationError: there is no such cluster, or it cannot be used.
    """
    from harness.cluster.connection import require_ray
    from harness.cluster.messages import BRIDGE_EVENTS, BridgeFailed, HostsChanged

    require_ray()
    _require_reachable(address)
    command = [sys.executable, "-m", "harness.cluster.bridge", "--address", address, "--list"]
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    try:
        listed = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigurationError(
            f"the Ray cluster at {address} does not answer within {_LIST_S:.0f} s", where="--cluster"
        ) from None
    if "InvalidAuthToken" in listed.stderr:
        raise ConfigurationError(
            f"the Ray cluster at {address} refuses the token of this host",
            where="--cluster",
            remedy="copy ~/.ray/auth_token from the head, and export RAY_AUTH_MODE=token: docs/how-to/cluster.md",
        )
    events = [BRIDGE_EVENTS.validate_json(line) for line in listed.stdout.splitlines()]
    failure = next((event for event in events if isinstance(event, BridgeFailed)), None)
    if failure is not None:
        raise ConfigurationError(failure.message, where="--cluster", remedy=failure.fix)
    hosts = [event.hosts for event in events if isinstance(event, HostsChanged)]
    if not hosts:
        last = (listed.stderr.strip().splitlines() or ["no reason"])[-1]
        raise ConfigurationError(f"the Ray cluster at {address} cannot be listed: {last}", where="--cluster")
    return hosts[-1]


def _require_reachable(address: str) -> None:
    """Connect once, because Ray tries for minutes without a message.

    Raises:
        ConfigurationError: the address is malformed, or nothing answers there.
    """
    if address == "auto" or "://" in address:
        return  # `join` finds the cluster of this host, or refuses a proxy
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(
            f"no such address: {address}", where="--cluster", remedy="--cluster auto, or HOST:PORT"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"nothing answers at {address}: {error}",
            where="--cluster",
            remedy="start Ray there, or check host and port: docs/how-to/cluster.md",
        ) from error


def open_cluster(workspace: Workspace, config: Config, address: str) -> OpenJudges:
    """Return the function that starts the daemon's judges on a cluster.

    Args:
        address: `auto`, or HOST:PORT of Ray's head.

    Raises:
        ConfigurationError: Ray is not installed.
    """
    from harness.cluster.cluster_judges import ClusterJudges
    from harness.cluster.connection import require_ray

    require_ray()
    return lambda post: ClusterJudges(workspace, config, address, post)


def choose_cluster(config: Config, address: str) -> DeviceChoice:
    """Return the target of a run on a cluster: the configuration's, or that of the first device.

    Args:
        address: `auto`, or HOST:PORT of Ray's head.

    Raises:
        ConfigurationError: no host has a usable device; the message has the reason of each host.
    """
    hosts = cluster_hosts(address)
    usable = [host for host in hosts if host.devices]
    if not usable:
        reasons = [f"{host.name}: {host.refused or 'no device'}" for host in hosts]
        raise ConfigurationError(
            f"no host of the Ray cluster at {address} has a device for a judge: {'; '.join(reasons)}",
            where="--cluster",
            remedy="start Ray on a GPU host, or with --resources '{\"cpu_judge\": 1}': docs/how-to/cluster.md",
        )
    gpus = [host.gpus[0] for host in usable if host.gpus and any("cuda" in device for device in host.devices)]
    target = config.target or (target_name(gpus[0]) if gpus else CPU)
    count = sum(len(host.devices) for host in usable)
    reason = f"{count_of(count, 'device')} of {len(usable)} of {count_of(len(hosts), 'host')} of the cluster"
    return DeviceChoice(("cuda",) if gpus else ("cpu",), target, reason, cluster=address)


def cluster_checks(address: str) -> Iterator[Check]:
    """Check a cluster for `harness doctor --cluster`."""
    try:
        hosts = cluster_hosts(address)
    except HarnessError as error:
        yield Check("cluster", "missing", error.message, error.remedy or "")
        return
    devices = sum(len(host.devices) for host in hosts)
    fix = "ray start on a host with GPUs, or with --resources: docs/how-to/cluster.md"
    yield Check(
        "cluster",
        "ok" if devices else "missing",
        f"{count_of(len(hosts), 'host')}, {count_of(devices, 'device')}",
        fix * (not devices),
    )
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        yield Check("cluster token", "missing", "RAY_AUTH_MODE is disabled", "export RAY_AUTH_MODE=token")
    for host in hosts:
        yield _host_check(host)


def _host_check(host: HostStatus) -> Check:
    if host.refused:
        return Check(f"host {host.name}", "missing", host.refused, f"fix it on {host.address}, or end its Ray node")
    devices = ", ".join(device.partition("/")[2] for device in host.devices) or "no device for a judge"
    skew = f"; its clock differs by {host.clock_skew_s:+.0f} s" if abs(host.clock_skew_s) > _NOTABLE_SKEW_S else ""
    nice = f"; its judges have niceness {host.niceness}" if host.devices and host.niceness > 0 else ""
    fix = "start Ray there with RAY_worker_niceness=0" if nice else ""
    return Check(f"host {host.name}", "note" if skew or nice else "ok", f"{host.address}: {devices}{skew}{nice}", fix)
