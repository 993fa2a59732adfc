"""Attention in float64 whose matrix of scores is computed by blocks.

Torch has no fused attention for float64 on a GPU: it stores all scores, which can take a hundred times the memory of
the operands. A block of queries needs only its own scores, because a softmax is over the keys of one query.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.utils.checkpoint import checkpoint

from harness.sol.arguments import Untyped

BLOCK_BYTES = 2**28
"""Largest number of bytes of the scores of one block."""
_WORKSPACE_BLOCKS = 3
"""Memory of an attention in blocks: the scores, their softmax, and copies of the operands or a mask."""
_HIDDEN = float("-inf")


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return what `torch.nn.functional.scaled_dot_product_attention` returns.

    Calls whose scores fit into one block, and those with dropout, are torch's own.

    Args:
        query: float64 (..., heads, queries, width).
        key: (..., heads, keys, width).
        value: (..., heads, keys, value width).
        attn_mask: bool (true: the key is visible) or floats that are added to the scores; broadcastable to
            (..., heads, queries, keys).
        dropout_p: probability of dropout.
        is_causal: query i sees the keys up to i.
        scale: factor of the scores; None for 1 / sqrt(width).
        enable_gqa: several heads of the query share one of the key and of the value.
    """
    shapes = [tensor.shape for tensor in (query, key, value)]
    is_torchs_own = dropout_p > 0.0 or (is_causal and attn_mask is not None) or min(map(len, shapes)) < 2
    if is_torchs_own or score_bytes(query, key) <= BLOCK_BYTES:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if not enable_gqa or query.shape[-3] == key.shape[-3] == value.shape[-3]:
        return _by_blocks(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    heads, shared = query.shape[-3], key.shape[-3]
    if value.shape[-3] != shared:
        key, value = (tensor.repeat_interleave(heads // tensor.shape[-3], -3) for tensor in (key, value))
        return _by_blocks(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    if attn_mask is not None and attn_mask.dim() > 2:
        has_heads = attn_mask.shape[-3] == heads
        attn_mask = _with_groups(attn_mask, shared) if has_heads else attn_mask.unsqueeze(-3)
    query, key, value = _with_groups(query, shared), key.unsqueeze(-3), value.unsqueeze(-3)
    return _by_blocks(query, key, value, attn_mask, is_causal=is_causal, scale=scale).flatten(-4, -3)


def score_bytes(query: torch.Tensor, key: torch.Tensor) -> int:
    """Return the bytes of all scores in float64.

    Args:
        query: as of `attention`, in any dtype.
        key: the same.
    """
    heads = max(math.prod(query.shape[:-2]), math.prod(key.shape[:-2]))
    return heads * query.shape[-2] * key.shape[-2] * torch.float64.itemsize


def workspace_bytes(query: torch.Tensor, key: torch.Tensor) -> int:
    """Return an upper limit of the memory that `attention` needs besides its operands and its result.

    Args:
        query: as of `attention`, in any dtype.
        key: the same.
    """
    return _WORKSPACE_BLOCKS * min(score_bytes(query, key), BLOCK_BYTES)


def _with_groups(tensor: torch.Tensor, groups: int) -> torch.Tensor:
    """Return a view whose heads have an axis for the group and one for the head inside it."""
    return tensor.view(*tensor.shape[:-3], groups, -1, *tensor.shape[-2:])


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _AttentionBlock:
    """A part of the attention: some of the leading axes, and rows of the query."""

    leading: tuple[slice, ...]
    begin: int
    end: int


def _by_blocks(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    scale: float,
) -> torch.Tensor:
    rows, keys = query.shape[-2], key.shape[-2]
    if mask is not None:
        mask = mask.expand(_broadcast(mask.shape, (rows, keys)))
    operands = [query, key, value, *([] if mask is None else [mask])]
    leading = _broadcast(*(operand.shape[:-2] for operand in operands))
    query, key, value, *masks = (operand.expand(*leading, *operand.shape[-2:]) for operand in operands)
    is_differentiated = torch.is_grad_enabled() and any(operand.requires_grad for operand in operands)
    out = query.new_empty(*leading, rows, value.shape[-1])
    for block in _blocks(leading, rows, keys, max(query.shape[-1], value.shape[-1])):
        place: Untyped = (*block.leading, ..., slice(block.begin, block.end), slice(None))
        matrices: Untyped = (*block.leading, ..., slice(min(keys, block.end) if is_causal else keys), slice(None))
        arguments = (
            query[place], key[matrices], value[matrices], masks[0][place] if masks else None,
            block.begin if is_causal else None, scale,
        )  # fmt: skip
        if is_differentiated:  # the scores of a block are computed again in the backward pass
            out[place] = checkpoint(_of_block, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            out[place] = _of_block(*arguments)
    return out


def _of_block(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    first_causal_row: int | None,
    scale: float,
) -> torch.Tensor:
    scores = (query * scale) @ key.transpose(-2, -1)
    if first_causal_row is not None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(first_causal_row)
        scores.masked_fill_(~visible, _HIDDEN)
    if mask is None:
        return torch.softmax(scores, -1) @ value
    if mask.dtype is torch.bool:
        scores.masked_fill_(~mask, _HIDDEN)
    else:
        scores.add_(mask)
    # As in torch, the result of a query that sees no key is zero.
    sees_nothing = (scores == _HIDDEN).all(-1, keepdim=True)
    scores.masked_fill_(sees_nothing, 0.0)
    return (torch.softmax(scores, -1) @ value).masked_fill_(sees_nothing, 0.0)


def _blocks(leading: Sequence[int], rows: int, keys: int, width: int) -> Iterator[_AttentionBlock]:
    """Yield blocks that cover all leading axes and all rows.

    A block has at most `BLOCK_BYTES` of scores, but at least one row. Blocks of several heads are also limited by their
    keys and values, which a product may copy.
    """
    row_bytes = keys * torch.float64.itemsize
    heads = BLOCK_BYTES // (row_bytes * max(rows, width))
    rows_at_once = rows if heads else min(rows, max(1, BLOCK_BYTES // row_bytes))
    for slices in _leading_slices(leading, max(1, heads)):
        for begin in range(0, rows, rows_at_once):
            yield _AttentionBlock(slices, begin, min(rows, begin + rows_at_once))


def _leading_slices(leading: Sequence[int], heads: int) -> Iterator[tuple[slice, ...]]:
    """Yield slices of the leading axes that select at most this number of matrices each."""
    split, inner = len(leading), 1
    while split and inner * leading[split - 1] <= heads:
        split -= 1
        inner *= leading[split]
    if not split:
        yield ()
        return
    step = heads // inner
    for outer in itertools.product(*(range(size) for size in leading[: split - 1])):
        for begin in range(0, leading[split - 1], step):
            yield (*(slice(index, index + 1) for index in outer), slice(begin, begin + step))
