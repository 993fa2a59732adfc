"""Turns operators that ran into steps: how results depend on operands, and what they cost."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from harness.sol.arguments import OperatorCall
from harness.sol.element_regions import StridedView, share_of, storage_of, view_of
from harness.sol.lookups import lookup_of
from harness.sol.operators import (
    GATHERING,
    GROUPED,
    MASKING,
    OVERWRITING,
    SCATTERING,
    SHAPED_LIKE,
    SOFTMAX_OPERATIONS,
    diagonal_share,
    elementwise_operations,
    is_product,
    operands,
    product_operations,
)
from harness.sol.product_chains import ProductChains
from harness.sol.steps import Kept, Kind, Step
from harness.sol.stored_dtypes import CONSTANT, StoredDtypes, wider
from harness.sol.tensor_values import TensorValues

_HIDDEN = -1e4
"""Values of a mask at or below this one hide what they are added to: softmax makes zeros of them."""
_UNKNOWN = Kept(None)
_ALL = Kept(1.0)


class StepRecording:
    """The steps of one run, in order."""

    def __init__(self, values: TensorValues) -> None:
        self.steps: list[Step] = []
        self.dtypes = StoredDtypes()
        self.autocast: str | None = None
        """The dtype to which torch.autocast casts operands of products; it does nothing to tensors without values."""
        self._values = values
        self._chains = ProductChains()
        self._multiplications: dict[int, Step] = {}
        """Storage -> the multiplication whose result it holds, cast or not."""
        self._nonzero: dict[int, float] = {}
        """Storage -> share of its elements that are not known to be zero, or hidden from a softmax."""

    def step(self, call: OperatorCall) -> Step:
        """Keep one operator; returns its step."""
        overwrites = call.changes and call.name in OVERWRITING
        unread = overwrites or call.name in SHAPED_LIKE or (call.changes and call.name in SCATTERING)
        reads = call.taken[1:] if unread else call.taken
        step = Step(
            call.name,
            _kind(call),
            tuple(view_of(tensor) for tensor in reads),
            tuple(view_of(tensor) for tensor in call.made),
            overwrites=overwrites,
            changes=call.changes,
        )
        self._describe(step, call)
        if is_product(call.packet):
            self._product(step, call)
        else:
            self._elementwise(step, call)
        self.dtypes.record(call.name, call.args, call.taken, call.made)
        self._follow_zeros(step, call)
        self.steps.append(step)
        return step

    def attention(self, taken: Sequence[torch.Tensor], out: torch.Tensor, *, causal: bool) -> None:
        """Keep softmax(q k^T + mask) v as one step. Masked scores are not work."""
        query, key, value = taken[:3]
        mask = taken[3] if len(taken) > 3 else None
        rows, columns = query.shape[-2], key.shape[-2]
        shown = diagonal_share((rows, columns), 0, lower=True) if causal else 1.0
        if mask is not None:
            shown = self._shown(mask)
        scores = math.prod(query.shape[:-1]) * columns * shown
        reads, writes = tuple(view_of(tensor) for tensor in taken), (view_of(out),)
        for other, depth in ((key, query.shape[-1]), (value, value.shape[-1])):
            step = Step("attention", Kind.OTHER, reads, writes, product_operations=2.0 * scores * depth)
            step.product = self.dtypes.dtype(query), self.dtypes.dtype(other)
            self.steps.append(step)
        self.steps[-1].elementwise = self.dtypes.dtype(query)
        self.steps[-1].elementwise_operations = SOFTMAX_OPERATIONS * scores
        self.dtypes.record("attention", (), taken[:3], [out])

    def _shown(self, mask: torch.Tensor) -> float:
        """Share of the scores that a mask lets through, never too large."""
        if mask.dtype is torch.bool:
            return share_of(mask) if self._values.is_known(mask) else 0.0
        return self._share(mask)

    def _share(self, tensor: torch.Tensor) -> float:
        """Share of a tensor's elements that are neither zeros nor hidden, as far as it is known."""
        storage = storage_of(tensor)
        if storage in self._nonzero:
            return self._nonzero[storage]
        if tensor.is_meta or not tensor.is_floating_point() or not self._values.is_known(tensor) or tensor.numel() < 2:
            return 1.0
        return share_of(tensor > _HIDDEN)

    def note_hidden(self, tensor: torch.Tensor, share: float) -> None:
        """Note the share of an input's elements that are not hidden."""
        self._nonzero[storage_of(tensor)] = share

    def _describe(self, step: Step, call: OperatorCall) -> None:
        if step.kind is Kind.PIECES:
            step.pieces = tuple(_pieces(call))
        elif step.kind is Kind.MASK:
            step.kept = tuple(self._kept(call))
        elif call.name in GROUPED and call.args[1].dim() > 2:
            step.kind = Kind.MASK
            used = self._groups_share(call)
            step.kept = tuple(Kept(used, used, used) if tensor is call.args[1] else _ALL for tensor in call.taken)
        elif step.kind is Kind.GATHER:
            step.lookup = lookup_of(call, self._values)

    def _groups_share(self, call: OperatorCall) -> float:
        """Share of the groups that have rows: no more than there are rows, where their sizes are unknown."""
        rows, groups = int(call.args[0].shape[0]), int(call.args[1].shape[0])
        ends = next((tensor for tensor in call.taken if not tensor.is_floating_point()), None)
        if ends is None or not self._values.is_known(ends):
            return min(1.0, float(rows) / max(1, int(groups)))
        sizes: torch.Tensor = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype))
        return share_of(sizes > 0)

    def _kept(self, call: OperatorCall) -> list[Kept]:
        """For each tensor operand of a masking operator, what is let through of it."""
        name, args, taken = call.name, call.args, call.taken
        if name.startswith("tri"):
            diagonal = args[1] if len(args) > 1 else call.kwargs.get("diagonal", 0)
            return [Kept(diagonal_share(taken[0].shape, diagonal, lower=name.startswith("tril")))]
        mask, replaced = (args[0], args[2]) if name == "where" else (args[1], args[0])
        return [_ALL if tensor is mask else self._through(mask, inverted=tensor is replaced) for tensor in taken]

    def _through(self, mask: torch.Tensor, *, inverted: bool = False) -> Kept:
        if not self._values.is_known(mask):
            return _UNKNOWN
        shown = ~mask if inverted else mask
        if mask.dim() < 2 or not mask.numel():
            share = share_of(shown)
            return Kept(share, share, share)
        values = shown.numpy()
        return Kept(share_of(shown), float(values.any(axis=-1).mean()), float(values.any(axis=-2).mean()))

    def _product(self, step: Step, call: OperatorCall) -> None:
        first, second = operands(call.name, call.args)
        step.product = self._cast(first), self._cast(second)
        step.product_operations = product_operations(call) * self._share(first) * self._share(second)
        if call.name in {"mm", "bmm"}:
            self._chains.add(step, first, second, call.made[0])
        if step.kind is Kind.MATRIX:
            both = (storage_of(first), storage_of(second))
            others = [view for view in step.reads if view.storage not in both]
            step.reads = (view_of(first), view_of(second), *others)

    def _cast(self, operand: torch.Tensor) -> str:
        dtype = self.dtypes.dtype(operand)
        return self.autocast if self.autocast and wider(self.autocast, dtype) != self.autocast else dtype

    def _elementwise(self, step: Step, call: OperatorCall) -> None:
        self._chains.pass_on(call)
        step.elementwise_operations = elementwise_operations(call.name, call.taken, call.made)
        dtypes = [self.dtypes.dtype(tensor) for tensor in call.taken if tensor.is_floating_point()]
        step.elementwise = functools.reduce(wider, dtypes, CONSTANT)
        self._join_products(step, call)

    def _join_products(self, step: Step, call: OperatorCall) -> None:
        """A sum of products is a product: a matrix unit does both at once."""
        name, taken, made = call.name, call.taken, call.made
        before = [self._multiplications.get(storage_of(tensor)) for tensor in taken]
        if name in {"mul", "mul_"} and len(taken) == 2 and made[0].is_floating_point():
            step.factors = [one for one in before if one is not None and one.writes[0].elements == made[0].numel()]
            step.product = self.dtypes.dtype(taken[0]), self.dtypes.dtype(taken[1])
            self._multiplications[storage_of(made[0])] = step
        elif name == "_to_copy" and before[0] is not None:
            self._multiplications[storage_of(made[0])] = before[0]
        elif name in {"sum", "mean"} and before and before[0] is not None:
            _absorb(step, before[0])
        elif name in {"add", "add_"} and made[0].is_floating_point():
            outer = next((one for one in before if one is not None and _is_outer(one)), None)
            if outer is not None:
                _absorb(step, outer)

    def _follow_zeros(self, step: Step, call: OperatorCall) -> None:
        """Zeros, and what a softmax turns into zeros, stay where they are in operators of equal shape."""
        if not call.made or not call.made[0].is_floating_point():
            return
        share = self._share_of_result(step, call)
        if share < 1.0 or storage_of(call.made[0]) in self._nonzero:
            self._nonzero[storage_of(call.made[0])] = share

    def _share_of_result(self, step: Step, call: OperatorCall) -> float:
        result = call.made[0]
        if call.name in MASKING:
            branches = [
                (tensor, kept)
                for tensor, kept in zip(call.taken, step.kept, strict=True)
                if kept is not _ALL and (tensor.numel() > 1 or result.numel() == 1)
            ]
            if len(branches) != 1 or branches[0][1].elements is None:
                return 1.0
            return self._share(branches[0][0]) * branches[0][1].elements
        if step.kind is Kind.MATRIX or step.name in {"sum", "mean"}:
            return 1.0
        same = [tensor for tensor in call.taken if tensor.is_floating_point() and 1 < tensor.numel() <= result.numel()]
        shares = [self._share(tensor) for tensor in same if result.numel() % tensor.numel() == 0]
        return min(shares, default=1.0)


def _absorb(step: Step, multiplication: Step) -> None:
    """Make a sum and the multiplications before it one product: these cost nothing of their own then."""
    step.product = multiplication.product
    step.product_operations = 2.0 * multiplication.writes[0].elements
    step.elementwise_operations = 0
    remaining = [multiplication]
    while remaining:
        factor = remaining.pop()
        factor.elementwise_operations = 0
        remaining += [one for one in factor.factors if one.elementwise_operations]


def _is_outer(multiplication: Step) -> bool:
    """True if both factors are repeated: their product has more elements than either."""
    return multiplication.writes[0].elements > max(view.elements for view in multiplication.reads)


def _kind(call: OperatorCall) -> Kind:
    for names, kind in _KINDS:
        if call.name in names and call.taken:
            return kind
    if not call.taken or len(call.made) != 1 or call.name in _MIXING:
        return Kind.OTHER
    sizes = [tuple(tensor.shape) for tensor in call.taken]
    return Kind.POINTWISE if _broadcasts(sizes, tuple(call.made[0].shape)) else Kind.OTHER


def _broadcasts(sizes: Sequence[tuple[int, ...]], shape: tuple[int, ...]) -> bool:
    """Return true if operands of these sizes give a result of this shape, element by element."""
    return all(
        len(size) <= len(shape) and all(a in {1, b} for a, b in zip(reversed(size), reversed(shape), strict=False))
        for size in sizes
    )


_KINDS = (
    ({"mm", "bmm", "addmm", "baddbmm", "_scaled_mm", "_scaled_mm_v2", "_int_mm"}, Kind.MATRIX),
    ({"cat", "stack"}, Kind.PIECES),
    (MASKING, Kind.MASK),
    (GATHERING, Kind.GATHER),
    (SCATTERING, Kind.SCATTER),
)
_MIXING = {
    "_softmax", "_log_softmax", "cumsum", "cumprod", "flip", "roll", "sort", "topk", "_fft_c2c", "_fft_r2c",
    "logcumsumexp", "cummax", "cummin", "constant_pad_nd", "repeat", "convolution", "_unsafe_view", "_reshape_copy",
    "_fused_rms_norm", "native_layer_norm", "sum", "mean", "amax", "amin", "avg_pool2d", "upsample_bilinear2d",
}  # fmt: skip
"""Operators whose results can have the shape of an operand and depend on it elsewhere too."""


def _pieces(call: OperatorCall) -> list[tuple[StridedView, StridedView]]:
    """Parts of a concatenation with the operands that they are."""
    axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
    out = call.made[0]
    if call.name == "stack":
        return [(view_of(out.select(axis, place)), view_of(tensor)) for place, tensor in enumerate(call.taken)]
    pieces, begin = [], 0
    for tensor in call.taken:
        if tensor.dim() != out.dim():  # torch allows empty operands of any shape
            continue
        pieces.append((view_of(out.narrow(axis, begin, tensor.shape[axis])), view_of(tensor)))
        begin += tensor.shape[axis]
    return pieces
