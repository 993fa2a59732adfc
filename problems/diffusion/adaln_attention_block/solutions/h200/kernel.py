"""Attention half of a DiT block: norm with modulation, cuBLAS, attention for heads of 72, cuBLAS, bias with gate and residual.

Tensor cores want a head's width in powers of two. 72 is taken as 64 and a rest of 16 of which 8 count, so that attention
does 80 / 72 of the work where a padded kernel does 96 / 72 or 128 / 72.

BLOCK_M  queries of a tile
BLOCK_N  keys of a step
"""

import math

import torch
import triton
import triton.language as tl

HEADS = 16


@triton.jit
def modulate(x, shift, scale, output, tokens, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    sample = row // tokens * HIDDEN + columns
    value = tl.load(x + row * HIDDEN + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(scale + sample, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(shift + sample, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(inside, value - tl.sum(value, 0) / HIDDEN, 0.0)
    rstd = tl.rsqrt(tl.sum(value * value, 0) / HIDDEN + 1e-6)
    result = value * rstd * (1.0 + factor) + offset
    tl.store(output + row * HIDDEN + columns, result.to(output.dtype.element_ty), mask=inside)


@triton.jit
def attend(
    qkv,
    output,
    tokens,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    REST: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    EVEN: tl.constexpr,
):
    HIDDEN: tl.constexpr = HEADS * DIM
    head = tl.program_id(1)
    qkv += tl.program_id(2).to(tl.int64) * tokens * 3 * HIDDEN + head * DIM
    output += tl.program_id(2).to(tl.int64) * tokens * HIDDEN + head * DIM
    wide = tl.arange(0, 64)
    rest = 64 + tl.arange(0, REST)
    kept = rest < DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    within = rows[:, None] < tokens
    q_wide = tl.load(qkv + rows[:, None] * (3 * HIDDEN) + wide[None, :], mask=within, other=0.0)
    q_rest = tl.load(qkv + rows[:, None] * (3 * HIDDEN) + rest[None, :], mask=within & kept[None, :], other=0.0)
    out_wide = tl.zeros((BLOCK_M, 64), tl.float32)
    out_rest = tl.zeros((BLOCK_M, REST), tl.float32)
    most = tl.full((BLOCK_M,), -1.0e30, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for start in tl.range(0, tokens, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        at = keys[:, None] * (3 * HIDDEN) + HIDDEN
        if EVEN:
            k_wide = tl.load(qkv + at + wide[None, :])
            k_rest = tl.load(qkv + at + rest[None, :], mask=kept[None, :], other=0.0)
            v_wide = tl.load(qkv + at + HIDDEN + wide[None, :])
            v_rest = tl.load(qkv + at + HIDDEN + rest[None, :], mask=kept[None, :], other=0.0)
        else:
            known = keys[:, None] < tokens
            k_wide = tl.load(qkv + at + wide[None, :], mask=known, other=0.0)
            k_rest = tl.load(qkv + at + rest[None, :], mask=known & kept[None, :], other=0.0)
            v_wide = tl.load(qkv + at + HIDDEN + wide[None, :], mask=known, other=0.0)
            v_rest = tl.load(qkv + at + HIDDEN + rest[None, :], mask=known & kept[None, :], other=0.0)
        scores = tl.dot(q_wide, tl.trans(k_wide))
        scores = tl.dot(q_rest, tl.trans(k_rest), scores) * scale
        if not EVEN:
            scores = tl.where(keys[None, :] < tokens, scores, -1.0e30)
        higher = tl.maximum(most, tl.max(scores, 1))
        p = tl.math.exp2(scores - higher[:, None])
        fade = tl.math.exp2(most - higher)
        most = higher
        total = total * fade + tl.sum(p, 1)
        p = p.to(v_wide.dtype)
        out_wide = tl.dot(p, v_wide, out_wide * fade[:, None])
        out_rest = tl.dot(p, v_rest, out_rest * fade[:, None])
    to = output + rows[:, None] * HIDDEN
    tl.store(to + wide[None, :], (out_wide / total[:, None]).to(output.dtype.element_ty), mask=within)
    tl.store(to + rest[None, :], (out_rest / total[:, None]).to(output.dtype.element_ty), mask=within & kept[None, :])


@triton.jit
def finish(x, product, bias, gate, output, tokens, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    at = row * HIDDEN + columns
    value = tl.load(product + at, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + row // tokens * HIDDEN + columns, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) + factor * value
    tl.store(output + at, value.to(output.dtype.element_ty), mask=inside)


def run(
    x, shift, scale, gate, qkv_weight, qkv_bias, proj_weight, proj_bias, output, *, BLOCK_M, BLOCK_N, WARPS, STAGES
):
    batch, tokens, hidden = x.shape
    rows, dim = batch * tokens, hidden // HEADS
    block = triton.next_power_of_2(hidden)
    modulated = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
    modulate[(rows,)](x, shift, scale, modulated, tokens, hidden, block, num_warps=4)
    qkv = torch.addmm(qkv_bias, modulated, qkv_weight.t())
    merged = modulated  # its content is spent
    even = tokens % BLOCK_N == 0
    attend[(triton.cdiv(tokens, BLOCK_M), HEADS, batch)](
        qkv,
        merged,
        tokens,
        math.log2(math.e) / math.sqrt(dim),
        HEADS,
        dim,
        16,
        BLOCK_M,
        BLOCK_N,
        even,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    product = torch.mm(merged, proj_weight.t())
    finish[(rows,)](x, product, proj_bias, gate, output, tokens, hidden, block, num_warps=4)
