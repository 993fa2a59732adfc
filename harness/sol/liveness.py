"""Determine the part of a reference's run that its outputs depend on, from the outputs back to the inputs.

A reference may compute values that it does not return, or return a slice or a masked part of computed values. A kernel
does not have to compute the other values, so that they count neither as operations nor as bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.sol.element_regions import ElementRegion, StridedView, share_of
from harness.sol.steps import Kind, Lookup, MaskShare, Step


@dataclass(frozen=True)
class _Need:
    """Share of a tensor's elements that is needed, and of its rows and columns with a needed element."""

    elements: float
    rows: float
    columns: float

    @property
    def is_whole(self) -> bool:
        return self.elements >= 1.0


def _everywhere(share: float) -> _Need:
    """Return the need for a share of the elements in this share of the rows and columns."""
    return _Need(share, share, share)


_NOTHING, _EVERYTHING = _everywhere(0.0), _everywhere(1.0)


@dataclass
class _Demand:
    """Needed elements of one storage."""

    region: ElementRegion
    unlocated: _Need = _NOTHING
    """Need of the whole storage as a tensor of `shape`, without positions."""
    shape: tuple[int, ...] = ()


@dataclass
class _SelectedRows:
    """Rows that were selected from one table."""

    shares: torch.Tensor
    """Needed share of each row that is known to be selected, float64 of shape [rows]."""
    unlocated: float = 0.0
    """Number of selected rows at unknown positions."""

    def rows(self, rows: int) -> float:
        """Return the expected number of distinct rows, if unknown positions are uniformly distributed."""
        located = float(self.shares.sum())
        return located + (rows - located) * (1.0 - (1.0 - 1.0 / rows) ** self.unlocated) if rows else 0.0


@dataclass
class NecessaryWork:
    """Operations and bytes on which the outputs of a run depend."""

    products: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Floating-point operations of products, by the stored dtypes of their operands."""
    elementwise: Counter[str] = field(default_factory=Counter)
    """Other floating-point operations, by stored dtype."""
    read: dict[str, int] = field(default_factory=dict)
    """Input -> bytes that are read."""


class Liveness:
    """One pass from the outputs to the inputs.

    Args:
        unknown_share: assumed share of the elements that a mask of unknown values selects.
        updated: storages of inputs that are updated in place; everything that is written to them is needed.
    """

    def __init__(self, *, unknown_share: float, updated: frozenset[int]) -> None:
        self._unknown_share = unknown_share
        self._updated = updated
        self._demands: dict[int, _Demand] = {}
        self._selected_rows: dict[tuple[int, tuple[int, ...]], _SelectedRows] = {}
        self._work = NecessaryWork()
        self.has_unknown_masks = False
        """The work depends on a mask whose values are not known."""

    def run(
        self, steps: Sequence[Step], outputs: Iterable[StridedView], inputs: Mapping[str, StridedView]
    ) -> NecessaryWork:
        """Return the work on which the outputs depend.

        Args:
            steps: all steps of the run, in order.
            inputs: view of each input by name.
        """
        for view in outputs:
            self._add(view)
        for step in reversed(steps):
            self._visit(step)
        for name, view in inputs.items():
            region, unlocated = self._demand(view).region, self._demand(view).unlocated
            self._work.read[name] = max(region.count(), int(unlocated.elements * region.bytes))
        return self._work

    def _visit(self, step: Step) -> None:
        needs = [self._need(view, by_rows=step.kind is Kind.MATRIX) for view in step.writes]
        need = max(needs, key=lambda candidate: candidate.elements, default=_NOTHING)
        if any(view.storage in self._updated for view in step.writes):
            need = _EVERYTHING
        if need.elements <= 0:
            return
        if step.product is not None and step.product_operations:
            self._work.products[step.product] += round(step.product_operations * need.elements)
        if step.elementwise_operations:
            self._work.elementwise[step.elementwise] += round(step.elementwise_operations * need.elements)
        self._reads(step, need)

    def _reads(self, step: Step, need: _Need) -> None:
        match step.kind:
            case Kind.POINTWISE:
                self._follow_pointwise(step, need)
            case Kind.MATRIX:
                first, second, *other_reads = step.reads
                self._add_share(first, _Need(need.rows, need.rows, 1.0))
                self._add_share(second, _Need(need.columns, 1.0, need.columns))
                self._pointwise(other_reads, need, None)
            case Kind.PIECES:
                for part, read in step.pieces:
                    self._pointwise([read], self._need(part), part)
            case Kind.MASK:
                if step.changes:
                    self._replace(step.writes[0])
                for view, mask_share in zip(step.reads, step.mask_shares, strict=True):
                    self._add_share(view, self._behind_mask(mask_share, need))
            case Kind.GATHER:
                assert step.lookup is not None  # noqa: S101 - set for this kind
                self._gather(step.reads[0], step.lookup, need)
                self._pointwise(step.reads[1:], need, None)
            case _:
                for view in step.reads:
                    self._add_share(view, _everywhere(need.elements))

    def _follow_pointwise(self, step: Step, need: _Need) -> None:
        """Follow an operator of equal shapes; a target that it overwrites is not read."""
        target = step.writes[0]
        sources = [view for view in step.reads if not step.changes or view != target]
        self._pointwise(sources, need, target)
        if target.storage in self._updated:
            if step.changes and not step.overwrites:
                self._add(target)
        elif step.overwrites:
            self._replace(target)

    def _replace(self, view: StridedView) -> None:
        """Remove the demand for a view, because an operator replaces its elements."""
        demand = self._demands.get(view.storage)
        if demand is not None and view.storage not in self._updated:
            demand.region.remove(view)
            demand.unlocated = _NOTHING

    def _behind_mask(self, mask_share: MaskShare, need: _Need) -> _Need:
        """Return the need of an operand from which a mask selects."""
        if mask_share.elements is None:
            self.has_unknown_masks = True
            share = self._unknown_share
            return _Need(need.elements * share, need.rows * share, need.columns * share)
        rows, columns = min(need.rows, mask_share.rows), min(need.columns, mask_share.columns)
        return _Need(need.elements * mask_share.elements, rows, columns)

    def _pointwise(self, reads: Sequence[StridedView], need: _Need, result: StridedView | None) -> None:
        """Add the operands' elements at the positions of the result's needed elements, or by share if not located."""
        demand = self._demands.get(result.storage) if result is not None and not need.is_whole else None
        located = demand if demand is not None and not demand.region.empty else None
        if located is not None and located.unlocated.elements > located.region.share(result):  # type: ignore[arg-type]
            located = None
        for view in reads:
            if located is None or result is None or not self._transfer(view, result, located.region):
                self._add_share(view, need)

    def _transfer(self, view: StridedView, result: StridedView, region: ElementRegion) -> bool:
        """Mark an operand's elements at the positions of the result's; return false if they cannot be located."""
        target = self._demand(view).region
        if target.whole:
            return True
        if view.is_plain and result.is_plain and view.shape == result.shape:
            return target.add_scaled(region, view.itemsize, result.itemsize)
        missing = len(result.shape) - len(view.shape)
        shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
        single = tuple(size if stride else 1 for size, stride in zip(shape, strides, strict=True))
        part = StridedView(view.storage, view.storage_bytes, single, strides, view.offset, view.itemsize)
        if missing < 0 or any(size not in {1, length} for size, length in zip(single, result.shape, strict=True)):
            return False
        marks = region.elements_of(result)
        elements = target.elements_of(part) if marks is not None and part.distinct == part.elements else None
        if marks is None or elements is None:
            return False
        for axis, size in enumerate(single):
            if size == 1:
                marks = marks.any(dim=axis, keepdim=True)
        elements |= marks
        return True

    def _gather(self, table: StridedView, lookup: Lookup, need: _Need) -> None:
        """Add the rows that a lookup selects: known rows by position, unknown rows by number."""
        selected = self._selected_rows.setdefault(
            (table.storage, lookup.axes), _SelectedRows(torch.zeros(lookup.rows, dtype=torch.float64))
        )
        if lookup.positions is not None:
            selected.shares[lookup.positions] = selected.shares[lookup.positions].clamp(min=need.elements)
        else:
            selected.unlocated += need.elements * lookup.count
        rows = selected.rows(lookup.rows)
        share = min(1.0, rows / lookup.rows) * lookup.part if lookup.rows else 0.0
        if table.is_whole or table.distinct_bytes == table.storage_bytes:
            self._add_share(table, _Need(share, share, 1.0 if lookup.axes == (0,) else share))
        else:
            self._demand(table).region.add_unlocated(int(share * table.distinct_bytes))

    def _add(self, view: StridedView) -> None:
        self._demand(view).region.add(view)

    def _add_share(self, view: StridedView, need: _Need) -> None:
        """Add the need for a share of a view at unknown positions."""
        if need.elements <= 0:
            return
        if need.is_whole:
            self._add(view)
            return
        demand = self._demand(view)
        if view.distinct_bytes < view.storage_bytes:
            demand.region.add_unlocated(int(need.elements * view.distinct_bytes))
        elif need.elements > demand.unlocated.elements:
            demand.unlocated, demand.shape = need, view.shape

    def _demand(self, view: StridedView) -> _Demand:
        return self._demands.setdefault(view.storage, _Demand(ElementRegion(view.storage_bytes)))

    def _need(self, view: StridedView, *, by_rows: bool = False) -> _Need:
        demand = self._demands.get(view.storage)
        if demand is None:
            return _NOTHING
        share = demand.region.share(view)
        if share >= 1.0:
            return _EVERYTHING
        located = _everywhere(share)
        marks = demand.region.elements_of(view) if by_rows and share > 0 and view.run else None
        if marks is not None and marks.dim() > 1:
            located = _Need(share, share_of(marks.any(-1)), share_of(marks.any(-2)))
        unlocated = demand.unlocated
        if view.distinct_bytes < view.storage_bytes:
            outside = view.storage_bytes - view.distinct_bytes
            min_share = (unlocated.elements * view.storage_bytes - outside) / max(1, view.distinct_bytes)
            unlocated = _everywhere(max(0.0, min_share))
        elif view.shape[-2:] != demand.shape[-2:]:
            unlocated = _everywhere(unlocated.elements)
        return max(located, unlocated, key=lambda need: need.elements)
