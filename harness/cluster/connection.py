"""The connection to a Ray cluster: join it, list its nodes, and be its only head."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from harness.cluster.messages import HeadFacts
from harness.errors import ConfigurationError

_NAMESPACE = "kernel-harness"
_SEAT = "head"
_SEAT_WAIT_S = 20.0
"""Ray frees the name of a killed head within this time."""
_CALL_S = 10.0
_POLL_S = 0.5


def require_ray() -> None:
    """Check that Ray is installed, without importing it.

    Raises:
        ConfigurationError: it is not.
    """
    if find_spec("ray") is None:
        remedy = "pip install 'kernel-harness[cluster]'"
        raise ConfigurationError("Ray is not installed, and --cluster needs it", where="--cluster", remedy=remedy)


@dataclass(frozen=True)
class RayNode:
    """A node that is alive."""

    id: str
    address: str
    resources: dict[str, float]


class HeadSeat:
    """An actor whose name only one head of a cluster can hold. It ends with the process that made it.

    Args:
        record: describes the head, as JSON.
    """

    def __init__(self, record: str) -> None:
        self._record = record

    def record(self) -> str:
        """Return the description of the head."""
        return self._record


def join(address: str) -> None:
    """Join a running cluster. Ray must run on this host.

    Args:
        address: `auto` for the cluster of this host, or `HOST:PORT`.

    Raises:
        ConfigurationError: the cluster cannot be used: another version of Ray, no token or a wrong one.
        ConnectionError: there is no such cluster now.
    """
    require_ray()
    import ray

    if "://" in address:
        raise ConfigurationError(
            f"the address {address} names a proxy", where="--cluster", remedy="--cluster auto, or HOST:PORT"
        )
    try:
        ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
    except (ray.exceptions.AuthenticationError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigurationError(
            f"the Ray cluster at {address} refuses this host: {reason}",
            where="--cluster",
            remedy="give both the same token and the same versions of Ray and Python: docs/how-to/cluster.md",
        ) from error


def alive_nodes() -> list[RayNode]:
    """Return the nodes that Ray counts as alive."""
    import ray

    nodes = (node for node in ray.nodes() if node["Alive"])
    return [RayNode(node["NodeID"], node["NodeManagerAddress"], dict(node["Resources"])) for node in nodes]


def on_node(node_id: str) -> dict[str, Any]:
    """Return the options that place a task or an actor on one node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False)}


def take_seat(workspace: str) -> object:
    """Be the cluster's only head until the returned object, or this process, is gone.

    Another head may hold the seat for some seconds: one that was killed loses it within them.

    Raises:
        ConfigurationError: another head uses the cluster; names its host, process and workspace.
    """
    import ray

    record = HeadFacts(host=socket.gethostname(), pid=os.getpid(), workspace=workspace)
    options = {"name": _SEAT, "num_cpus": 0, **on_node(ray.get_runtime_context().get_node_id())}
    until, holder = time.monotonic() + _SEAT_WAIT_S, "unknown"
    while True:
        try:
            seat = ray.remote(HeadSeat).options(**options).remote(record.model_dump_json())
            ray.get(seat.record.remote(), timeout=60)
        except ValueError:  # the name is taken
            holder = _holder() or holder
        else:
            return seat
        if time.monotonic() >= until:
            raise ConfigurationError(
                f"another head uses this cluster: {holder}",
                where="--cluster",
                remedy="end it there with `harness stop`; one head at a time uses a cluster",
            )
        time.sleep(_POLL_S)


def _holder() -> str | None:
    import ray

    try:
        answer = ray.get(ray.get_actor(_SEAT).record.remote(), timeout=_CALL_S)
        record = HeadFacts.model_validate_json(answer)
    except (ray.exceptions.RayError, ValueError):
        return None  # it ends now
    return f"process {record.pid} on {record.host}, workspace {record.workspace}"
