"""Messages of the judge to a runner: one JSON object with the name of its type. Standard library only.

`wire` has the binary messages: the request for a batch of calls, and all answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class SlotField:
    """One input or output of a slot."""

    name: str
    dtype: str
    """Attribute of torch, such as bfloat16."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the slot."""
    bytes: int
    scalar: str | None
    """int, bool or float for a Python scalar; None for a tensor."""
    updates: str | None = None
    """For an output: the input whose content it has before each call."""


@dataclass(frozen=True)
class Program:
    """A solution or reference, with paths as the process in the sandbox sees them."""

    language: str
    entry: str = ""
    """Name of the function."""
    source: str = ""
    """Python file."""
    artefact: str = ""
    """Shared object of a compiled solution."""
    artefacts: tuple[str, ...] = ()
    """Directories of a sealed solution, each with a cubin and the names of its kernels."""
    binding: str = ""
    """Binding of a shared object with host code of its own: `tvm_ffi` or `torch`."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of every call."""
    destination_passing: bool = True
    """The function receives its outputs; otherwise it returns them."""


@dataclass(frozen=True)
class HostMemory:
    """Sizes of the memory files of a CPU runner: inputs, which it may only read, and outputs."""

    input_bytes: int
    output_bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of a GPU runner: addresses to reserve for placements, and the file of the Python scalars."""

    window_bytes: int
    scalar_bytes: int


@dataclass(frozen=True)
class Load:
    """Map the memory and load a program; the answer is LOADED."""

    program: Program
    memory: HostMemory | DeviceMemory
    trusted: str | None = None
    """Cubin of the trusted kernels, for a runner that times calls by device events."""

    @property
    def reads_events(self) -> bool:
        """True if the runner times its calls by device events."""
        return self.trusted is not None


@dataclass(frozen=True)
class Warm:
    """Create the context on the device; the answer is READY."""


@dataclass(frozen=True)
class Prepare:
    """Prepare the calls of a workload; the answer is READY."""

    inputs: tuple[SlotField, ...]
    outputs: tuple[SlotField, ...]
    input_stride: int
    """Bytes of the inputs of a slot."""
    output_stride: int
    """Bytes of the outputs of a slot."""
    axes: tuple[int, ...]
    """Sizes of var and expr axes, in declaration order."""
    slots: int
    variant: str = ""
    """Variant of a baseline, such as eager; empty for a solution."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    """Of a sealed solution: `ResolvedPlan` as plain data."""
    placement_bytes: int = 0
    """On a GPU: bytes from one placement to the next."""


@dataclass(frozen=True)
class RecordCall:
    """Repeat the call at a placement, and write its launches to the file that comes with this; the answer is READY."""

    placement: int


@dataclass(frozen=True)
class MeasureColdAndWarm:
    """Time calls at a placement with a cold and with a warm L2; the answer READY has both times."""

    placement: int


@dataclass(frozen=True)
class ReleaseMemory:
    """Give cached device memory back, because another process needs it; the answer is READY."""


Message = Load | Warm | Prepare | RecordCall | MeasureColdAndWarm | ReleaseMemory
_BY_NAME: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Load, Warm, Prepare, RecordCall, MeasureColdAndWarm, ReleaseMemory)
}


def encode(message: Message) -> bytes:
    """Return a message as JSON."""
    fields = asdict(message)
    if isinstance(message, Load):
        fields["memory"]["on"] = type(message.memory).__name__
    return json.dumps({"type": type(message).__name__, **fields}).encode()


def decode(data: bytes) -> Message:
    """Return the message in a datagram of the judge.

    Raises:
        KeyError: there is no such message.
        TypeError: a field is missing or unknown.
    """
    fields = json.loads(data)
    kind = _BY_NAME[fields.pop("type")]
    if kind is Load:
        program, memory = fields["program"], fields["memory"]
        program["artefacts"] = tuple(program["artefacts"])
        on_host = memory.pop("on") == HostMemory.__name__
        sizes = HostMemory(**memory) if on_host else DeviceMemory(**memory)
        return Load(Program(**program), sizes, fields["trusted"])
    if kind is Prepare:
        for name in ("inputs", "outputs"):
            fields[name] = tuple(SlotField(**{**slot, "shape": tuple(slot["shape"])}) for slot in fields[name])
        fields["axes"] = tuple(fields["axes"])
    return kind(**fields)
