"""The bridge's side of one device: it keeps the device's actor, ships content to it, and fetches its events.

Each device has its own threads, so that a host without answers delays no other host.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.cluster.connection import on_node
from harness.cluster.content import Parcel
from harness.cluster.host_facts import CPU_JUDGE
from harness.cluster.judge_host import FETCH_S, JudgeHost
from harness.cluster.messages import HOST_EVENTS, BridgeOrder, HostEvent, RemoteJudgeEnded, SendRequest, StartJudge
from harness.formats.bounded import load_json
from harness.model.config import SandboxKind

CHUNK_BYTES = 32 << 20
_START_S = 120.0
"""A new actor imports the harness, which is slow on a cold disk."""
_ANSWER_S = 60.0
_FETCH_MARGIN_S = 25.0
"""Added to the wait of a fetch. After it, a host without an answer counts as lost, even if Ray reports it alive."""


class HostRefusalError(Exception):
    """A host cannot store content; the message is the host's."""


class DeviceActor:
    """A device of a node.

    Args:
        local_device: its name on the host.
        node_id: Ray's id of the node.
        write: receives events, from several threads.
    """

    def __init__(
        self,
        device: str,
        local_device: str,
        host: str,
        node_id: str,
        sandbox: SandboxKind,
        write: Callable[[HostEvent], None],
    ) -> None:
        self._device, self._local_device, self._host, self._node_id = device, local_device, host, node_id
        self._sandbox, self._write = sandbox, write
        self._orders: queue.SimpleQueue[BridgeOrder | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open: int | None = None
        """The process whose end was not reported yet."""
        self._actor: Any = None
        threading.Thread(target=self._obey, name=f"orders-{device}", daemon=True).start()

    def put(self, order: BridgeOrder) -> None:
        """Carry out an order, after the earlier ones."""
        if isinstance(order, StartJudge):
            with self._lock:
                self._open = order.number
        self._orders.put(order)

    def close(self, reason: str) -> None:
        """Report the end of the present process, and end the actor."""
        import ray

        with self._lock:
            number, actor, self._actor = self._open, self._actor, None
        if number is not None:
            self._lost(number, reason)
        self._orders.put(None)
        if actor is not None:
            ray.kill(actor, no_restart=True)

    def _obey(self) -> None:
        while (order := self._orders.get()) is not None:
            if order.number != self._open:
                continue
            try:
                self._carry_out(order)
            except Exception as error:  # noqa: BLE001 - Ray raises errors of many kinds; each counts as a loss of the host
                self._failed(order.number, error)

    def _carry_out(self, order: BridgeOrder) -> None:
        import ray

        if isinstance(order, StartJudge):
            actor = self._present_actor()
            ray.get(actor.start.remote(order.number, self._sandbox), timeout=_START_S)
            listener = threading.Thread(target=self._listen, args=(actor, order.number), daemon=True)
            listener.name = f"events-{self._device}"
            listener.start()
        elif isinstance(order, SendRequest):
            if order.parcel is not None:
                self._ship(order.parcel, order.line)
            ray.get(self._actor.send.remote(order.model_dump_json()), timeout=_ANSWER_S)
        else:
            ray.get(self._actor.end.remote(order.number, order.kill), timeout=_ANSWER_S)

    def _present_actor(self) -> Any:  # noqa: ANN401 - Ray's handles have no type
        import ray

        if self._actor is None:
            share = {"resources": {CPU_JUDGE: 1}} if self._local_device == "cpu" else {"num_gpus": 1}
            placed = ray.remote(JudgeHost).options(
                num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=16, **share, **on_node(self._node_id)
            )
            # Ray shows the actor its one GPU, which is the first there.
            local_device = "cpu" if self._local_device == "cpu" else "cuda:0"
            self._actor = placed.remote(self._device, local_device, self._host)
        return self._actor

    def _ship(self, parcel: Parcel, line: str) -> None:
        """Send the blobs that the host lacks, in chunks."""
        import ray

        missing = ray.get(self._actor.missing.remote(parcel.model_dump_json()), timeout=_ANSWER_S)
        places = blob_places(parcel, line)
        for sha256 in missing:
            file, size = places[sha256]
            with file.open("rb") as stream:
                for offset in range(0, max(size, 1), CHUNK_BYTES):
                    data, last = stream.read(CHUNK_BYTES), offset + CHUNK_BYTES >= size
                    refused = ray.get(self._actor.store.remote(sha256, offset, data, last), timeout=_ANSWER_S)
                    if refused:
                        raise HostRefusalError(refused)

    def _listen(self, actor: Any, number: int) -> None:  # noqa: ANN401 - Ray's handles have no type
        """Pass events on until the process has ended."""
        import ray

        count = 0
        while self._open == number:
            try:
                lines = ray.get(actor.fetch.remote(number, count), timeout=FETCH_S + _FETCH_MARGIN_S)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(number, error)
                return
            count += len(lines)
            for line in lines:
                self._pass_on(HOST_EVENTS.validate_json(line))

    def _pass_on(self, event: HostEvent) -> None:
        with self._lock:
            if event.number != self._open:
                return
            if isinstance(event, RemoteJudgeEnded):
                self._open = None
        self._write(event)

    def _failed(self, number: int, error: Exception) -> None:
        """Report the loss of a process. An actor that does not answer is ended; the next start makes another."""
        import ray

        actor = self._actor
        if isinstance(error, ray.exceptions.GetTimeoutError) and actor is not None:
            ray.kill(actor, no_restart=True)
        if isinstance(error, ray.exceptions.GetTimeoutError | ray.exceptions.ActorDiedError):
            self._actor = None
        self._lost(number, _reason(self._host, error))

    def _lost(self, number: int, reason: str) -> None:
        self._pass_on(RemoteJudgeEnded.by_host(self._device, number, reason))


def blob_places(parcel: Parcel, line: str) -> dict[str, tuple[Path, int]]:
    """Return the head's file of each blob of a request's content: sha256 -> file and its size in bytes.

    Args:
        parcel: the request's content.
        line: the request, with directories of the head.
    """
    request = load_json(line, where="a request")
    places = {}
    for name, manifest in parcel.manifests.items():
        for file in manifest.files:
            if file.link is None:
                places[file.sha256] = Path(request[name]) / file.path, file.size
    return places


def _reason(host: str, error: Exception) -> str:
    """Return the reason of a loss in one line: Ray's own messages have many lines."""
    from ray.exceptions import GetTimeoutError, RayActorError

    if isinstance(error, HostRefusalError):
        return f"was lost because {host} cannot store its request: {error}"
    if isinstance(error, GetTimeoutError):
        return f"was lost: {host} does not answer"
    if isinstance(error, RayActorError):
        return f"was lost: its process on {host} ended, or cannot be reached ({type(error).__name__})"
    last_line = (str(error).strip().splitlines() or ["no reason"])[-1][:200]
    return f"was lost on {host}: {type(error).__name__}: {last_line}"
