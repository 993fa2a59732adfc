"""Shared memory of the CPU judge: inputs that only the judge can write, outputs that a runner writes.

Both are memory files. The inputs' is sealed against future writing once the judge has mapped it, so that no runner can
change an input, now or later, whatever it maps; neither can be resized under the judge. The judge takes every page,
none of them a huge one, and the system-call filter keeps runners from exchanging them: huge pages on one side made a
kernel up to 1.4 times as fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Sequence

import torch

from harness.errors import ConfigurationError
from harness.judge.input_data.layout import Field, Layout
from harness.judge.native import Native
from harness.judge.reference import Value

_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1; Python has no name for it
_ALIVE, _RACING = 5, 3
"""Regions that are made together. Of the usual size: for the candidate, `baseline/` and the references that stay alive;
of a larger one: for the candidate, `baseline/` and one reference."""
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5  # every float format here reads all ones as NaN


def whole_pages(size: int) -> int:
    """So many bytes rounded up to pages, and one page at least."""
    return max(mmap.PAGESIZE, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)


class Region:
    """One memory file, mapped by the judge. `bytes` is its size."""

    def __init__(self, size: int, *, sealed: bool) -> None:
        self.bytes = whole_pages(size)
        self.descriptor = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.bytes)
        self._map = mmap.mmap(self.descriptor, self.bytes)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            self._map.madvise(mmap.MADV_NOHUGEPAGE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        try:
            if sealed:
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
        except OSError as error:
            raise ConfigurationError(
                f"memory files cannot be sealed here: {error.strerror}", remedy="the judge needs Linux 5.1 or later"
            ) from error
        self.all = torch.frombuffer(self._map, dtype=torch.uint8)
        if sealed:
            self.all.zero_()  # a runner that maps it must not be the first to touch a page

    @property
    def address(self) -> int:
        """Where it begins in the judge."""
        return int(self.all.data_ptr())

    def take_page(self, begin: int) -> None:
        """Have the page at this offset allocated, by the rules of this mapping."""
        self._map[begin] = 0

    def close(self) -> None:
        """Give the descriptor back; the mapping goes with the last tensor on it."""
        os.close(self.descriptor)


def _alike(count: int, size: int) -> list[Region]:
    """Regions whose pages were taken in turn, one of each."""
    regions = [Region(size, sealed=False) for _ in range(count)]
    for begin in range(0, regions[0].bytes, mmap.PAGESIZE):
        for region in regions:
            region.take_page(begin)
    return regions


class OutputPool:
    """Memory that runners write to: a region for each, empty when it is lent, and alike for all.

    Where a memory file lies in physical memory makes a kernel that streams through it up to a hundredth faster or
    slower, the younger of two being the faster. So the regions that race each other are made together, page by page in
    turn, and lent at random (docs/performance.md has what that changed).
    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual = usual_bytes
        self.bytes = 0
        """Of one region."""
        self._spare: list[Region] = []
        self.resize(usual_bytes)

    def resize(self, least_bytes: int) -> bool:
        """Make the regions of the usual size, or larger if need be; whether those lent out are now outdated."""
        size = whole_pages(max(self._usual, least_bytes))
        if size == self.bytes:
            return False
        self.close()
        self.bytes = size
        self._spare = _alike(_RACING if size > self._usual else _ALIVE, size)
        return True

    def lend(self) -> Region:
        """A region for a new runner."""
        if not self._spare:
            self._spare = _alike(1, self.bytes)
        return self._spare.pop(secrets.randbelow(len(self._spare)))

    def take_back(self, region: Region) -> None:
        """From a runner that is no more: nothing it wrote reaches the next."""
        if region.bytes != self.bytes:
            region.close()
            return
        region.all.zero_()
        self._spare.append(region)

    def close(self) -> None:
        """Give up what is not lent out."""
        for region in self._spare:
            region.close()
        self._spare.clear()


def view(region: Region, field: Field, slot: int, stride: int) -> torch.Tensor:
    """One input or output of one slot as a tensor on the shared memory."""
    begin = slot * stride + field.offset
    return region.all[begin : begin + field.bytes].view(field.torch_dtype).view(field.shape)


def input_views(region: Region, layout: Layout, slot: int) -> dict[str, torch.Tensor]:
    """A slot's inputs by name, to be written; a Python scalar is a 0-d tensor of 64 bits."""
    return {field.name: view(region, field, slot, layout.input_stride) for field in layout.inputs}


def read_inputs(region: Region, layout: Layout, slot: int) -> list[Value]:
    """A slot's inputs in order, as the reference is called with: tensors on the shared memory, Python scalars."""
    found: list[Value] = []
    for field in layout.inputs:
        value = view(region, field, slot, layout.input_stride)
        if field.scalar:
            number = value.item()
            found.append(bool(number) if field.scalar == "bool" else number)
        else:
            found.append(value)
    return found


def poison_outputs(
    region: Region, layout: Layout, slots: Sequence[int], native: Native | None, inputs: Region | None = None
) -> None:
    """Overwrite the outputs of slots, and of those between them, with what no right answer is: NaN, or a pattern.

    Outputs that are updated in place get the content of their input in `inputs`, which has the same slots. With
    `native` all are cold afterwards.
    """
    stride = layout.output_stride
    begin, end = min(slots) * stride, (max(slots) + 1) * stride
    if native is None:
        region.all[begin:end].fill_(_FLOAT_POISON)
    else:
        native.overwrite(region.address + begin, end - begin, _FLOAT_POISON)
    for field in layout.outputs:
        if not field.torch_dtype.is_floating_point:
            for slot in slots:
                start = slot * stride + field.offset
                region.all[start : start + field.bytes].fill_(_OTHER_POISON)
                if native is not None:
                    native.flush(region.address + start, field.bytes)
    if inputs is not None:
        _fill_updated(region, layout, slots, native, inputs)


def _fill_updated(region: Region, layout: Layout, slots: Sequence[int], native: Native | None, inputs: Region) -> None:
    for source, field in layout.updated:
        for slot in slots:
            start, begin = slot * layout.output_stride + field.offset, slot * layout.input_stride + source.offset
            region.all[start : start + field.bytes] = inputs.all[begin : begin + source.bytes]
            if native is not None:
                native.flush(region.address + start, field.bytes)


def read_outputs(region: Region, layout: Layout, slot: int) -> dict[str, torch.Tensor]:
    """A slot's outputs by name, on the shared memory. Bool is given as the uint8 it lies as: any byte may lie there."""
    found = {field.name: view(region, field, slot, layout.output_stride) for field in layout.outputs}
    return {name: value.view(torch.uint8) if value.dtype == torch.bool else value for name, value in found.items()}
