"""The sets of one workload as the judge of a CUDA device keeps them, out of every runner's reach.

Inputs lie in memory of the judge's own; for a call they are copied to where the runner will see them. Outputs are the
copies that were taken when the call had ended. Python scalars lie in shared host memory that runners can only read.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.judge.batched_copy import Piece
from harness.judge.correctness import Sums, least_scale
from harness.judge.input_data.layout import Field, Layout
from harness.judge.reference import Value
from harness.judge.runners import Runner
from harness.judge.shared_memory import Region
from harness.model.problem import Tolerance
from harness.runner.launcher import Trusted

POSITIONS, WORD = 256, 8
"""Of a call's outputs, so many words of so many bytes are read when the runner answers."""
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5  # every float format here reads all ones as NaN
_EVERY_BYTE = 0x0101010101010101
_OTHER_WORD = _OTHER_POISON * _EVERY_BYTE - (1 << 64)
"""As a signed integer."""
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_AS_IT_IS = 3
_SUMS = struct.Struct("ddffII")
_PIECE = struct.Struct("QQQfi")


class CudaMemory:
    """See the protocol `Memory`."""

    def __init__(self, layout: Layout, capacity: int, scalars: Region) -> None:
        self.layout = layout
        self.capacity = capacity
        self.given = torch.empty(capacity, layout.input_stride, dtype=torch.uint8, device="cuda")
        self.taken: dict[int, torch.Tensor] = {}
        """By runner, the outputs of its last batch: a row a slot."""
        self._shown_scalars = scalars
        self._scalars = torch.zeros(capacity, max(1, len(layout.inputs)), dtype=torch.int64)
        self._changed: list[torch.Tensor] = []
        self._samples: list[tuple[int, OutputSample, torch.Tensor]] = []
        self._views: dict[int, dict[str, torch.Tensor]] = {}

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """A slot's inputs, to be written in place: scalars on the host, tensors on the device."""
        if slot not in self._views:
            fields = enumerate(self.layout.inputs)
            self._views[slot] = {each.name: self._input(slot, number, each) for number, each in fields}
        return self._views[slot]

    def _input(self, slot: int, number: int, each: Field) -> torch.Tensor:
        if each.scalar:
            return self._scalars[slot, number].view(each.torch_dtype)
        return _tensor(self.given[slot], each)

    def inputs(self, slot: int) -> list[Value]:
        """A slot's inputs as the reference is called with: the judge's own, which no runner has."""
        found: list[Value] = []
        views = self.views(slot)
        for each in self.layout.inputs:
            value = views[each.name]
            if each.scalar:
                number = value.item()
                found.append(bool(number) if each.scalar == "bool" else number)
            else:
                found.append(value)
        return found

    def give_scalars(self, slot: int, placement: int) -> None:
        """Write a set's Python scalars to where a runner reads those of a placement."""
        row = self._scalars[slot].view(torch.uint8)
        self._shown_scalars.all[placement * len(row) : (placement + 1) * len(row)] = row

    def capture(
        self, runner: Runner, slot: int, placed: tuple[torch.Tensor, torch.Tensor], sample: Sampled | None = None
    ) -> None:
        """Copy what a call left to memory of the judge; what is compared is looked at by `find_changes`.

        Args:
            runner: who made the call.
            slot: of its set.
            placed: inputs and outputs where the runner saw them.
            sample: what was read of the outputs when the runner answered.
        """
        inputs, outputs = placed
        if id(runner) not in self.taken:
            shape = self.capacity, self.layout.output_stride
            self.taken[id(runner)] = torch.empty(shape, dtype=torch.uint8, device="cuda")
        self.taken[id(runner)][slot].copy_(outputs)
        self._changed.append((inputs.view(torch.int64) != self.given[slot].view(torch.int64)).any())
        if sample is not None:
            self._samples.append((slot, *sample))

    def find_changes(self, runner: Runner) -> tuple[bool, bool]:
        """Over the calls captured since the last time: (an input was written, an output was after the answer)."""
        changed, samples = torch.stack(self._changed).any(), self._samples
        self._changed, self._samples = [], []
        if not samples:
            return bool(changed), False
        words = self.taken[id(runner)].view(torch.int64)
        indices = torch.stack([slot * words.shape[1] + sample.indices for slot, sample, _ in samples])
        late = words.view(-1)[indices.cuda()] != torch.stack([seen for _, _, seen in samples]).cuda()
        wrote, later = torch.stack((changed, late.any())).tolist()
        return bool(wrote), bool(later)

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """Outputs as a runner's call on a slot's set left them. Bool is given as uint8: it may hold any byte."""
        row = self.taken[id(runner)][slot]
        found = {each.name: _tensor(row, each) for each in self.layout.outputs}
        return {name: value.view(torch.uint8) if value.dtype == torch.bool else value for name, value in found.items()}


def _tensor(row: torch.Tensor, each: Field) -> torch.Tensor:
    return row[each.offset : each.offset + each.bytes].view(each.torch_dtype).view(each.shape)


def poison(outputs: torch.Tensor, layout: Layout, given: torch.Tensor) -> None:
    """Overwrite a call's outputs, as bytes, with what no right answer is: NaN, and another pattern for integers.

    Outputs that are updated in place get the content of their input in `given`, the call's inputs as bytes.
    """
    outputs.fill_(_FLOAT_POISON)
    for each in layout.outputs:
        if not each.torch_dtype.is_floating_point and each.bytes:
            outputs[each.offset : each.offset + each.bytes].fill_(_OTHER_POISON)
    for source, each in layout.updated:
        outputs[each.offset : each.offset + each.bytes] = given[source.offset : source.offset + source.bytes]


def is_poisoned(words: torch.Tensor, layout: Layout, sample: OutputSample) -> bool:
    """Return true if sampled words of outputs are as `poison` wrote them; those of updated inputs are not looked at."""
    begin = sample.indices * WORD
    expected = torch.full_like(words, -1)
    known = torch.ones_like(words, dtype=torch.bool)
    for each in layout.outputs:
        if not each.torch_dtype.is_floating_point:
            end = each.offset + each.bytes
            expected[(begin >= each.offset) & (begin + WORD <= end)] = _OTHER_WORD
            known &= (begin + WORD <= end) | (begin >= end)  # a word at a field's end has both patterns
        if each.updates is not None:
            known &= (begin + WORD <= each.offset) | (begin >= each.offset + each.bytes)
    return bool((words == expected)[known].all())


@dataclass(frozen=True)
class OutputSample:
    """Words of a call's outputs at equal distances, from an offset that the runner does not know."""

    stride: int
    """Bytes of the outputs."""
    offset: int
    """Bytes before the first word."""

    @classmethod
    def draw(cls, stride: int) -> OutputSample:
        """A random offset."""
        return cls(stride, secrets.randbelow(stride // POSITIONS // WORD) * WORD)

    @property
    def pitch(self) -> int:
        """Bytes from word to word."""
        return self.stride // POSITIONS // WORD * WORD

    @property
    def indices(self) -> torch.Tensor:
        """Of the words, among all words of the outputs."""
        return (torch.arange(POSITIONS, dtype=torch.int64) * self.pitch + self.offset) // WORD


Sampled = tuple[OutputSample, torch.Tensor]
"""Where, and the words."""


class Pieces:
    """`harness.judge.batched_copy.CopyAll` by one launch."""

    most = 65_535

    def __init__(self, trusted: Trusted) -> None:
        self._trusted = trusted

    def __call__(self, pieces: Sequence[Piece], /) -> None:
        """See `CopyAll`."""
        for begin in range(0, len(pieces), self.most):
            some = pieces[begin : begin + self.most]
            table = bytearray(b"".join(_PIECE.pack(*_row(piece)) for piece in some))
            on_device = torch.frombuffer(table, dtype=torch.uint8).cuda()
            longest = max(piece.elements for piece in some)
            self._trusted.pieces(on_device.data_ptr(), len(some), longest).run()


def _row(piece: Piece) -> tuple[int, int, int, float, int]:
    kind = _AS_IT_IS if piece.factor is None else _KINDS[piece.dtype]
    size = piece.dtype.itemsize if kind == _AS_IT_IS else 1
    return piece.source, piece.target, piece.elements * size, piece.factor or 0.0, kind


class Comparing:
    """`harness.judge.correctness.summed` in one pass on the device, for which the host waits once."""

    def __init__(self, trusted: Trusted) -> None:
        self._trusted = trusted

    def __call__(self, found: torch.Tensor, right: torch.Tensor, tolerance: Tolerance, /) -> Sums:
        """See `Summed`."""
        if right.dtype not in _KINDS:
            found, right = found.float(), right.float()
        found, right = found.contiguous(), right.contiguous()
        sums = torch.zeros(4, dtype=torch.int64, device="cuda")
        limits = (tolerance.max_atol, tolerance.max_rtol, least_scale(tolerance))
        addresses = found.data_ptr(), right.data_ptr()
        self._trusted.compare(*addresses, right.numel(), _KINDS[right.dtype], limits, sums.data_ptr()).run()
        squared_error, squares, max_abs, max_rel, outside, nonzero = _SUMS.unpack(struct.pack("4q", *sums.tolist()))
        return Sums(
            max_abs=max_abs,
            max_rel=max_rel,
            squared_error=squared_error,
            squares=squares,
            within=not outside,
            some_nonzero=bool(nonzero),
        )
