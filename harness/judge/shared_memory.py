"""Shared memory of the CPU judge: inputs that only the judge can write, and outputs that a runner writes.

Both are memory files whose size is sealed. The file of the inputs is also sealed against new writable mappings once the
judge has mapped it, so that no runner can ever change an input. The judge allocates every page, none of them a huge
page, and the system-call filter prevents runners from replacing them: huge pages on one side made a kernel up to 1.4
times as fast.
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
from harness.judge.input_data.layout import Layout
from harness.judge.native import Native

_F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since Linux 5.1; Python has no name for it
_ALIVE, _RACING = 5, 3
"""Number of regions that are created together. Regions of the usual size are for the candidate, `baseline/` and the
references that stay loaded; larger regions are for the candidate, `baseline/` and one reference."""
_FLOAT_POISON, _OTHER_POISON = 0xFF, 0xA5  # every float format here reads all ones as NaN


def whole_pages(size: int) -> int:
    """Return a size in bytes, rounded up to whole pages, and at least one page."""
    return max(mmap.PAGESIZE, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE)


class Region:
    """One memory file, mapped by the judge.

    Args:
        size: at least so many bytes; `bytes` is the size in whole pages.
        sealed: prevent new writable mappings, and allocate every page now.

    Raises:
        ConfigurationError: the kernel cannot seal memory files.
    """

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
                f"memory files cannot be sealed: {error.strerror}", remedy="use Linux 5.1 or later"
            ) from error
        self.all = torch.frombuffer(self._map, dtype=torch.uint8)
        if sealed:
            self.all.zero_()  # a runner that maps it must not be the first to touch a page

    @property
    def address(self) -> int:
        """Address of the first byte in the judge's process."""
        return int(self.all.data_ptr())

    def slot(self, number: int, stride: int) -> torch.Tensor:
        """Return the bytes of one slot.

        Args:
            number: of the slot.
            stride: bytes from one slot to the next.
        """
        return self.all[number * stride : (number + 1) * stride]

    def take_page(self, begin: int) -> None:
        """Allocate the page at this offset in bytes, with this mapping's setting for huge pages."""
        self._map[begin] = 0

    def close(self) -> None:
        """Close the descriptor. The mapping ends with the last tensor on it."""
        os.close(self.descriptor)


def _interleaved_regions(count: int, size: int) -> list[Region]:
    """Return regions whose pages were allocated alternately, one page of each in turn."""
    regions = [Region(size, sealed=False) for _ in range(count)]
    for begin in range(0, regions[0].bytes, mmap.PAGESIZE):
        for region in regions:
            region.take_page(begin)
    return regions


class OutputPool:
    """Memory that runners write to: one zeroed region for each runner, with no difference in speed between regions.

    The location of a memory file in physical memory changes the speed of a kernel that streams through it by up to 1 %;
    of two files the one created later is the faster. Therefore the regions that are timed against each other are
    created together, page by page in turn, and assigned at random (docs/performance.md has the measured effect).

    Args:
        usual_bytes: smallest size of a region.
    """

    def __init__(self, usual_bytes: int) -> None:
        self._usual = usual_bytes
        self.bytes = 0
        """Size of one region."""
        self._spare: list[Region] = []
        self.resize(usual_bytes)

    def resize(self, least_bytes: int) -> bool:
        """Create regions of the usual size, or larger if needed. Return true if the size of a region has changed."""
        size = whole_pages(max(self._usual, least_bytes))
        if size == self.bytes:
            return False
        self.close()
        self.bytes = size
        self._spare = _interleaved_regions(_RACING if size > self._usual else _ALIVE, size)
        return True

    def lend(self) -> Region:
        """Return a region for a new runner, chosen at random."""
        if not self._spare:
            self._spare = _interleaved_regions(1, self.bytes)
        return self._spare.pop(secrets.randbelow(len(self._spare)))

    def take_back(self, region: Region) -> None:
        """Take a region back from a runner that has ended, and zero it for the next runner."""
        if region.bytes != self.bytes:
            region.close()
            return
        region.all.zero_()
        self._spare.append(region)

    def close(self) -> None:
        """Close the regions that are not in use."""
        for region in self._spare:
            region.close()
        self._spare.clear()


def poison_outputs(region: Region, layout: Layout, slots: Sequence[int], native: Native | None, inputs: Region) -> None:
    """Overwrite the outputs of slots with NaN, or with a pattern for other dtypes, so that no old value can pass.

    Args:
        region: memory of the outputs.
        layout: of the workload.
        slots: numbers of the slots; those between the smallest and the largest are overwritten too.
        native: removes the outputs from all caches; None: they may stay cached.
        inputs: memory of the inputs; outputs that are updated in place get the content of their input.
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
    for source, field in layout.updated:
        for slot in slots:
            start, begin = slot * layout.output_stride + field.offset, slot * layout.input_stride + source.offset
            region.all[start : start + field.bytes] = inputs.all[begin : begin + source.bytes]
            if native is not None:
                native.flush(region.address + start, field.bytes)
