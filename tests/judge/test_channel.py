"""The connection between judge and runner: valid and malformed messages."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.channel import Channel, ChannelClosed, ChannelTimeout, MalformedRecord
from harness.runner import wire
from harness.runner.messages import Warm


@pytest.fixture
def line() -> Iterator[tuple[Channel, socket.socket]]:
    channel = Channel()
    runner_socket = socket.socket(fileno=os.dup(channel.runner_end))
    channel.close_runner_end()
    yield channel, runner_socket
    runner_socket.close()
    channel.close()


def _soon() -> float:
    return time.monotonic() + 120.0


@given(st.integers(0, 2**63), st.lists(st.integers(0, 2**32 - 1), max_size=wire.MAX_CALLS))
def test_a_call_has_the_slots_in_order(call: int, slots: list[int]) -> None:
    assert wire.unpack_call(wire.pack_call(call, slots)) == (call, tuple(slots))


@given(st.binary(max_size=64))
def test_bytes_that_are_no_call_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"too short|no call"):
        wire.unpack_call(data)


def test_a_record_is_received(line: tuple[Channel, socket.socket]) -> None:
    channel, runner_socket = line
    runner_socket.send(wire.pack_record(wire.Code.DONE, call=7, claimed_ns=-5))
    record = channel.receive(_soon())
    assert (record.code, record.call, record.claimed_ns) == (wire.Code.DONE, 7, -5)
    channel.check_nothing_unread()


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"x" * wire.RECORD_BYTES,
        wire.pack_record(wire.Code.DONE)[:-1],
        wire.pack_record(wire.Code.DONE) + b"x",
        struct.pack("<4sHHQq", b"KHR1", 99, 0, 0, 0),
    ],
)
def test_bytes_that_are_no_record_are_malformed(line: tuple[Channel, socket.socket], data: bytes) -> None:
    channel, runner_socket = line
    runner_socket.send(data)
    with pytest.raises(MalformedRecord):
        channel.receive(_soon())


def test_an_answer_without_a_request_is_malformed(line: tuple[Channel, socket.socket]) -> None:
    channel, runner_socket = line
    runner_socket.send(wire.pack_record(wire.Code.DONE))
    with pytest.raises(MalformedRecord, match="without a request"):
        channel.check_nothing_unread()
    runner_socket.send(wire.pack_record(wire.Code.READY))
    with pytest.raises(MalformedRecord, match="READY instead of LOADED"):
        channel.expect(wire.Code.LOADED, _soon())


@pytest.mark.parametrize("spin", [False, True])
def test_timeouts_and_closed_connections_differ(line: tuple[Channel, socket.socket], *, spin: bool) -> None:
    channel, runner_socket = line
    with pytest.raises(ChannelTimeout):
        channel.receive(time.monotonic() + 0.05, spin=spin)
    runner_socket.close()
    with pytest.raises(ChannelClosed):
        channel.receive(_soon(), spin=spin)
    with pytest.raises(ChannelClosed):
        channel.check_nothing_unread()
    with pytest.raises(ChannelClosed):
        channel.send(Warm())
    with pytest.raises(ChannelClosed):
        channel.send_call(1, [0])
