"""Messages of the judge to a runner: each is the same after a datagram, and unknown ones are refused."""

from __future__ import annotations

import json

import pytest

from harness.runner.messages import (
    DeviceMemory,
    HostMemory,
    Load,
    MeasureColdAndWarm,
    Message,
    Prepare,
    Program,
    RecordCall,
    ReleaseMemory,
    SlotField,
    Warm,
    decode,
    encode,
)

PROGRAM = Program("triton", "run", source="/stage/solution/kernel.py", params={"BLOCK": 128}, destination_passing=False)
FIELD = SlotField("x", "bfloat16", (3, 5), 64, 30, None, updates="cache")


@pytest.mark.parametrize(
    "message",
    [
        Load(PROGRAM, HostMemory(4096, 8192)),
        Load(
            Program("cuda", artefacts=("/stage/0", "/stage/1")), DeviceMemory(1 << 35, 1 << 20), "/stage/trusted.cubin"
        ),
        Prepare((FIELD,), (FIELD, FIELD), 4096, 8192, (3, 5), 7, "compile", {"steps": [{"kind": "launch"}]}, 2 << 20),
        Prepare((), (), 0, 0, (), 1),
        Warm(),
        RecordCall(3),
        MeasureColdAndWarm(2),
        ReleaseMemory(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_is_the_same_after_a_datagram(message: Message) -> None:
    assert encode(message)[:1] == b"{", "the first byte distinguishes it from a request for calls"
    assert decode(encode(message)) == message


def test_only_a_runner_with_the_trusted_kernels_reads_events() -> None:
    assert not Load(PROGRAM, HostMemory(1, 1)).reads_events
    assert Load(PROGRAM, DeviceMemory(1, 1), "/stage/trusted.cubin").reads_events


def test_an_unknown_message_and_an_unknown_field_are_refused() -> None:
    with pytest.raises(KeyError):
        decode(json.dumps({"type": "Unload"}).encode())
    with pytest.raises(TypeError):
        decode(json.dumps({"type": "RecordCall", "placement": 1, "slot": 2}).encode())
