"""The judge's own copy of a workload's inputs and outputs on a CUDA device, which no runner can access.

Inputs are in the judge's memory and are copied to a placement of the runner for each call. Outputs are copies that are
made after the end of the call. Python scalars are in shared host memory that runners can only read.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from harness.judge.correctness import Sums, least_scale
from harness.judge.input_data.copies import Piece
from harness.judge.input_data.layout import Field, Layout
from harness.judge.reference import Value
from harness.judge.shared_memory import Region
from harness.model.problem import Tolerance
from harness.runner.launcher import TrustedKernels

POSITIONS, WORD = 256, 8
"""Number and bytes of the words of a call's outputs that are read when the runner answers."""
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5  # all bits set is NaN in every float format of a definition
_EVERY_BYTE = 0x0101010101010101
_OTHER_WORD = _OTHER_POISON * _EVERY_BYTE - (1 << 64)
"""A word of this poison as a signed 64-bit integer."""
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_RAW_BYTES = 3
"""Kind of a piece that is copied without conversion."""
_SUMS = struct.Struct("ddffII")
"""`Sums` in trusted.cu."""
_PIECE = struct.Struct("QQQfi")
"""`Piece` in trusted.cu: source, target, bytes or elements, factor, kind."""


class Captures(Protocol):
    """Storage of a runner's captured outputs."""

    captured: torch.Tensor | None
    """Outputs of the last batch in the judge's memory, one row per slot; None before the first call on a workload."""


class CudaMemory:
    """Memory of one workload; see the protocol `Memory`.

    Args:
        layout: the workload's inputs and outputs.
        capacity: number of slots.
        scalars: shared host memory for the Python scalars of each placement.
    """

    def __init__(self, layout: Layout, capacity: int, scalars: Region) -> None:
        self.layout = layout
        self.capacity = capacity
        self.input_bytes = torch.empty(capacity, layout.input_stride, dtype=torch.uint8, device="cuda")
        self._runner_scalars = scalars
        self._has_scalars = any(field.scalar for field in layout.inputs)
        self._scalars = torch.zeros(capacity, max(1, len(layout.inputs)), dtype=torch.int64)
        self._changed: list[torch.Tensor] = []
        self._samples: list[tuple[int, OutputSample, torch.Tensor]] = []
        self._views: dict[int, dict[str, torch.Tensor]] = {}

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """Return a slot's inputs, to be written in place: scalars on the host, tensors on the device."""
        if slot not in self._views:
            fields = enumerate(self.layout.inputs)
            self._views[slot] = {field.name: self._input(slot, number, field) for number, field in fields}
        return self._views[slot]

    def _input(self, slot: int, number: int, field: Field) -> torch.Tensor:
        if field.scalar:
            return self._scalars[slot, number].view(field.torch_dtype)
        return field.view(self.input_bytes[slot])

    def inputs(self, slot: int) -> list[Value]:
        """Return a slot's inputs in the order of the reference's arguments, in memory that no runner can access."""
        return self.layout.input_values(self.views(slot))

    def write_scalars(self, slot: int, placement: int) -> None:
        """Write the Python scalars of a slot to the shared host memory of a placement.

        Args:
            slot: number of the slot.
            placement: number of the placement.
        """
        if not self._has_scalars:
            return
        row = self._scalars[slot].view(torch.uint8)
        self._runner_scalars.all[placement * len(row) : (placement + 1) * len(row)] = row

    def capture(
        self, into: Captures, slot: int, placed: tuple[torch.Tensor, torch.Tensor], sample: Sampled | None = None
    ) -> None:
        """Copy the outputs of a call to the judge's memory, and compare the inputs; `find_changes` returns the result.

        Args:
            into: of the runner that made the call.
            slot: slot of the inputs.
            placed: inputs and outputs at the runner's placement, as bytes.
            sample: words of the outputs that were read when the runner answered.
        """
        inputs, outputs = placed
        if into.captured is None:
            into.captured = torch.empty(self.capacity, self.layout.output_stride, dtype=torch.uint8, device="cuda")
        into.captured[slot].copy_(outputs)
        self._changed.append((inputs.view(torch.int64) != self.input_bytes[slot].view(torch.int64)).any())
        if sample is not None:
            self._samples.append((slot, *sample))

    def find_changes(self, made_by: Captures) -> tuple[bool, bool]:
        """Return true for changed inputs, and true for outputs that changed after the answer.

        Both are for all calls since the last call of this method.

        Args:
            made_by: of the runner that made the calls.
        """
        changed, samples = torch.stack(self._changed).any(), self._samples
        self._changed, self._samples = [], []
        if not samples or made_by.captured is None:
            return bool(changed), False
        captured_words = made_by.captured.view(torch.int64)
        indices = torch.stack([slot * captured_words.shape[1] + sample.indices for slot, sample, _ in samples])
        late = (
            captured_words.view(-1)[indices.cuda()]
            != torch.stack([words_at_answer for _, _, words_at_answer in samples]).cuda()
        )
        wrote, later = torch.stack((changed, late.any())).tolist()
        return bool(wrote), bool(later)

    def outputs(self, connection: Captures, slot: int) -> dict[str, torch.Tensor]:
        """Return the outputs that a runner wrote; bool outputs as uint8, because they may have any byte.

        Args:
            connection: the runner that made the call.
            slot: slot of the inputs.
        """
        assert connection.captured is not None  # noqa: S101 - it made a call
        return self.layout.output_views(connection.captured[slot])


def poison(outputs: torch.Tensor, layout: Layout, input_bytes: torch.Tensor) -> None:
    """Overwrite the outputs of a call with values that no correct result has: NaN, and another pattern for integers.

    Outputs that are updated in place receive the content of their input.

    Args:
        outputs: outputs of a call, as bytes.
        layout: the workload's inputs and outputs.
        input_bytes: inputs of the call, as bytes.
    """
    outputs.fill_(_FLOAT_POISON)
    for field in layout.outputs:
        if not field.torch_dtype.is_floating_point and field.bytes:
            outputs[field.offset : field.offset + field.bytes].fill_(_OTHER_POISON)
    for source, field in layout.updated:
        outputs[field.offset : field.offset + field.bytes] = input_bytes[source.offset : source.offset + source.bytes]


def is_poisoned(words: torch.Tensor, layout: Layout, sample: OutputSample) -> bool:
    """Return true if sampled words of outputs are unchanged since `poison`; words of updated inputs are not checked.

    Args:
        words: the words, int64 of shape [POSITIONS].
        layout: the workload's inputs and outputs.
        sample: positions of the words.
    """
    begin = sample.indices * WORD
    expected = torch.full_like(words, -1)
    is_compared = torch.ones_like(words, dtype=torch.bool)
    for field in layout.outputs:
        if not field.torch_dtype.is_floating_point:
            end = field.offset + field.bytes
            expected[(begin >= field.offset) & (begin + WORD <= end)] = _OTHER_WORD
            is_compared &= (begin + WORD <= end) | (begin >= end)  # a word at a field's end has both patterns
        if field.updates is not None:
            is_compared &= (begin + WORD <= field.offset) | (begin >= field.offset + field.bytes)
    return bool((words == expected)[is_compared].all())


@dataclass(frozen=True)
class OutputSample:
    """Positions of words in a call's outputs: equal distances, beginning at a secret offset."""

    stride: int
    """Bytes of the outputs of a call."""
    offset: int
    """Bytes before the first word."""

    @classmethod
    def draw(cls, stride: int) -> OutputSample:
        """Return a sample with a random offset."""
        return cls(stride, secrets.randbelow(stride // POSITIONS // WORD) * WORD)

    @property
    def pitch(self) -> int:
        """Bytes from one word to the next."""
        return self.stride // POSITIONS // WORD * WORD

    @property
    def indices(self) -> torch.Tensor:
        """Indices of the words among all words of the outputs, int64 of shape [POSITIONS]."""
        return (torch.arange(POSITIONS, dtype=torch.int64) * self.pitch + self.offset) // WORD


Sampled = tuple[OutputSample, torch.Tensor]
"""Positions of words, and the words."""


class DeviceBatchedCopy:
    """`harness.judge.input_data.copies.BatchedCopy` with one launch per `max_pieces` pieces."""

    scalable = frozenset(_KINDS)
    adds = False
    max_pieces = 65_535
    """Largest second dimension of a grid."""

    def __init__(self, trusted: TrustedKernels) -> None:
        self._trusted = trusted

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """See `BatchedCopy`."""
        for begin in range(0, len(pieces), self.max_pieces):
            batch = pieces[begin : begin + self.max_pieces]
            table = bytearray(b"".join(_PIECE.pack(*_row(piece)) for piece in batch))
            on_device = torch.frombuffer(table, dtype=torch.uint8).cuda()
            longest = max(piece.elements for piece in batch)
            self._trusted.batched_copy(on_device.data_ptr(), len(batch), longest).run()


def _row(piece: Piece) -> tuple[int, int, int, float, int]:
    kind = _RAW_BYTES if piece.factor is None else _KINDS[piece.dtype]
    size = piece.dtype.itemsize if kind == _RAW_BYTES else 1
    return piece.source, piece.target, piece.elements * size, piece.factor or 0.0, kind


class DeviceComparison:
    """`harness.judge.correctness.summed` in one pass on the device, with one synchronisation."""

    def __init__(self, trusted: TrustedKernels) -> None:
        self._trusted = trusted

    def __call__(self, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, /) -> Sums:
        """See `Summed`."""
        if expected.dtype not in _KINDS:
            actual, expected = actual.float(), expected.float()
        actual, expected = actual.contiguous(), expected.contiguous()
        sums = torch.zeros(4, dtype=torch.int64, device="cuda")
        limits = (tolerance.max_atol, tolerance.max_rtol, least_scale(tolerance))
        addresses = actual.data_ptr(), expected.data_ptr()
        self._trusted.compare(*addresses, expected.numel(), _KINDS[expected.dtype], limits, sums.data_ptr()).run()
        squared_error, squares, max_abs, max_rel, outside, nonzero = _SUMS.unpack(struct.pack("4q", *sums.tolist()))
        return Sums(max_abs, max_rel, squared_error, squares, within=not outside, some_nonzero=bool(nonzero))
