"""Tables of torch's operators: free ones, those that select elements, and the operations of all others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.utils.flop_counter import flop_registry

from harness.sol.arguments import OperatorCall, Untyped

SELECTING = {
    "slice", "select", "narrow", "index", "index_select", "gather", "take", "take_along_dim", "embedding", "where",
    "masked_fill", "masked_fill_", "masked_select", "tril", "triu", "tril_", "triu_", "unfold", "as_strided",
    "diagonal", "max_pool2d_with_indices", "scatter", "index_put", "index_put_", "slice_scatter", "select_scatter",
    "index_copy", "index_fill", "masked_scatter", "max_pool3d_with_indices",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "split", "split_with_sizes",
    "unbind",
}  # fmt: skip
"""Operators whose results may not depend on every element of their operands: they drop elements or choose some."""
FREE = {
    "clone", "copy_", "_to_copy", "contiguous", "cat", "stack", "fill_", "zero_", "zeros_like", "empty_like",
    "full_like", "ones_like", "new_empty", "new_zeros", "new_ones", "new_full", "new_empty_strided", "arange", "empty",
    "zeros", "ones", "full", "scalar_tensor", "constant_pad_nd", "lift_fresh", "lift_fresh_copy", "bitwise_and",
    "bitwise_or", "bitwise_xor", "bitwise_not", "logical_not", "logical_and", "logical_or", "logical_xor", "eq", "ne",
    "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "abs", "neg", "sign", "flip", "roll", "repeat", "tile",
    "repeat_interleave", "_local_scalar_dense", "empty_strided", "copy", "detach", "_unsafe_view", "_reshape_copy",
    "view_copy", "view_as_complex", "view_as_real", "index_copy_", "index_fill_", "scatter_", "_index_put_impl_",
    "masked_scatter_", "sort", "topk", "argsort", "argmax", "argmin", "bucketize", "searchsorted",
    "nonzero", "one_hot", "any", "all",
    "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "im2col", "unfold_copy", "block_diag", "rand", "randn", "rand_like", "randn_like", "randint",
    "bernoulli", "complex", "polar", "unsafe_split", "unsafe_chunk", "_pin_memory", "resize_", "set_", "alias",
    "permute_copy", "transpose_copy", "expand_copy", "slice_copy", "select_copy", "_embedding_bag",
    "_embedding_bag_forward_only",
} | SELECTING  # fmt: skip
"""Operators that move, compare, sort or negate: they have no floating-point operations."""
SCATTERING = {
    "index_put_", "index_put", "_index_put_impl_", "index_copy_", "index_copy", "index_add_", "index_add",
    "index_fill_", "scatter_", "scatter", "scatter_add_", "scatter_add", "masked_scatter_", "scatter_reduce_",
    "scatter_reduce", "index_reduce_", "index_reduce",
}  # fmt: skip
"""Operators that write elements of their first argument: as many as their later arguments have."""
SHAPED_LIKE = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
"""Operators that use the shape or dtype of their first argument, but none of its values."""
OVERWRITING = {"copy_", "fill_", "zero_"}
"""Operators that write every element of their first argument and read none of them."""
GATHERING = {
    "index", "index_select", "gather", "take", "embedding", "_embedding_bag", "_embedding_bag_forward_only",
}  # fmt: skip
"""Operators that read elements of their first argument (embedding: its table) at the positions in an index."""
MASKING = {"where", "masked_fill", "masked_fill_", "tril", "triu", "tril_", "triu_"}
"""Operators that replace elements at positions that a mask or a diagonal selects."""
_PER_ELEMENT = {
    "native_layer_norm": 7, "native_group_norm": 7, "native_batch_norm": 7, "_softmax": 4, "_log_softmax": 4, "silu": 4,
    "sigmoid": 3, "gelu": 6, "var": 4, "var_mean": 4, "std": 4, "addcmul": 3, "addcdiv": 3, "lerp": 3,
    "_fused_rms_norm": 4,
}  # fmt: skip
"""Operations per input element of operators with several; every other operator has one."""
HIDDEN_BELOW = -1e4
"""Values of an additive mask at or below this one hide the scores that they are added to: softmax makes them zero."""
SOFTMAX_OPERATIONS = _PER_ELEMENT["_softmax"]
_ADDING = {"addmm", "baddbmm", "addmv", "addbmm", "addr"}
"""Products that are added to their first argument; the next two are the operands. Others begin with the operands."""
_VECTOR_PRODUCTS = {"mv": 0, "addmv": 1, "dot": 0, "vdot": 0}
"""Products that are not in torch's table: position of the matrix, which has two operations per element."""
_PLAIN = {"_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_scaled_mm", "_scaled_mm_v2"}
"""Products of the first operand's rows with the second's columns, which torch's table does not have, or not for packed
values."""
GROUPED = {"_grouped_mm", "_scaled_grouped_mm"}
"""Products of groups of rows, each with a separate matrix."""


def is_product(packet: Untyped) -> bool:
    """Return true for an operator that matrix units execute."""
    name = packet.__name__
    return packet in flop_registry or name in _VECTOR_PRODUCTS or name in _PLAIN


def product_operands(name: str, args: Sequence[Untyped]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors that a product multiplies."""
    first = 1 if name in _ADDING else 0
    return args[first], args[first + 1]


def product_operations(call: OperatorCall) -> int:
    """Return the floating-point operations of a product: two for each necessary multiplication.

    Taps of a convolution in its zero padding are not counted.
    """
    name, args = call.name, call.args
    if name in _VECTOR_PRODUCTS:
        return 2 * int(args[_VECTOR_PRODUCTS[name]].numel())
    if name in _PLAIN:  # in a grouped product, each row of the first operand is multiplied by one matrix
        packed = 2 if args[0].dtype is torch.float4_e2m1fn_x2 else 1
        return 2 * packed * int(args[0].numel()) * int(args[1].shape[-1])
    out = call.results[0] if len(call.results) == 1 else tuple(call.results)
    total = int(flop_registry[call.packet](*args, **call.kwargs, out_val=out))
    if name in {"convolution", "_convolution"} and not args[6]:
        total = int(total * _taps_share(args, call.results[0]))
    return total


def _taps_share(args: Sequence[Untyped], out: torch.Tensor) -> float:
    """Return the share of a convolution's taps that are outside of the padding."""
    source, weight, _, stride, padding, dilation = args[:6]
    share = 1.0
    for axis in range(2, source.dim()):
        step, pad, spread = (sizes[min(axis - 2, len(sizes) - 1)] for sizes in (stride, padding, dilation))
        taps, length = weight.shape[axis], source.shape[axis]
        places = out.shape[axis]
        if places * taps <= _MAX_TAPS:
            starts = [place * step - pad for place in range(places)]
            inside = sum(0 <= start + tap * spread < length for start in starts for tap in range(taps))
        else:
            inside = places * taps - 2 * pad * taps
        share *= max(0, inside) / (places * taps) if places else 0.0
    return share


_MAX_TAPS = 2**16
"""Taps along one axis that are checked one by one. For more taps, all that may be in the padding are not counted."""


def elementwise_operations(name: str, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> int:
    """Return the floating-point operations of an operator that is not a product; 0 if it only moves or compares.

    Args:
        results: tensors that it returned.
    """
    floats = [tensor for tensor in operands if tensor.is_floating_point()]
    if not floats or name in FREE:
        return 0
    if name in SCATTERING:
        return max((tensor.numel() for tensor in floats[1:]), default=0)
    per_element = _PER_ELEMENT.get(name.removesuffix("_") if not name.startswith("_") else name, 1)
    return per_element * max(tensor.numel() for tensor in [*floats, *results])


def diagonal_share(shape: Sequence[int], diagonal: int, *, lower: bool) -> float:
    """Return the share of a matrix' elements that `tril` (or `triu`) keeps.

    Args:
        shape: shape of the tensor; the last two axes are the matrix.
        diagonal: number of the diagonal, as in torch.
        lower: true for `tril`.
    """
    rows, columns = shape[-2], shape[-1]
    if not rows or not columns:
        return 1.0
    end = diagonal + 1 if lower else diagonal
    before = sum(min(max(row + end, 0), columns) for row in range(rows))  # `triu` removes these elements
    return (before if lower else rows * columns - before) / (rows * columns)
