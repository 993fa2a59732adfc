"""The judge's end of the line to a runner: JSON and descriptors one way, small fixed records the other.

One datagram is one message (SOCK_SEQPACKET). What comes back is untrusted: a record of the wrong size, kind or id is
a failure of the candidate, and nothing in it is ever evaluated, unpickled or believed as a time.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.runner import wire


class ChannelClosed(Exception):  # noqa: N818 - an outcome of judging, not an error of ours
    """The runner is gone."""


class ChannelTimeout(Exception):  # noqa: N818
    """The runner has not answered in time."""


class MalformedRecord(Exception):  # noqa: N818
    """The runner's process sent what its own program never sends; the message says what."""


@dataclass(frozen=True)
class RunnerRecord:
    """A record from a runner. `claimed_ns` is its own reading of the clock: recorded, never used."""

    code: wire.Code
    detail: int
    call: int
    claimed_ns: int


class Channel:
    """One line to one runner."""

    def __init__(self) -> None:
        self._socket, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, self._other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLHUP)

    @property
    def runner_end(self) -> int:
        """The descriptor the runner inherits."""
        return self._other.fileno()

    def started(self) -> None:
        """Close the judge's copy of the runner's end, so that its death is seen."""
        self._other.close()

    def send(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a JSON message, with descriptors.

        Raises:
            ChannelClosed: the runner is gone.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def send_call(self, call: int, slots: Sequence[int], descriptors: Sequence[int] = ()) -> None:
        """Ask for one call on each of `slots`, in order. Safe while the runner is stopped: it reads it later."""
        try:
            if descriptors:
                socket.send_fds(self._socket, [wire.pack_call(call, slots)], list(descriptors))
            else:
                self._socket.send(wire.pack_call(call, slots))
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def has_message(self) -> bool:
        """Return true if `receive` would not wait."""
        return bool(self._poll.poll(0))

    def receive(self, deadline: float, *, spin: bool = False) -> RunnerRecord:
        """The next record, by `deadline` (time.monotonic). `spin` keeps the processor busy for the sake of the clock.

        Raises:
            ChannelClosed, ChannelTimeout, MalformedRecord.
        """
        while True:
            try:
                data = self._socket.recv(wire.RECORD_BYTES + 1, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChannelTimeout from None
                if not spin:
                    self._poll.poll(left * 1e3)
            except ConnectionResetError:
                raise ChannelClosed from None
        return parse_record(data)

    def expect(self, code: wire.Code, deadline: float) -> RunnerRecord:
        """Like `receive`, but anything but `code` or a failure is malformed."""
        record = self.receive(deadline)
        if record.code not in (code, wire.Code.FAILED, wire.Code.SHAPE, wire.Code.DTYPE):
            raise MalformedRecord(f"answered {record.code.name} where {code.name} was due")
        return record

    @property
    def line(self) -> int:
        """The judge's descriptor, for the native exchange."""
        return self._socket.fileno()

    def must_be_silent(self) -> None:
        """Nothing may lie unread when a call is about to be made.

        Raises:
            MalformedRecord: something does: an answer that nobody asked for.
            ChannelClosed: the runner is gone.
        """
        try:
            data = self._socket.recv(wire.RECORD_BYTES + 1, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            raise ChannelClosed from None
        parse_record(data)
        raise MalformedRecord("sent an answer that nobody asked for")

    def close(self) -> None:
        """Give back the descriptors."""
        self._socket.close()
        self._other.close()


def parse_record(data: bytes) -> RunnerRecord:
    """One datagram as a record.

    Raises:
        ChannelClosed: it is empty: the end of the line.
        MalformedRecord: it is no record.
    """
    if not data:
        raise ChannelClosed
    try:
        code, detail, call, claimed = wire.unpack_record(data)
        return RunnerRecord(wire.Code(code), detail, call, claimed)
    except (ValueError, wire.WireError):
        raise MalformedRecord(f"sent {len(data)} bytes that are no record") from None
