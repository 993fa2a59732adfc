"""Convert executed operators to steps: the dependence of results on operands, and the operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch

from harness.sol.arguments import OperatorCall
from harness.sol.element_regions import StridedView, share_of, storage_of, view_of
from harness.sol.operators import (
    GATHERING,
    GROUPED,
    HIDDEN_BELOW,
    MASKING,
    OVERWRITING,
    SCATTERING,
    SHAPED_LIKE,
    SOFTMAX_OPERATIONS,
    diagonal_share,
    elementwise_operations,
    is_product,
    product_operands,
    product_operations,
)
from harness.sol.product_chains import ProductChains
from harness.sol.steps import Kind, Lookup, MaskShare, Step
from harness.sol.stored_dtypes import CONSTANT, StoredDtypes, wider
from harness.sol.tensor_values import TensorValues

_ALL = MaskShare(1.0)


class StepRecording:
    """The steps of one run, in order."""

    def __init__(self, values: TensorValues) -> None:
        self.steps: list[Step] = []
        self.dtypes = StoredDtypes()
        self.autocast: str | None = None
        """Dtype to which torch.autocast casts operands of products. It has no effect on tensors without values."""
        self._values = values
        self._chains = ProductChains()
        self._multiplications: dict[int, Step] = {}
        """Storage -> multiplication whose result it contains, cast or not."""
        self._nonzero: dict[int, float] = {}
        """Storage -> share of its elements that are neither known zeros nor hidden from a softmax."""

    def step(self, call: OperatorCall) -> Step:
        """Append an operator and return its step."""
        overwrites = call.changes and call.name in OVERWRITING
        is_first_unread = overwrites or call.name in SHAPED_LIKE or (call.changes and call.name in SCATTERING)
        reads = call.operands[1:] if is_first_unread else call.operands
        step = Step(
            _kind(call),
            tuple(view_of(tensor) for tensor in reads),
            tuple(view_of(tensor) for tensor in call.results),
            overwrites=overwrites,
            changes=call.changes,
        )
        self._describe(step, call)
        if is_product(call.packet):
            self._product(step, call)
        else:
            self._elementwise(step, call)
        self.dtypes.record(call.name, call.args, call.operands, call.results)
        self._follow_zeros(step, call)
        self.steps.append(step)
        return step

    def attention(self, operands: Sequence[torch.Tensor], out: torch.Tensor, *, causal: bool) -> None:
        """Append fused attention, softmax(q k^T + mask) v. Masked scores are not counted.

        Args:
            operands: query, key, value, and a mask if there is one.
            causal: scores above the diagonal are masked.
        """
        query, key, value = operands[:3]
        mask = operands[3] if len(operands) > 3 else None
        rows, columns = query.shape[-2], key.shape[-2]
        visible_share = diagonal_share((rows, columns), 0, lower=True) if causal else 1.0
        if mask is not None and mask.dtype is torch.bool:
            visible_share = share_of(mask) if self._values.is_known(mask) else 0.0
        elif mask is not None:
            visible_share = self._nonzero_share(mask)
        scores = math.prod(query.shape[:-1]) * columns * visible_share
        reads, writes = tuple(view_of(tensor) for tensor in operands), (view_of(out),)
        for second, depth in ((key, query.shape[-1]), (value, value.shape[-1])):
            step = Step(Kind.OTHER, reads, writes, product_operations=2.0 * scores * depth)
            step.product = self.dtypes.dtype(query), self.dtypes.dtype(second)
            self.steps.append(step)
        self.steps[-1].elementwise = self.dtypes.dtype(query)
        self.steps[-1].elementwise_operations = SOFTMAX_OPERATIONS * scores
        self.dtypes.record("attention", (), operands[:3], [out])

    def _nonzero_share(self, tensor: torch.Tensor) -> float:
        """Return the share of a tensor's elements that are neither known zeros nor hidden."""
        storage = storage_of(tensor)
        if storage in self._nonzero:
            return self._nonzero[storage]
        if tensor.is_meta or not tensor.is_floating_point() or not self._values.is_known(tensor) or tensor.numel() < 2:
            return 1.0
        return share_of(tensor > HIDDEN_BELOW)

    def set_visible_share(self, tensor: torch.Tensor, share: float) -> None:
        """Set the share of an input's elements that are not hidden from a softmax."""
        self._nonzero[storage_of(tensor)] = share

    def _describe(self, step: Step, call: OperatorCall) -> None:
        if step.kind is Kind.PIECES:
            step.pieces = tuple(_pieces(call))
        elif step.kind is Kind.MASK:
            step.mask_shares = tuple(self._mask_shares(call))
        elif call.name in GROUPED and call.args[1].dim() > 2:
            step.kind = Kind.MASK
            share = self._groups_share(call)
            groups = MaskShare(share, share, share)
            step.mask_shares = tuple(groups if tensor is call.args[1] else _ALL for tensor in call.operands)
        elif step.kind is Kind.GATHER:
            step.lookup = _lookup_of(call, self._values)

    def _groups_share(self, call: OperatorCall) -> float:
        """Return the share of groups with rows; if their sizes are unknown, at most the number of rows."""
        rows, groups = int(call.args[0].shape[0]), int(call.args[1].shape[0])
        ends = next((tensor for tensor in call.operands if not tensor.is_floating_point()), None)
        if ends is None or not self._values.is_known(ends):
            return min(1.0, float(rows) / max(1, int(groups)))
        sizes: torch.Tensor = torch.diff(ends, prepend=torch.zeros(1, dtype=ends.dtype))
        return share_of(sizes > 0)

    def _mask_shares(self, call: OperatorCall) -> list[MaskShare]:
        """Return the share that a masking operator selects from each tensor operand."""
        name, args, operands = call.name, call.args, call.operands
        if name.startswith("tri"):
            diagonal = args[1] if len(args) > 1 else call.kwargs.get("diagonal", 0)
            return [MaskShare(diagonal_share(operands[0].shape, diagonal, lower=name.startswith("tril")))]
        mask, replaced = (args[0], args[2]) if name == "where" else (args[1], args[0])
        return [
            _ALL if tensor is mask else self._selected_share(mask, inverted=tensor is replaced) for tensor in operands
        ]

    def _selected_share(self, mask: torch.Tensor, *, inverted: bool) -> MaskShare:
        if not self._values.is_known(mask):
            return MaskShare(None)
        selected = ~mask if inverted else mask
        share = share_of(selected)
        if mask.dim() < 2 or not mask.numel():
            return MaskShare(share, share, share)
        values = selected.numpy()
        return MaskShare(share, float(values.any(axis=-1).mean()), float(values.any(axis=-2).mean()))

    def _product(self, step: Step, call: OperatorCall) -> None:
        first, second = product_operands(call.name, call.args)
        step.product = self._cast(first), self._cast(second)
        step.product_operations = product_operations(call) * self._nonzero_share(first) * self._nonzero_share(second)
        if call.name in {"mm", "bmm"}:
            self._chains.add(step, first, second, call.results[0])
        if step.kind is Kind.MATRIX:
            factors = (view_of(first), view_of(second))
            storages = {view.storage for view in factors}
            step.reads = (*factors, *(view for view in step.reads if view.storage not in storages))

    def _cast(self, operand: torch.Tensor) -> str:
        dtype = self.dtypes.dtype(operand)
        return self.autocast if self.autocast and wider(self.autocast, dtype) != self.autocast else dtype

    def _elementwise(self, step: Step, call: OperatorCall) -> None:
        self._chains.add_scaled(call)
        step.elementwise_operations = elementwise_operations(call.name, call.operands, call.results)
        dtypes = [self.dtypes.dtype(tensor) for tensor in call.operands if tensor.is_floating_point()]
        step.elementwise = functools.reduce(wider, dtypes, CONSTANT)
        self._join_products(step, call)

    def _join_products(self, step: Step, call: OperatorCall) -> None:
        """Combine multiplications and their sum into a product, which a matrix unit computes in one operation."""
        name, operands, results = call.name, call.operands, call.results
        multiplications = [self._multiplications.get(storage_of(tensor)) for tensor in operands]
        if name in {"mul", "mul_"} and len(operands) == 2 and results[0].is_floating_point():
            elements = results[0].numel()
            step.factors = [factor for factor in multiplications if factor and factor.writes[0].elements == elements]
            step.product = self.dtypes.dtype(operands[0]), self.dtypes.dtype(operands[1])
            self._multiplications[storage_of(results[0])] = step
        elif name == "_to_copy" and multiplications[0] is not None:
            self._multiplications[storage_of(results[0])] = multiplications[0]
        elif name in {"sum", "mean"} and multiplications and multiplications[0] is not None:
            _combine(step, multiplications[0])
        elif name in {"add", "add_"} and results[0].is_floating_point():
            outer = next((factor for factor in multiplications if factor and _is_outer(factor)), None)
            if outer is not None:
                _combine(step, outer)

    def _follow_zeros(self, step: Step, call: OperatorCall) -> None:
        """Store the share of nonzero elements: zeros remain at their positions in operators of equal shapes."""
        if not call.results or not call.results[0].is_floating_point():
            return
        share = self._share_of_result(step, call)
        if share < 1.0 or storage_of(call.results[0]) in self._nonzero:
            self._nonzero[storage_of(call.results[0])] = share

    def _share_of_result(self, step: Step, call: OperatorCall) -> float:
        result = call.results[0]
        if call.name in MASKING:
            branches = [
                (tensor, mask_share)
                for tensor, mask_share in zip(call.operands, step.mask_shares, strict=True)
                if mask_share is not _ALL and (tensor.numel() > 1 or result.numel() == 1)
            ]
            if len(branches) != 1 or branches[0][1].elements is None:
                return 1.0
            return self._nonzero_share(branches[0][0]) * branches[0][1].elements
        if step.kind is Kind.MATRIX or call.name in {"sum", "mean"}:
            return 1.0
        candidates = [
            tensor for tensor in call.operands if tensor.is_floating_point() and 1 < tensor.numel() <= result.numel()
        ]
        shares = [self._nonzero_share(tensor) for tensor in candidates if result.numel() % tensor.numel() == 0]
        return min(shares, default=1.0)


def _combine(step: Step, multiplication: Step) -> None:
    """Convert a sum and the earlier multiplications to one product, in which these have no separate operations."""
    step.product = multiplication.product
    step.product_operations = 2.0 * multiplication.writes[0].elements
    step.elementwise_operations = 0
    remaining = [multiplication]
    while remaining:
        factor = remaining.pop()
        factor.elementwise_operations = 0
        remaining += [earlier for earlier in factor.factors if earlier.elementwise_operations]


def _is_outer(multiplication: Step) -> bool:
    """Return true if both factors are broadcast, so that their product has more elements than each."""
    return multiplication.writes[0].elements > max(view.elements for view in multiplication.reads)


def _kind(call: OperatorCall) -> Kind:
    for names, kind in _KINDS:
        if call.name in names and call.operands:
            return kind
    if not call.operands or len(call.results) != 1 or call.name in _MIXING:
        return Kind.OTHER
    shape = call.results[0].shape
    return Kind.POINTWISE if all(_broadcasts(tensor.shape, shape) for tensor in call.operands) else Kind.OTHER


def _broadcasts(size: torch.Size, shape: torch.Size) -> bool:
    pairs = zip(reversed(size), reversed(shape), strict=False)
    return len(size) <= len(shape) and all(length in {1, result_length} for length, result_length in pairs)


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
"""Operators whose results may have the shape of an operand, but depend on its elements at other positions."""


def _pieces(call: OperatorCall) -> list[tuple[StridedView, StridedView]]:
    """Return the parts of a concatenation with their operands."""
    axis = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
    out = call.results[0]
    if call.name == "stack":
        return [(view_of(out.select(axis, position)), view_of(tensor)) for position, tensor in enumerate(call.operands)]
    pieces, begin = [], 0
    for tensor in call.operands:
        if tensor.dim() != out.dim():  # torch permits empty operands of any shape
            continue
        pieces.append((view_of(out.narrow(axis, begin, tensor.shape[axis])), view_of(tensor)))
        begin += tensor.shape[axis]
    return pieces


def _lookup_of(call: OperatorCall, values: TensorValues) -> Lookup:
    """Return the lookup of a gathering operator; for `gather` and `take` a row is one element.

    Args:
        call: the operator; its first tensor is the table.
    """
    name, args, table, out = call.name, call.args, call.operands[0], call.results[0]
    if "embedding" in name or name == "index_select":
        axis, index = (args[1] % max(1, table.dim()), args[2]) if name == "index_select" else (0, args[1])
        rows = table.shape[axis] if table.dim() else 1
        positions = torch.unique(index).long() if values.is_known(index) else None
        return Lookup(rows, index.numel(), positions, (axis,))
    if name == "index":
        return _index_lookup(args[1], table, out, values)
    if name == "take" or not table.dim():
        return Lookup(table.numel(), out.numel(), None, (-1,))
    size, count = table.shape[args[1]], out.shape[args[1]]
    lanes, used_lanes = table.numel() // max(1, size), out.numel() // max(1, count)
    return Lookup(size, count, None, (-1, args[1]), min(1.0, used_lanes / max(1, lanes)))


def _index_lookup(
    indices: Sequence[torch.Tensor | None], table: torch.Tensor, out: torch.Tensor, values: TensorValues
) -> Lookup:
    """Return the lookup of `table[i, :, j]`; a mask indexes as many axes as it has."""
    indexed = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(indexed) == 1 and indexed[0][1].dtype is torch.bool:
        axis, mask = indexed[0]
        axes = tuple(range(axis, axis + mask.dim()))
        positions = torch.nonzero(mask.flatten()).flatten() if values.is_known(mask) else None
        rows = mask.numel()
    else:
        axes = tuple(axis for axis, _ in indexed)
        rows = math.prod(table.shape[axis] for axis in axes)
        positions = _joint_positions([index for _, index in indexed], [table.shape[axis] for axis in axes], values)
    return Lookup(rows, out.numel() // max(1, table.numel() // max(1, rows)), positions, axes)


def _joint_positions(
    indices: Sequence[torch.Tensor], sizes: Sequence[int], values: TensorValues
) -> torch.Tensor | None:
    """Return the distinct positions in the flattened indexed axes; None if an index is not known."""
    if not all(values.is_known(index) and index.dtype is not torch.bool for index in indices):
        return None
    joint = torch.zeros((), dtype=torch.int64)
    for index, size in zip(indices, sizes, strict=True):
        joint = joint * size + index.long() % max(1, size)
    unique: torch.Tensor = torch.unique(joint)
    return unique
