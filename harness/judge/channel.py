"""The judge's end of the channel to a runner: JSON and file descriptors to it, small fixed-size records from it.

One datagram is one message (SOCK_SEQPACKET). Records are untrusted: one of the wrong size, kind or id is a failure of
the candidate. No part of a record is evaluated, unpickled or used as a time.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

from harness.runner import wire
from harness.runner.messages import Message, encode


class ChannelClosed(Exception):  # noqa: N818 - an outcome of judging, not an error of the judge
    """The runner's end of the channel is closed."""


class ChannelTimeout(Exception):  # noqa: N818
    """The runner did not answer before the deadline."""


class MalformedRecord(Exception):  # noqa: N818
    """The runner's process sent data that the runner program never sends; the message describes the data."""


@dataclass(frozen=True)
class RunnerRecord:
    """A record from a runner. `claimed_ns` is the runner's own reading of the clock; no result is computed from it."""

    code: wire.Code
    detail: int
    call: int
    claimed_ns: int


class Channel:
    """A socket pair between the judge and one runner."""

    def __init__(self) -> None:
        self._socket, self._runner_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, self._runner_socket):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN | select.POLLHUP)

    @property
    def runner_end(self) -> int:
        """File descriptor that the runner inherits."""
        return self._runner_socket.fileno()

    def close_runner_end(self) -> None:
        """Close the judge's copy of the runner's end, so that reads return end-of-file once the runner has ended."""
        self._runner_socket.close()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message and file descriptors.

        Args:
            message: the message.
            descriptors: open files that the runner receives duplicates of.

        Raises:
            ChannelClosed: the runner has closed its end.
        """
        try:
            socket.send_fds(self._socket, [encode(message)], list(descriptors))
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def send_call(self, call: int, slots: Sequence[int]) -> None:
        """Request one call on each slot, in order. A stopped runner reads the request when it continues.

        Args:
            call: number of the request, which the runner's record repeats.
            slots: slot numbers of the workload's sets.

        Raises:
            ChannelClosed: the runner has closed its end.
        """
        try:
            self._socket.send(wire.pack_call(call, slots))
        except (BrokenPipeError, ConnectionResetError):
            raise ChannelClosed from None

    def has_message(self) -> bool:
        """Return true if `receive` would return or raise without waiting."""
        return bool(self._poll.poll(0))

    def receive(self, deadline: float, *, spin: bool = False) -> RunnerRecord:
        """Return the next record.

        Args:
            deadline: value of time.monotonic() until which to wait.
            spin: poll in a busy loop, which ends sooner after the record arrives than a blocking wait.

        Raises:
            ChannelClosed: the runner has closed its end.
            ChannelTimeout: no record arrived before the deadline.
            MalformedRecord: the datagram is not a record.
        """
        while True:
            try:
                data = self._socket.recv(wire.RECORD_BYTES + 1, socket.MSG_DONTWAIT)
                break
            except BlockingIOError:
                remaining_s = deadline - time.monotonic()
                if remaining_s <= 0:
                    raise ChannelTimeout from None
                if not spin:
                    self._poll.poll(remaining_s * 1e3)
            except ConnectionResetError:
                raise ChannelClosed from None
        return parse_record(data)

    def expect(self, code: wire.Code, deadline: float) -> RunnerRecord:
        """Return the next record, which must have one code or report a failure.

        Args:
            code: expected code.
            deadline: value of time.monotonic() until which to wait.

        Raises:
            ChannelClosed: the runner has closed its end.
            ChannelTimeout: no record arrived before the deadline.
            MalformedRecord: the datagram is not a record, or has another code.
        """
        record = self.receive(deadline)
        if record.code is not code and record.code not in wire.FAILURES:
            raise MalformedRecord(f"answered {record.code.name} instead of {code.name}")
        return record

    @property
    def judge_end(self) -> int:
        """File descriptor of the judge's end, for `Native.exchange`."""
        return self._socket.fileno()

    def check_nothing_unread(self) -> None:
        """Check that no record waits to be read. Called before a call is requested.

        Raises:
            MalformedRecord: a record waits, which is an answer without a request.
            ChannelClosed: the runner has closed its end.
        """
        try:
            self.receive(0.0)
        except ChannelTimeout:
            return
        raise MalformedRecord("sent an answer without a request")

    def close(self) -> None:
        """Close both descriptors."""
        self._socket.close()
        self._runner_socket.close()


def parse_record(data: bytes) -> RunnerRecord:
    """Return the record in a datagram.

    Raises:
        ChannelClosed: the datagram is empty, which is end-of-file.
        MalformedRecord: the datagram is not a record.
    """
    if not data:
        raise ChannelClosed
    try:
        code, detail, call, claimed_ns = wire.unpack_record(data)
        return RunnerRecord(wire.Code(code), detail, call, claimed_ns)
    except ValueError:
        raise MalformedRecord(f"sent {len(data)} bytes that are not a record") from None
