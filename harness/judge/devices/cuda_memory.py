"""The sets of one workload as the judge of a CUDA device keeps them, out of every runner's reach.

Inputs lie in memory of the judge's own; for a batch they are copied to where the runner will see them. Outputs are the
copies that were taken when the batch had ended. Python scalars lie in shared host memory that runners can only read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from harness.judge.correctness import Sums, least_scale
from harness.judge.layout import Field, Layout
from harness.judge.memory import Region
from harness.judge.pieces import Piece
from harness.judge.reference import Value
from harness.judge.runners import Runner
from harness.model.problem import Tolerance
from harness.runner.launcher import Trusted

_WORD = 8
_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_AS_IT_IS = 3
_SUMS = struct.Struct("ddffII")
_PIECE = struct.Struct("QQQfi")


class CudaMemory:
    """See the protocol `Memory`."""

    def __init__(self, layout: Layout, capacity: int, scalars: Region) -> None:
        self.layout = layout
        self.capacity = capacity
        self.stride = layout.input_stride + layout.output_stride
        """Bytes from slot to slot where a runner sees them: inputs, then outputs."""
        self.given = torch.empty(capacity, layout.input_stride, dtype=torch.uint8, device="cuda")
        self.taken: dict[int, torch.Tensor] = {}
        """By runner, the outputs of its last batch: a row a slot."""
        self.places: Places | None = None
        self._scalars = scalars
        self._views: dict[int, dict[str, torch.Tensor]] = {}

    def views(self, slot: int) -> dict[str, torch.Tensor]:
        """A slot's inputs, to be written in place: scalars on the host, tensors on the device."""
        if slot not in self._views:
            fields = enumerate(self.layout.inputs)
            self._views[slot] = {each.name: self._input(slot, number, each) for number, each in fields}
        return self._views[slot]

    def _input(self, slot: int, number: int, each: Field) -> torch.Tensor:
        if each.scalar:
            at = _WORD * (slot * len(self.layout.inputs) + number)
            return self._scalars.all[at : at + _WORD].view(each.torch_dtype).view(())
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

    def outputs(self, runner: Runner, slot: int) -> dict[str, torch.Tensor]:
        """What a runner left in a slot when its batch had ended. Bool is given as uint8: any byte may lie there."""
        row = self.taken[id(runner)][slot]
        found = {each.name: _tensor(row, each) for each in self.layout.outputs}
        return {name: value.view(torch.uint8) if value.dtype == torch.bool else value for name, value in found.items()}


def _tensor(row: torch.Tensor, each: Field) -> torch.Tensor:
    return row[each.offset : each.offset + each.bytes].view(each.torch_dtype).view(each.shape)


class Places:
    """Where in a batch's outputs secret positions lie, drawn on the device: 8-byte words."""

    def __init__(self, layout: Layout, generator: torch.Generator) -> None:
        fields = [each for each in layout.outputs if each.bytes]
        self._begin = torch.tensor([each.offset // _WORD for each in fields], device="cuda")
        self._words = torch.tensor([max(1, each.bytes // _WORD) for each in fields], device="cuda")
        self._layout = layout
        self._generator = generator

    def draw(self, calls: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The same places twice: as words of what the runner sees, and as words of the copied outputs."""
        own = self._generator
        slots = torch.randint(calls, (count,), generator=own, device="cuda")
        fields = torch.randint(len(self._words), (count,), generator=own, device="cuda")
        words = (torch.rand(count, generator=own, device="cuda", dtype=torch.float64) * self._words[fields]).long()
        inside = self._begin[fields] + words
        inputs, outputs = self._layout.input_stride // _WORD, self._layout.output_stride // _WORD
        return slots * (inputs + outputs) + inputs + inside, slots * outputs + inside


def poison(outputs: torch.Tensor, layout: Layout) -> None:
    """Overwrite outputs (a row a slot) with what no right answer is: NaN, and another pattern for integers."""
    outputs.fill_(0xFF)
    for each in layout.outputs:
        if not each.torch_dtype.is_floating_point and each.bytes:
            outputs[:, each.offset : each.offset + each.bytes].fill_(0xA5)


class Pieces:
    """`harness.judge.pieces.CopyAll` by one launch."""

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
