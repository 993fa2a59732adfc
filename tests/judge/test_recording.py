"""Records of launches: their format, and the plans that follow from them."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from harness.judge.input_data.layout import Field, Layout
from harness.judge.recording import NotRecorded, Recorded, parse
from harness.model.launches import Pointer, ResolvedFill, ResolvedLaunch, Value

LAYOUT = Layout(
    (Field("x", "float32", (64,), 0, 256, None), Field("factor", "float64", (), 256, 8, "float")),
    (Field("y", "float32", (64,), 0, 256, None),),
    512,
    256,
    (64,),
)
LAUNCH: dict[str, Any] = {
    "kind": "launch", "cubin": 0, "symbol": "scale", "grid": [8, 1, 1], "block": [128, 1, 1], "shared_bytes": 0,
    "cluster": None, "cooperative": False,
    "args": [
        {"kind": "pointer", "buffer": "input:x", "offset": 0},
        {"kind": "pointer", "buffer": "workspace:w0", "offset": 16},
        {"kind": "value", "format": "f", "value": 1.5},
    ],
}  # fmt: skip
FILL: dict[str, Any] = {"kind": "fill", "buffer": "workspace:w0", "offset": 0, "bytes": 64}


CUBIN = b"\x7fELF" + bytes(60)
"""An ELF file without sections."""


def record(*steps: dict[str, Any], cubins: tuple[bytes, ...] = (CUBIN,), **changes: Any) -> memoryview:
    fields = {"steps": steps, "workspaces": {"w0": 64}, "cubins": [len(cubin) for cubin in cubins], **changes}
    header = json.dumps(fields).encode()
    return memoryview(struct.pack("<q", len(header)) + header + b"".join(cubins) + bytes(4096))


def test_a_record_becomes_a_plan() -> None:
    call = parse(record(FILL, LAUNCH), LAYOUT)
    arguments = (Pointer("input:x", 0), Pointer("workspace:w0", 16), Value("f", 1.5))
    launch = ResolvedLaunch("0:scale", (8, 1, 1), (128, 1, 1), 0, None, cooperative=False, args=arguments)
    assert call.plan.steps == (ResolvedFill("workspace:w0", 0, 64), launch)
    assert call.plan.workspaces == {"w0": (64, "none")}
    assert call.cubins == (CUBIN,)


def test_a_record_with_an_error_has_its_reason() -> None:
    with pytest.raises(NotRecorded, match=r"^the call uses the torch operator aten::mm$"):
        parse(record(reason="the call uses the torch operator\naten::mm"), LAYOUT)


@pytest.mark.parametrize(
    ("data", "reason_part"),
    [
        (memoryview(bytes(4096)), "malformed: : Invalid JSON"),
        (memoryview(struct.pack("<q", -5) + bytes(4096)), "malformed: : Invalid JSON"),
        (memoryview(struct.pack("<q", 1 << 62) + bytes(4096)), "malformed: : Invalid JSON"),
        (record({**LAUNCH, "command": "sh"}), "malformed: steps.0.launch.command: Extra inputs"),
        (record({**LAUNCH, "symbol": "a b"}), "malformed: steps.0.launch.symbol"),
        (record({**LAUNCH, "cubin": 1}), "a kernel that it does not contain"),
        (record({**LAUNCH, "cubin": -1}), "malformed: steps.0.launch.cubin"),
        (record({**LAUNCH, "grid": [8, 1 << 20, 1]}), "larger than the hardware allows"),
        (record({**LAUNCH, "grid": [0, 1, 1]}), "larger than the hardware allows"),
        (record({**LAUNCH, "block": [1024, 2, 1]}), "larger than the hardware allows"),
        (record({**LAUNCH, "cluster": [32, 1, 1]}), "larger than the hardware allows"),
        (
            record({**LAUNCH, "args": [{"kind": "pointer", "buffer": "input:z", "offset": 0}]}),
            "outside the call's buffers",
        ),
        (
            record({**LAUNCH, "args": [{"kind": "pointer", "buffer": "input:factor", "offset": 0}]}),
            "outside the call's",
        ),
        (record({**LAUNCH, "args": [{"kind": "pointer", "buffer": "output:y", "offset": 257}]}), "outside the call's"),
        (record({**FILL, "bytes": 68}), "fills memory outside its buffers"),
        (record({**FILL, "buffer": "workspace:w9"}), "fills memory outside its buffers"),
        (record({**FILL, "offset": 2}), "malformed: steps.0.fill.offset"),
        (record(LAUNCH, workspaces={"w0": 1 << 40}), "malformed: workspaces.w0"),
        (record(LAUNCH, cubins=()), "a kernel that it does not contain"),
    ],
)
def test_a_malformed_record_is_refused_with_a_reason(data: memoryview, reason_part: str) -> None:
    with pytest.raises(NotRecorded) as refused:
        parse(data, LAYOUT)
    assert reason_part in str(refused.value)


def test_a_record_with_too_large_sizes_is_refused() -> None:
    header = json.dumps({"steps": [LAUNCH], "workspaces": {"w0": 64}, "cubins": [5000]}).encode()
    with pytest.raises(NotRecorded, match="asks for too much memory"):
        parse(memoryview(struct.pack("<q", len(header)) + header + bytes(4096)), LAYOUT)


def test_kernels_are_named_by_the_hash_of_their_content() -> None:
    recorded = Recorded((b"cubin",), {}, {})
    assert recorded.digests == ("7c9b185f35cce03019b3c7cebdef327545fd0cfdeb1acdf7db7fd7d528c74538",)
