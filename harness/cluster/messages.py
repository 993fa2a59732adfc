"""Messages between the daemon and its bridge to the cluster, and facts of hosts: one JSON object each.

The bridge and the judge hosts exchange the same objects as text, so that no candidate passes through Python's own
serialisation.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter

from harness.cluster.content import Parcel
from harness.errors import EXIT_HOST_FAULT
from harness.model.base_models import StrictModel
from harness.model.process_status import HostStatus


class _OfProcess(StrictModel):
    device: str
    number: int
    """The client's number of a judge process; all orders to it and its events name it."""


class StartJudge(_OfProcess):
    """To the bridge: start the judge process of a device."""

    do: Literal["start"] = "start"


class SendRequest(_OfProcess):
    """To the bridge, and with `parcel` to the judge's host: pass a request to a judge process."""

    do: Literal["send"] = "send"
    line: str
    """The request, with directories of the head."""
    parcel: Parcel | None = None
    """Content of these directories."""


class EndJudge(_OfProcess):
    """To the bridge: end a judge process, immediately if `kill`."""

    do: Literal["end"] = "end"
    kill: bool = False


class HostsChanged(StrictModel):
    """From the bridge: all present hosts."""

    event: Literal["hosts"] = "hosts"
    hosts: tuple[HostStatus, ...]


class JudgeWrote(_OfProcess):
    """From a judge's host, through the bridge: a line of a judge process."""

    event: Literal["wrote"] = "wrote"
    line: str


class RemoteJudgeEnded(_OfProcess):
    """From a judge's host, or from the bridge about it: a judge process has ended."""

    event: Literal["ended"] = "ended"
    reason: str
    wrong_protocol: bool = False
    exit_code: int = 0
    log: str = ""
    """The last lines of the process on stderr."""

    @classmethod
    def by_host(cls, device: str, number: int, reason: str) -> Self:
        """Return the end of a process by a fault of its host or of the cluster, which its candidate did not cause.

        Args:
            device: the device's name in the cluster.
            reason: continues a sentence about the judge.
        """
        return cls(device=device, number=number, reason=reason, exit_code=EXIT_HOST_FAULT)


class BridgeFailed(StrictModel):
    """From the bridge: the reason of its end."""

    event: Literal["failed"] = "failed"
    message: str
    fix: str | None = None
    final: bool = False
    """Another attempt does not help."""


class HeadFacts(StrictModel):
    """The head that uses a cluster, for the message that a second head prints."""

    host: str
    pid: int
    workspace: str


class HostFacts(StrictModel):
    """Facts of a judge host, collected on that host."""

    host: str
    python: str
    """Major and minor version."""
    harness: str
    judge: str
    """Judge version: sha256 over the sources that a measurement depends on."""
    clock_s: float = 0.0
    """Seconds since 1970."""
    gpus: tuple[str, ...] = ()
    niceness: int = 0
    """Of Ray's processes, and so of judges: 15 by default."""
    authenticated: bool = False
    """True if the Ray node requires a token."""


BridgeOrder = StartJudge | SendRequest | EndJudge
HostEvent = JudgeWrote | RemoteJudgeEnded
BridgeEvent = HostsChanged | HostEvent | BridgeFailed

BRIDGE_ORDERS: TypeAdapter[BridgeOrder] = TypeAdapter(Annotated[BridgeOrder, Field(discriminator="do")])
HOST_EVENTS: TypeAdapter[HostEvent] = TypeAdapter(Annotated[HostEvent, Field(discriminator="event")])
BRIDGE_EVENTS: TypeAdapter[BridgeEvent] = TypeAdapter(Annotated[BridgeEvent, Field(discriminator="event")])
