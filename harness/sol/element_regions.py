"""Sets of elements of one storage, as views with strides select them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

_MOST_CELLS = 2**22
"""Cells of a map at most: 4 MB. A region that would need more of them is counted and not located."""


@dataclass(frozen=True)
class StridedView:
    """One tensor on its storage. Offsets and strides are in bytes.

    A view covers `dims` repetitions of a run of consecutive bytes; broadcast axes are left out.
    """

    storage: int
    storage_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int
    run: int = field(init=False)
    dims: tuple[tuple[int, int], ...] = field(init=False)
    distinct_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        """Collapse the axes into runs."""
        axes = sorted(
            (stride, size) for size, stride in zip(self.shape, self.strides, strict=True) if size > 1 and stride
        )
        run = self.itemsize if 0 not in self.shape else 0
        while axes and axes[0][0] <= run:  # overlapping windows cover a run without gaps too
            stride, size = axes.pop(0)
            run += stride * (size - 1)
        object.__setattr__(self, "run", run)
        object.__setattr__(self, "dims", tuple((size, stride) for stride, size in axes))
        object.__setattr__(self, "distinct_bytes", run * math.prod(size for _, size in self.dims))

    @property
    def is_whole(self) -> bool:
        """True if the view covers every byte of its storage."""
        return not self.dims and self.run >= self.storage_bytes

    @property
    def is_plain(self) -> bool:
        """True if the view is its whole storage, in order."""
        step = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return step == self.storage_bytes

    @property
    def elements(self) -> int:
        """Elements, each of a broadcast axis too."""
        return math.prod(self.shape)

    @property
    def distinct(self) -> int:
        """Elements without repetitions."""
        return self.distinct_bytes // self.itemsize


def view_of(tensor: torch.Tensor) -> StridedView:
    """Return the view that a strided tensor is."""
    storage, itemsize = tensor.untyped_storage(), tensor.element_size()
    return StridedView(
        storage=storage_of(tensor),
        storage_bytes=storage.nbytes(),
        shape=tuple(tensor.shape),
        strides=tuple(stride * itemsize for stride in tensor.stride()),
        offset=int(tensor.storage_offset()) * itemsize,
        itemsize=itemsize,
    )


def storage_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage: meta tensors have no address to tell them apart."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch offers nothing else


def share_of(marks: torch.Tensor) -> float:
    """Return the share of true elements of a boolean tensor; 0 of an empty one."""
    return int(np.count_nonzero(marks.numpy())) / max(1, marks.numel())  # many times as fast as torch's sum


class ElementRegion:
    """Bytes of one storage that were marked, located where a map of bounded size can hold them."""

    def __init__(self, storage_bytes: int) -> None:
        self.bytes = storage_bytes
        self.whole = False
        self._cell = max(1, storage_bytes)
        self._map: torch.Tensor | None = None
        self._least = 0

    @property
    def empty(self) -> bool:
        """True if nothing is marked."""
        return not self.whole and self._map is None and not self._least

    def add(self, view: StridedView) -> None:
        """Mark the bytes of a view."""
        if self.whole or not view.run:
            return
        if view.is_whole:
            self._mark_all()
            return
        cells = self._cells(view)
        if cells is None:
            self._least = max(self._least, view.distinct_bytes)
        else:
            cells.fill_(value=True)

    def add_unlocated(self, nbytes: int) -> None:
        """Mark at least so many bytes, wherever they are."""
        self._least = max(self._least, min(nbytes, self.bytes))

    def add_scaled(self, other: ElementRegion, itemsize: int, other_itemsize: int) -> bool:
        """Mark the elements that are marked in a storage of the same elements, of another size; False if it cannot."""
        scaled = other._cell * itemsize
        if other._map is None or scaled % other_itemsize or not self._refine(scaled // other_itemsize):
            return other.whole and self._mark_all()
        assert self._map is not None  # noqa: S101 - refining makes it
        finer = scaled // other_itemsize // self._cell
        self._map |= other._map.repeat_interleave(finer) if finer > 1 else other._map
        return True

    def _mark_all(self) -> bool:
        self.whole, self._map = True, None
        return True

    def remove(self, view: StridedView) -> None:
        """Unmark the bytes of a view; what cannot be located is unmarked altogether."""
        if self.empty or not view.run:
            return
        cells = None if view.is_whole else self._cells(view)
        if cells is None:
            self.whole, self._map, self._least = False, None, 0
        else:
            cells.fill_(value=False)

    def share(self, view: StridedView) -> float:
        """Return the share of a view's bytes that is marked, never too large."""
        if self.whole or not view.run:
            return 1.0 if view.run else 0.0
        cells = self._cells(view) if self._map is not None else None
        located = share_of(cells) if cells is not None else 0.0
        outside = self.bytes - view.distinct_bytes
        return max(located, (self._least - outside) / view.distinct_bytes if self._least > outside else 0.0)

    def count(self) -> int:
        """Return the number of marked bytes, never too large."""
        if self.whole:
            return self.bytes
        located = int(np.count_nonzero(self._map.numpy())) * self._cell if self._map is not None else 0
        return min(self.bytes, max(located, self._least))

    def elements_of(self, view: StridedView) -> torch.Tensor | None:
        """Return the marks of a view's elements in its shape, writable; None for what cannot be located."""
        if view.storage_bytes // view.itemsize > _MOST_CELLS or not self._refine(view.itemsize):
            return None
        assert self._map is not None  # noqa: S101 - refining makes it
        strides = [stride // self._cell for stride in view.strides]
        return self._map.as_strided(view.shape, strides, view.offset // self._cell)

    def _cells(self, view: StridedView) -> torch.Tensor | None:
        """Cells of the map under a view, of which none appears twice."""
        extent = view.run
        for size, stride in view.dims:
            if stride < extent:
                return None  # windows that overlap and leave gaps
            extent = stride * (size - 1) + extent
        if not self._refine(math.gcd(view.offset, view.run, *(stride for _, stride in view.dims))):
            return None
        assert self._map is not None  # noqa: S101 - refining makes it
        cell = self._cell
        shape = [*(size for size, _ in view.dims), view.run // cell]
        strides = [*(stride // cell for _, stride in view.dims), 1]
        return self._map.as_strided(shape, strides, view.offset // cell)

    def _refine(self, cell: int) -> bool:
        """Make the cells so small that `cell` is a multiple of them; False where they would be too many."""
        cell = math.gcd(self._cell, cell)
        if self.bytes // cell > _MOST_CELLS:
            return False
        if self._map is None:
            self._map = torch.full((self.bytes // cell,), self.whole, dtype=torch.bool)
            self.whole = False
        elif cell != self._cell:
            self._map = self._map.repeat_interleave(self._cell // cell)
        self._cell = cell
        return True
