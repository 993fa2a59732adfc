"""`python -m harness.cluster.bridge --address A`: the process between the daemon and a Ray cluster.

Ray ends the process of a driver whose cluster is gone. That must not be the daemon, so the driver is this process: it
reads orders from stdin and writes events to stdout. The daemon restarts it. It ends at the end of stdin.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from pydantic import BaseModel

from harness.cluster.connection import RayNode, alive_nodes, join, on_node, take_seat
from harness.cluster.device_actor import DeviceActor
from harness.cluster.host_facts import devices_of, free_name, own_facts, read_facts, refusal
from harness.cluster.messages import BRIDGE_ORDERS, BridgeFailed, HostFacts, HostsChanged, RemoteJudgeEnded
from harness.errors import EXIT_HOST_FAULT, HarnessError
from harness.model.config import SandboxKind
from harness.model.process_status import HostStatus
from harness.workspace.processes import end_with_parent

LOOK_S = 1.0
"""Interval of the queries for Ray's nodes."""
_FACTS_S = 60.0
_RETRY_S = 30.0
"""A refused host is queried again after this time."""


@dataclass
class _Member:
    """A node that has joined."""

    status: HostStatus
    queried_at: float


class Bridge:
    """Hosts and their devices.

    Args:
        write: receives events, from several threads.
    """

    def __init__(self, sandbox: SandboxKind, write: Callable[[BaseModel], None]) -> None:
        self._sandbox, self._write = sandbox, write
        self._members: dict[str, _Member] = {}
        self._queried: set[str] = set()
        self._facts: queue.SimpleQueue[tuple[RayNode, HostFacts | str]] = queue.SimpleQueue()
        self._actors: dict[str, DeviceActor] = {}
        self._lock = threading.Lock()
        self._own = own_facts()

    def look(self) -> None:
        """Add hosts that have joined and remove those that have left."""
        nodes = {node.id: node for node in alive_nodes()}
        changed = [self._remove(node_id) for node_id in list(self._members) if node_id not in nodes]
        for node in nodes.values():
            member = self._members.get(node.id)
            refused = member is not None and member.status.refused is not None
            due = member is None or (refused and time.monotonic() - member.queried_at > _RETRY_S)
            if due and node.id not in self._queried:
                self._queried.add(node.id)
                threading.Thread(target=self._query, args=(node,), name=f"facts-{node.id[:6]}", daemon=True).start()
        while not self._facts.empty():
            changed.append(self._admit(*self._facts.get()))
        if any(changed):
            self._write(self.hosts())

    def knows_all(self) -> bool:
        """Return true if the facts of every node that is alive are known."""
        return {node.id for node in alive_nodes()} <= set(self._members)

    def hosts(self) -> HostsChanged:
        """Return all hosts."""
        return HostsChanged(hosts=tuple(member.status for member in self._members.values()))

    def obey(self, line: str) -> None:
        """Carry out an order of the daemon."""
        order = BRIDGE_ORDERS.validate_json(line)
        with self._lock:
            actor = self._actors.get(order.device)
        if actor is not None:
            actor.put(order)
        elif order.do == "start":
            self._write(RemoteJudgeEnded.by_host(order.device, order.number, "has left the cluster"))

    def _query(self, node: RayNode) -> None:
        """Query the facts of a node."""
        import ray

        try:
            pending = ray.remote(read_facts).options(num_cpus=0, max_retries=0, **on_node(node.id)).remote()
            answer: HostFacts | str = HostFacts.model_validate_json(ray.get(pending, timeout=_FACTS_S))
        except Exception as error:  # noqa: BLE001 - a host with any error is refused
            lines = [line for line in str(error).splitlines() if line.strip()]
            answer = f"its facts cannot be read: {type(error).__name__}: {(lines or ['no reason'])[-1][:200]}"
        self._facts.put((node, answer))

    def _admit(self, node: RayNode, facts: HostFacts | str) -> bool:
        """Add a node or refuse it; return true if its status has changed."""
        self._queried.discard(node.id)
        before = self._members.get(node.id)
        figures: dict[str, Any] = {}
        refused: str | None
        if isinstance(facts, str):
            host, refused = node.address, facts
        else:
            host, refused, skew_s = facts.host, refusal(facts, self._own), round(facts.clock_s - time.time(), 1)
            figures = {"gpus": facts.gpus, "niceness": facts.niceness, "clock_skew_s": skew_s}
        names = [member.status.name for member in self._members.values()]
        name = before.status.name if before is not None else free_name(host, names)
        local = {} if refused else {f"{name}/{device}": device for device in devices_of(node.resources)}
        status = HostStatus(
            name=name, node=node.id, address=node.address, devices=tuple(local), refused=refused, **figures
        )
        self._members[node.id] = _Member(status, time.monotonic())
        with self._lock:
            for device, local_device in local.items():
                self._actors[device] = DeviceActor(
                    device, local_device, name.partition("~")[0], node.id, self._sandbox, self._write
                )
        return before is None or before.status != status

    def _remove(self, node_id: str) -> bool:
        member = self._members.pop(node_id)
        for device in member.status.devices:
            with self._lock:
                actor = self._actors.pop(device)
            actor.close(f"was lost: {member.status.name} has left the cluster")
        return True


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="harness.cluster.bridge", description="Between a daemon and a Ray cluster.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--sandbox", choices=("bubblewrap", "none"), default="bubblewrap")
    parser.add_argument("--workspace", default="", help="Shown to another head that uses the cluster.")
    parser.add_argument("--list", action="store_true", help="Write the hosts, once, and end.")
    arguments = parser.parse_args()
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the daemon, which closes this stdin
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Ray prints to stdout, which carries the events
    write = _writer(lines)
    try:
        _serve(arguments, write)
    except HarnessError as error:
        write(BridgeFailed(message=error.message, fix=error.remedy, final=True))
        sys.exit(error.exit_code)
    except ConnectionError as error:
        message = (
            f"there is no Ray cluster at {arguments.address} that takes this host: {' '.join(str(error).split())[:300]}"
        )
        write(BridgeFailed(message=message, fix="start Ray there, with the same token: docs/how-to/cluster.md"))
        sys.exit(EXIT_HOST_FAULT)


def _serve(arguments: argparse.Namespace, write: Callable[[BaseModel], None]) -> None:
    join(arguments.address)
    bridge = Bridge(arguments.sandbox, write)
    if arguments.list:
        _list_once(bridge)
        write(bridge.hosts())
        return
    seat = take_seat(arguments.workspace)
    ended = threading.Event()
    threading.Thread(target=_read, args=(bridge, ended), name="orders", daemon=True).start()
    while not ended.wait(LOOK_S):
        bridge.look()
    del seat


def _list_once(bridge: Bridge) -> None:
    until = time.monotonic() + _FACTS_S
    bridge.look()
    while not bridge.knows_all() and time.monotonic() < until:
        time.sleep(0.05)
        bridge.look()


def _read(bridge: Bridge, ended: threading.Event) -> None:
    for line in sys.stdin:
        bridge.obey(line)
    ended.set()


def _writer(lines: IO[str]) -> Callable[[BaseModel], None]:
    lock = threading.Lock()

    def write(event: BaseModel) -> None:
        with lock:
            lines.write(event.model_dump_json() + "\n")

    return write


if __name__ == "__main__":
    main()
