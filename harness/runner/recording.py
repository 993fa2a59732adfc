"""Record the launches of one call of a Triton solution, so that the trusted launcher can make the same launches.

This code runs in the candidate's process, so that no record is trusted. The judge checks its form, replays it on new
inputs with poisoned workspaces, and compares the outputs with those of the reference.

A record is an 8-byte little-endian length, JSON of this length (`harness.judge.recording.LaunchRecord`), and the
cubins.

Source: Triton 3.6, `triton/compiler/compiler.py` (`CompiledKernel.run`: arguments of a launch) and
`triton/backends/nvidia/driver.py` (types of a kernel's parameters, the two scratch pointers after them).
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .cuda_workload import CudaWorkload
from .pytorch import SplitCall

LARGEST = 64 << 20
"""Bytes of the largest record."""
_WARP = 32
_FORMATS = {
    "i1": "b", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u1": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
_SIXTEEN_BIT_TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""Float types that are passed to a kernel as 16 bits."""
_ALLOCATING = frozenset(
    {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}
)
_ZEROING = frozenset({"aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::zero_"})


class UnrecordableCallError(Exception):
    """A call does something that a replay of its launches cannot do; the message names it.

    The solution is then timed without a replay.
    """


@dataclass(frozen=True)
class _TensorMemory:
    """Device memory of an input or output of the call."""

    buffer: str
    address: int
    bytes: int


class LaunchRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the launches and operators of a call inside `recording`.

    Args:
        arguments: memory of the call's inputs and outputs.
    """

    def __init__(self, arguments: Sequence[_TensorMemory]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._arguments = arguments
        self._tensors: list[torch.Tensor] = []  # keeps their memory allocated: a reused address would be two buffers
        self._spaces: dict[int, tuple[str, int]] = {}
        self._steps: list[dict[str, Any]] = []
        self._cubins: list[bytes] = []
        self._reason: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        """Call an operator and record it."""
        result = func(*args, **(kwargs or {}))
        on_device = [
            value
            for value in tree_leaves((args, kwargs, result))
            if isinstance(value, torch.Tensor) and value.device.type == "cuda"
        ]
        if not on_device:
            return result
        self._tensors += on_device
        name = func._schema.name  # noqa: SLF001 - torch has no public name of it
        if name in _ZEROING:
            self._zero(result)
        elif name not in _ALLOCATING and not func.is_view:
            self._refuse(f"the call uses the torch operator {name}")
        return result

    def _refuse(self, reason: str) -> None:
        self._reason = self._reason or reason

    def _zero(self, tensor: torch.Tensor) -> None:
        if not tensor.is_contiguous():
            self._refuse("the call zeroes a tensor that is not contiguous")
        elif tensor.numel():
            self._steps.append({"kind": "fill", **self._place(tensor), "bytes": tensor.numel() * tensor.itemsize})

    def _place(self, tensor: torch.Tensor) -> dict[str, Any]:
        """Return the buffer that contains a tensor, and the tensor's offset in it."""
        self._tensors.append(tensor)
        address = tensor.data_ptr()
        for memory in self._arguments:
            if memory.address <= address < memory.address + memory.bytes:
                return {"buffer": memory.buffer, "offset": address - memory.address}
        storage = tensor.untyped_storage()
        name, _ = self._spaces.setdefault(storage.data_ptr(), (f"w{len(self._spaces)}", storage.nbytes()))
        return {"buffer": f"workspace:{name}", "offset": address - storage.data_ptr()}

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Record every launch of a Triton kernel and every operator inside this context."""
        from triton.compiler import CompiledKernel  # noqa: PLC0415 - only where there is a GPU

        original_run = CompiledKernel.run

        def run(kernel: Any) -> Callable[..., Any]:  # noqa: ANN401 - Triton has no types
            launch = original_run.fget(kernel)

            def recorded_launch(x: int, y: int, z: int, stream: int, function: int, *arguments: Any) -> None:  # noqa: ANN401
                self._launch(kernel, (x, y, z), arguments[_BEFORE_VALUES:])
                launch(x, y, z, stream, function, *arguments)

            return recorded_launch

        CompiledKernel.run = property(run)
        try:
            with self:
                yield
        finally:
            CompiledKernel.run = original_run

    def _launch(self, kernel: Any, grid: tuple[int, int, int], values: Sequence[Any]) -> None:  # noqa: ANN401
        try:
            self._steps.append(self._described(kernel, grid, values))
        except UnrecordableCallError as error:
            self._refuse(str(error))

    def _described(self, kernel: Any, grid: tuple[int, int, int], values: Sequence[Any]) -> dict[str, Any]:  # noqa: ANN401
        facts = kernel.metadata
        if getattr(facts, "launch_pdl", False):
            raise UnrecordableCallError("a kernel uses programmatic dependent launch")
        if getattr(facts, "global_scratch_size", 0) or getattr(facts, "profile_scratch_size", 0):
            raise UnrecordableCallError("a kernel needs scratch memory that Triton allocates")
        types = list(kernel.src.signature.values())
        if len(types) != len(values):
            raise UnrecordableCallError("a launch has arguments that its signature does not have")
        arguments = [self._argument(kind, value) for kind, value in zip(types, values, strict=True)]
        scratch = {"kind": "value", "format": "Q", "value": 0}
        clusters = facts.num_ctas
        return {
            "kind": "launch",
            "cubin": self._cubin(kernel.asm["cubin"]),
            "symbol": kernel.name,
            "grid": [int(grid[0]) * clusters, int(grid[1]), int(grid[2])],
            "block": [_WARP * facts.num_warps, 1, 1],
            "shared_bytes": facts.shared,
            "cluster": [clusters, 1, 1] if clusters > 1 else None,
            "cooperative": bool(getattr(facts, "launch_cooperative_grid", False)),
            "args": [*(argument for argument in arguments if argument is not None), scratch, scratch],
        }

    def _cubin(self, cubin: bytes) -> int:
        if cubin not in self._cubins:
            self._cubins.append(cubin)
        return self._cubins.index(cubin)

    def _argument(self, kind: Any, value: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a Python argument
        """Return an argument of a kernel, or None for a compile-time constant."""
        if kind == "constexpr":
            return None
        if isinstance(kind, str) and kind.startswith("*"):
            if isinstance(value, torch.Tensor):
                return {"kind": "pointer", **self._place(value)}
            raise UnrecordableCallError(f"a pointer is passed as {type(value).__name__}, not as a tensor")
        if kind in _SIXTEEN_BIT_TYPES:
            bits = torch.tensor(float(value), dtype=_SIXTEEN_BIT_TYPES[kind]).view(torch.int16).item()
            return {"kind": "value", "format": "h", "value": bits}
        if kind in _FORMATS:
            number = float(value) if _FORMATS[kind] in "fd" else int(value)
            return {"kind": "value", "format": _FORMATS[kind], "value": number}
        raise UnrecordableCallError(f"an argument of type {kind} cannot be replayed")

    def returned(self, value: Any, workload: CudaWorkload) -> None:  # noqa: ANN401 - a Python value
        """Replace returned tensors by the outputs in all recorded launches.

        Args:
            value: result of the call: a tensor, a sequence, or a mapping by name.
            workload: layout of the outputs.
        """
        names = [field.name for field in workload.outputs]
        if isinstance(value, Mapping):
            value = [value.get(name) for name in names]
        tensors = [value] if isinstance(value, torch.Tensor) else list(value)
        renamed: dict[str, str] = {}
        for field, tensor in zip(workload.outputs, tensors, strict=True):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_contiguous():
                return self._refuse(f"the value returned for `{field.name}` is not a contiguous tensor")
            place = self._place(tensor)
            whole = place["offset"] == 0 and tensor.untyped_storage().nbytes() == field.bytes
            if not place["buffer"].startswith("workspace:") or not whole or place["buffer"] in renamed:
                return self._refuse(f"the value returned for `{field.name}` is part of another tensor")
            renamed[place["buffer"]] = f"output:{field.name}"
        self._spaces = {
            address: space for address, space in self._spaces.items() if f"workspace:{space[0]}" not in renamed
        }
        for step in self._steps:
            for place in (step, *step.get("args", ())):
                if "buffer" in place:
                    place["buffer"] = renamed.get(place["buffer"], place["buffer"])
        return None

    def record(self) -> bytes:
        """Return the bytes of the record; see the module."""
        if self._reason is None and not any(step["kind"] == "launch" for step in self._steps):
            self._refuse("the call launches no Triton kernel")
        header_fields = {
            "reason": self._reason,
            "steps": [] if self._reason else self._steps,
            "workspaces": dict(self._spaces.values()),
            "cubins": [] if self._reason else [len(cubin) for cubin in self._cubins],
        }
        header = json.dumps(header_fields).encode()
        whole = struct.pack("<q", len(header)) + header + (b"" if self._reason else b"".join(self._cubins))
        if len(whole) <= LARGEST:
            return whole
        header = json.dumps({"reason": f"the record has more than {LARGEST} bytes"}).encode()
        return struct.pack("<q", len(header)) + header


_BEFORE_VALUES = 4
"""Arguments of `CompiledKernel.run` before the kernel's own: packed metadata, launch metadata, two hooks."""


def record_call(
    descriptor: int, split_call: SplitCall, workload: CudaWorkload, placement: int, *, passing: bool
) -> None:
    """Make a call and write its record into a file; closes the descriptor.

    Args:
        descriptor: the judge's file, of `LARGEST` bytes.
        split_call: the call, in two parts.
        workload: the layout of the inputs and outputs.
        placement: placement of the call's inputs.
        passing: the outputs are arguments of the function.
    """
    try:
        recorder = LaunchRecorder(_buffers(workload, placement))
        compute, _ = split_call
        with recorder.recording():
            returned = compute(placement)
        torch.cuda.synchronize()
        if not passing:
            recorder.returned(returned, workload)
        os.pwrite(descriptor, recorder.record(), 0)
    finally:
        os.close(descriptor)


def _buffers(workload: CudaWorkload, placement: int) -> list[_TensorMemory]:
    begin = workload.memory.address + placement * workload.stride
    sides = (("input", begin, workload.inputs), ("output", begin + workload.input_stride, workload.outputs))
    return [
        _TensorMemory(f"{side}:{field.name}", start + field.offset, field.bytes)
        for side, start, fields in sides
        for field in fields
        if not field.scalar
    ]
