"""The part of a reference's run that its outputs need: operators in reverse order, from the outputs to the inputs.

A reference may compute what it never returns, slice what it has computed, or mask it. No kernel has to do that work, so
it counts neither as operations nor as bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.sol.element_regions import ElementRegion, StridedView, share_of
from harness.sol.steps import Kept, Kind, Lookup, Step


@dataclass(frozen=True)
class _Need:
    """Share of a tensor's elements that is needed, and of its rows and columns in which any of them is."""

    elements: float
    rows: float
    columns: float

    @property
    def is_whole(self) -> bool:
        return self.elements >= 1.0


_NOTHING, _EVERYTHING = _Need(0.0, 0.0, 0.0), _Need(1.0, 1.0, 1.0)


@dataclass
class _Demand:
    """Needed elements of one storage."""

    region: ElementRegion
    unlocated: _Need = _NOTHING
    """Of the whole storage, seen as a tensor of `shape`."""
    shape: tuple[int, ...] = ()


@dataclass
class _Taken:
    """Rows that were taken from one table."""

    shares: torch.Tensor
    """Of each row that is known to be taken: the share of it that is needed."""
    unknown: float = 0.0
    """Rows taken at places that are not known."""

    def rows(self, rows: int) -> float:
        """Different rows, in expectation where places are unknown and drawn evenly."""
        known = float(self.shares.sum())
        return known + (rows - known) * (1.0 - (1.0 - 1.0 / rows) ** self.unknown) if rows else 0.0


@dataclass
class Needed:
    """Operations and bytes that the outputs of a run need."""

    products: Counter[tuple[str, str]] = field(default_factory=Counter)
    elementwise: Counter[str] = field(default_factory=Counter)
    read: dict[str, int] = field(default_factory=dict)
    """Input -> bytes."""


class Liveness:
    """One pass from the outputs to the inputs.

    Args:
        unknown_share: the share of elements that a mask of unknown values is taken to let through.
        updated: storages of inputs that are updated in place: all that is written to them is needed.
    """

    def __init__(self, *, unknown_share: float, updated: frozenset[int]) -> None:
        self._unknown_share = unknown_share
        self._updated = updated
        self._demands: dict[int, _Demand] = {}
        self._taken: dict[tuple[int, tuple[int, ...]], _Taken] = {}
        self._needed = Needed()
        self.has_unknown_masks = False
        """Some of what is needed depends on a mask whose values are not known."""

    def run(self, steps: Sequence[Step], outputs: Iterable[StridedView], inputs: Mapping[str, StridedView]) -> Needed:
        """Return what the outputs need of the steps and the inputs."""
        for view in outputs:
            self._add(view)
        for step in reversed(steps):
            self._visit(step)
        for name, view in inputs.items():
            demand = self._demands.get(view.storage)
            self._needed.read[name] = 0 if demand is None else self._bytes(demand)
        return self._needed

    @staticmethod
    def _bytes(demand: _Demand) -> int:
        return max(demand.region.count(), int(demand.unlocated.elements * demand.region.bytes))

    def _visit(self, step: Step) -> None:
        needs = [self._need(view, by_rows=step.kind is Kind.MATRIX) for view in step.writes]
        need = max(needs, key=lambda one: one.elements, default=_NOTHING)
        if any(view.storage in self._updated for view in step.writes):
            need = _EVERYTHING
        if need.elements <= 0:
            return
        if step.product is not None and step.product_operations:
            self._needed.products[step.product] += round(step.product_operations * need.elements)
        if step.elementwise_operations:
            self._needed.elementwise[step.elementwise] += round(step.elementwise_operations * need.elements)
        if step.kind is Kind.PIECES:
            for part, read in step.pieces:
                self._pointwise([read], self._need(part), part)
            return
        self._reads(step, need)

    def _reads(self, step: Step, need: _Need) -> None:
        match step.kind:
            case Kind.POINTWISE:
                self._follow_pointwise(step, need)
            case Kind.MATRIX:
                first, second, *others = step.reads
                self._add_share(first, _Need(need.rows, need.rows, 1.0))
                self._add_share(second, _Need(need.columns, 1.0, need.columns))
                self._pointwise(others, need, None)
            case Kind.MASK:
                if step.changes:
                    self._replace(step.writes[0])
                for view, kept in zip(step.reads, step.kept, strict=True):
                    self._add_share(view, self._through(kept, need))
            case Kind.GATHER:
                assert step.lookup is not None  # noqa: S101 - of its kind
                self._gather(step.reads[0], step.lookup, need)
                self._pointwise(step.reads[1:], need, None)
            case _:
                share = _Need(need.elements, need.elements, need.elements)
                for view in step.reads:
                    self._add_share(view, share)

    def _follow_pointwise(self, step: Step, need: _Need) -> None:
        """An operator of equal shapes; of what it overwrites, nothing is read."""
        target = step.writes[0]
        others = [view for view in step.reads if not step.changes or view != target]
        self._pointwise(others, need, target)
        if target.storage in self._updated:
            if step.changes and not step.overwrites:
                self._add(target)
        elif step.overwrites:
            self._replace(target)

    def _replace(self, view: StridedView) -> None:
        """Forget what is needed of a view: an operator replaces its elements."""
        demand = self._demands.get(view.storage)
        if demand is not None and view.storage not in self._updated:
            demand.region.remove(view)
            demand.unlocated = _NOTHING

    def _through(self, kept: Kept, need: _Need) -> _Need:
        """Needed elements of an operand behind a mask."""
        if kept.elements is None:
            self.has_unknown_masks = True
            share = self._unknown_share
            return _Need(need.elements * share, need.rows * share, need.columns * share)
        return _Need(need.elements * kept.elements, min(need.rows, kept.rows), min(need.columns, kept.columns))

    def _pointwise(self, reads: Sequence[StridedView], need: _Need, result: StridedView | None) -> None:
        """Each element of the operands is needed where the result's is, if that is located."""
        demand = self._demands.get(result.storage) if result is not None and not need.is_whole else None
        located = demand if demand is not None and not demand.region.empty else None
        if located is not None and located.unlocated.elements > located.region.share(result):  # type: ignore[arg-type]
            located = None
        for view in reads:
            if located is None or result is None or not self._transfer(view, result, located.region):
                self._add_share(view, need)

    def _transfer(self, view: StridedView, result: StridedView, region: ElementRegion) -> bool:
        """Mark the elements of an operand at the places of the result's; False where they cannot be located."""
        target = self._demand(view).region
        if target.whole:
            return True
        if view.is_plain and result.is_plain and view.shape == result.shape:
            return target.add_scaled(region, view.itemsize, result.itemsize)
        missing = len(result.shape) - len(view.shape)
        shape, strides = (1,) * missing + view.shape, (0,) * missing + view.strides
        single = tuple(size if stride else 1 for size, stride in zip(shape, strides, strict=True))
        part = StridedView(view.storage, view.storage_bytes, single, strides, view.offset, view.itemsize)
        if missing < 0 or any(size not in {1, other} for size, other in zip(single, result.shape, strict=True)):
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
        """Note the rows that a lookup takes: known ones at their places, unknown ones by their number."""
        taken = self._taken.setdefault(
            (table.storage, lookup.axes), _Taken(torch.zeros(lookup.rows, dtype=torch.float64))
        )
        if lookup.positions is not None:
            taken.shares[lookup.positions] = taken.shares[lookup.positions].clamp(min=need.elements)
        else:
            taken.unknown += need.elements * lookup.count
        rows = taken.rows(lookup.rows)
        share = min(1.0, rows / lookup.rows) * lookup.part if lookup.rows else 0.0
        if table.is_whole or table.distinct_bytes == table.storage_bytes:
            by_row = lookup.axes == (0,)
            self._add_share(table, _Need(share, share, 1.0 if by_row else share))
        else:
            self._demand(table).region.add_unlocated(int(share * table.distinct_bytes))

    def _add(self, view: StridedView) -> None:
        self._demand(view).region.add(view)

    def _add_share(self, view: StridedView, need: _Need) -> None:
        """A share of a view is needed, at places that are not known."""
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
        found = self._demands.get(view.storage)
        if found is None:
            found = self._demands[view.storage] = _Demand(ElementRegion(view.storage_bytes))
        return found

    def _need(self, view: StridedView, *, by_rows: bool = False) -> _Need:
        demand = self._demands.get(view.storage)
        if demand is None:
            return _NOTHING
        share = demand.region.share(view)
        if share >= 1.0:
            return _EVERYTHING
        located = _Need(share, share, share)
        marks = demand.region.elements_of(view) if by_rows and share > 0 and view.run else None
        if marks is not None and marks.dim() > 1:
            located = _Need(share, share_of(marks.any(-1)), share_of(marks.any(-2)))
        unlocated = demand.unlocated
        if view.distinct_bytes < view.storage_bytes:
            outside = view.storage_bytes - view.distinct_bytes
            least = (unlocated.elements * view.storage_bytes - outside) / max(1, view.distinct_bytes)
            unlocated = _Need(max(0.0, least), max(0.0, least), max(0.0, least))
        elif view.shape[-2:] != demand.shape[-2:]:
            unlocated = _Need(unlocated.elements, unlocated.elements, unlocated.elements)
        return max(located, unlocated, key=lambda one: one.elements)
