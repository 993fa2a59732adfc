"""Tables of torch's operators: which are free, which select elements, and how many operations the others cost."""

from __future__ import annotations

import math
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
"""Operators after which an element of what went in may not matter to what comes out: they drop some, or choose."""
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
"""Operators that move, compare, sort or flip signs: no floating-point operations."""
SCATTERING = {
    "index_put_", "index_put", "_index_put_impl_", "index_copy_", "index_copy", "index_add_", "index_add",
    "index_fill_", "scatter_", "scatter", "scatter_add_", "scatter_add", "masked_scatter_", "scatter_reduce_",
    "scatter_reduce", "index_reduce_", "index_reduce",
}  # fmt: skip
"""Operators that write some elements of what they are given first: as many as they are given further on."""
SHAPED_LIKE = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
    "new_zeros", "new_ones", "new_full", "new_empty_strided",
}  # fmt: skip
"""Operators that take the shape or dtype of what they are given first, and none of its values."""
OVERWRITING = {"copy_", "fill_", "zero_"}
"""Operators that write every element of what they are given first and read none of it."""
GATHERING = {
    "index", "index_select", "gather", "take", "embedding", "_embedding_bag", "_embedding_bag_forward_only",
}  # fmt: skip
"""Operators that read elements of what they are given first (embedding: its table), at places that an index holds."""
MASKING = {"where", "masked_fill", "masked_fill_", "tril", "triu", "tril_", "triu_"}
"""Operators that replace elements at places that a mask or a diagonal gives."""
_PER_ELEMENT = {
    "native_layer_norm": 7, "native_group_norm": 7, "native_batch_norm": 7, "_softmax": 4, "_log_softmax": 4, "silu": 4,
    "sigmoid": 3, "gelu": 6, "var": 4, "var_mean": 4, "std": 4, "addcmul": 3, "addcdiv": 3, "lerp": 3,
    "_fused_rms_norm": 4,
}  # fmt: skip
"""Operations for each element that goes in, where an operator is several; every other counts one."""
SOFTMAX_OPERATIONS = _PER_ELEMENT["_softmax"]
_OPERANDS = {
    "mm": (0, 1), "bmm": (0, 1), "_scaled_mm": (0, 1), "_scaled_mm_v2": (0, 1), "_int_mm": (0, 1), "addmm": (1, 2),
    "baddbmm": (1, 2), "mv": (0, 1), "dot": (0, 1), "vdot": (0, 1), "addmv": (1, 2), "_grouped_mm": (0, 1),
    "_scaled_grouped_mm": (0, 1), "addbmm": (1, 2), "addr": (1, 2),
}  # fmt: skip
"""Places of a product's two operands; of every other product they are the first two."""
_VECTOR_PRODUCTS = {"mv": 0, "addmv": 1, "dot": 0, "vdot": 0}
"""Products that torch's own table lacks: two operations for each element of the matrix, which is at this place."""
_PLAIN = {"_grouped_mm", "_scaled_grouped_mm", "_int_mm", "_scaled_mm", "_scaled_mm_v2"}
"""Products of the first operand's rows with the second's columns. torch's table lacks them, or packed values."""
GROUPED = {"_grouped_mm", "_scaled_grouped_mm"}
"""Products of groups of rows, each with a matrix of its own."""


def is_product(packet: Untyped) -> bool:
    """Return true for operators that matrix units do."""
    name = packet.__name__
    return packet in flop_registry or name in _VECTOR_PRODUCTS or name in _PLAIN


def operands(name: str, args: Sequence[Untyped]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two tensors that a product multiplies."""
    first, second = _OPERANDS.get(name, (0, 1))
    return args[first], args[second]


def product_operations(call: OperatorCall) -> int:
    """Return the floating-point operations of a product: two for each multiplication that it needs.

    Taps of a convolution in its zero padding do not count.
    """
    name, args = call.name, call.args
    if name in _VECTOR_PRODUCTS:
        return 2 * int(args[_VECTOR_PRODUCTS[name]].numel())
    if name in _PLAIN:  # of grouped products, each row of the first meets one of the groups' matrices
        packed = 2 if args[0].dtype is torch.float4_e2m1fn_x2 else 1
        return 2 * packed * int(args[0].numel()) * int(args[1].shape[-1])
    out = call.made[0] if len(call.made) == 1 else tuple(call.made)
    total = int(flop_registry[call.packet](*args, **call.kwargs, out_val=out))
    if name in {"convolution", "_convolution"} and not args[6]:
        total = int(total * _taps_share(args, call.made[0]))
    return total


def _taps_share(args: Sequence[Untyped], out: torch.Tensor) -> float:
    """Share of a convolution's taps that are outside the padding."""
    source, weight, _, stride, padding, dilation = args[:6]
    share = 1.0
    for axis in range(2, source.dim()):
        step, pad, spread = (one[min(axis - 2, len(one) - 1)] for one in (stride, padding, dilation))
        taps, length = weight.shape[axis], source.shape[axis]
        inside = (
            sum(
                0 <= place * step + tap * spread - pad < length
                for place in range(out.shape[axis])
                for tap in range(taps)
            )
            if out.shape[axis] * taps <= _MOST_TAPS
            else out.shape[axis] * taps - 2 * pad * taps
        )
        share *= max(0, inside) / (out.shape[axis] * taps) if out.shape[axis] else 0.0
    return share


_MOST_TAPS = 2**16
"""Taps along one axis that are looked at one by one; of longer ones all that could be padding is left out."""


def elementwise_operations(name: str, taken: Sequence[torch.Tensor], made: Sequence[torch.Tensor]) -> int:
    """Return the floating-point operations of an operator that is not a product; 0 if it only moves or compares."""
    floats = [tensor for tensor in taken if tensor.is_floating_point()]
    if not floats or name in FREE:
        return 0
    if name in SCATTERING:
        return max((tensor.numel() for tensor in floats[1:]), default=0)
    per_element = _PER_ELEMENT.get(name.removesuffix("_") if not name.startswith("_") else name, 1)
    return per_element * max(tensor.numel() for tensor in [*floats, *made])


def diagonal_share(shape: Sequence[int], diagonal: int, *, lower: bool) -> float:
    """Return the share of a matrix' elements that `tril` (or `triu`) keeps."""
    rows, columns = shape[-2], shape[-1]
    if not rows or not columns:
        return 1.0
    kept = sum(min(max(row + diagonal + 1, 0), columns) for row in range(rows))
    if not lower:
        kept = math.prod((rows, columns)) - sum(min(max(row + diagonal, 0), columns) for row in range(rows))
    return kept / (rows * columns)
