"""Sets of elements of one storage, which views with strides select."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

_MAX_CELLS = 2**22
"""Largest number of cells of a map: 4 MB. The elements of a region that needs more are counted, but not located."""


@dataclass(frozen=True)
class StridedView:
    """A tensor on its storage; offsets and strides are in bytes.

    A view covers repetitions (`dims`) of a run of consecutive bytes, without broadcast axes.
    """

    storage: int
    storage_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int
    run: int = field(init=False)
    """Consecutive bytes of a repetition."""
    dims: tuple[tuple[int, int], ...] = field(init=False)
    """(size, stride) of the axes of the repetitions, by increasing stride."""
    distinct_bytes: int = field(init=False)
    """Bytes without repetitions."""

    def __post_init__(self) -> None:
        """Collapse the axes into runs."""
        pairs = zip(self.strides, self.shape, strict=True)
        axes = sorted((stride, size) for stride, size in pairs if size > 1 and stride)
        run = self.itemsize if 0 not in self.shape else 0
        while axes and axes[0][0] <= run:  # overlapping windows also cover a run without gaps
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
        """True if the view is contiguous and covers its whole storage."""
        step = self.itemsize
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size > 1 and stride != step:
                return False
            step *= size
        return step == self.storage_bytes

    @property
    def elements(self) -> int:
        """Number of elements, including repetitions along broadcast axes."""
        return math.prod(self.shape)

    @property
    def distinct(self) -> int:
        """Number of elements without repetitions."""
        return self.distinct_bytes // self.itemsize


def view_of(tensor: torch.Tensor) -> StridedView:
    """Return the view of a strided tensor."""
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
    """Return the identity of a tensor's storage; meta tensors have no address that could identify them."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - torch offers nothing else


def share_of(marks: torch.Tensor) -> float:
    """Return the share of true elements of a boolean tensor; 0 for an empty one."""
    return int(np.count_nonzero(marks.numpy())) / max(1, marks.numel())  # many times as fast as torch's sum


class ElementRegion:
    """Marked bytes of one storage, located if a map of limited size suffices.

    Args:
        storage_bytes: bytes of the storage.
    """

    def __init__(self, storage_bytes: int) -> None:
        self.bytes = storage_bytes
        self.whole = False
        self._cell = max(1, storage_bytes)
        self._map: torch.Tensor | None = None
        self._unlocated_bytes = 0

    @property
    def empty(self) -> bool:
        """True if nothing is marked."""
        return not self.whole and self._map is None and not self._unlocated_bytes

    def add(self, view: StridedView) -> None:
        """Mark the bytes of a view."""
        if self.whole or not view.run:
            return
        if view.is_whole:
            self._mark_all()
            return
        cells = self._cells(view)
        if cells is None:
            self._unlocated_bytes = max(self._unlocated_bytes, view.distinct_bytes)
        else:
            cells.fill_(value=True)

    def add_unlocated(self, nbytes: int) -> None:
        """Mark at least this number of bytes, at unknown positions."""
        self._unlocated_bytes = max(self._unlocated_bytes, min(nbytes, self.bytes))

    def add_scaled(self, source: ElementRegion, itemsize: int, source_itemsize: int) -> bool:
        """Mark the elements that are marked in another storage, which has the same elements with another size.

        Args:
            source: region of the other storage.
            itemsize: bytes of an element of this storage.
            source_itemsize: bytes of an element of the other storage.

        Returns:
            False if the elements cannot be located.
        """
        cell, remainder = divmod(source._cell * itemsize, source_itemsize)
        cells = self._refine(cell) if source._map is not None and not remainder else None
        if cells is None or source._map is None:
            return source.whole and self._mark_all()
        repeats = cell // self._cell
        cells |= source._map.repeat_interleave(repeats) if repeats > 1 else source._map
        return True

    def _mark_all(self) -> bool:
        self.whole, self._map = True, None
        return True

    def remove(self, view: StridedView) -> None:
        """Unmark the bytes of a view, or all bytes if the view cannot be located."""
        if self.empty or not view.run:
            return
        cells = None if view.is_whole else self._cells(view)
        if cells is None:
            self.whole, self._map, self._unlocated_bytes = False, None, 0
        else:
            cells.fill_(value=False)

    def share(self, view: StridedView) -> float:
        """Return a lower bound of the share of a view's bytes that is marked."""
        if self.whole or not view.run:
            return 1.0 if view.run else 0.0
        cells = self._cells(view) if self._map is not None else None
        located = share_of(cells) if cells is not None else 0.0
        outside = self.bytes - view.distinct_bytes
        return max(located, (self._unlocated_bytes - outside) / view.distinct_bytes)

    def count(self) -> int:
        """Return a lower bound of the number of marked bytes."""
        if self.whole:
            return self.bytes
        located = int(np.count_nonzero(self._map.numpy())) * self._cell if self._map is not None else 0
        return min(self.bytes, max(located, self._unlocated_bytes))

    def elements_of(self, view: StridedView) -> torch.Tensor | None:
        """Return the writable marks of a view's elements, in its shape; None if they cannot be located."""
        cells = self._refine(view.itemsize) if view.storage_bytes // view.itemsize <= _MAX_CELLS else None
        if cells is None:
            return None
        strides = [stride // self._cell for stride in view.strides]
        return cells.as_strided(view.shape, strides, view.offset // self._cell)

    def _cells(self, view: StridedView) -> torch.Tensor | None:
        """Return the cells of the map under a view, each once; None if they cannot be located."""
        extent = view.run
        for size, stride in view.dims:
            if stride < extent:
                return None  # windows that overlap, with gaps
            extent = stride * (size - 1) + extent
        cells = self._refine(math.gcd(view.offset, view.run, *(stride for _, stride in view.dims)))
        if cells is None:
            return None
        cell = self._cell
        shape = [*(size for size, _ in view.dims), view.run // cell]
        strides = [*(stride // cell for _, stride in view.dims), 1]
        return cells.as_strided(shape, strides, view.offset // cell)

    def _refine(self, cell: int) -> torch.Tensor | None:
        """Divide the cells so that `cell` is a multiple of their size; return the map, or None if it is too large."""
        cell = math.gcd(self._cell, cell)
        if self.bytes // cell > _MAX_CELLS:
            return None
        if self._map is None:
            self._map = torch.full((self.bytes // cell,), self.whole, dtype=torch.bool)
            self.whole = False
        elif cell != self._cell:
            self._map = self._map.repeat_interleave(self._cell // cell)
        self._cell = cell
        return self._map
