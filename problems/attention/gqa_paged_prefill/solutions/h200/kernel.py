"""Causal attention of new tokens over a paged cache: flash attention whose key tiles are gathered page by page.

BLOCK_T  new tokens of a tile; with the query heads that share a key head they make BLOCK_T * 4 rows
BLOCK_N  keys of a step
"""

import math

import triton
import triton.language as tl


@triton.jit
def step(
    sums,
    most,
    total,
    mine,
    k_cache,
    v_cache,
    table,
    start,
    position,
    length,
    scale,
    ROW: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    keys = start + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, DIM)
    if MASKED:  # past the end of a sequence its table, and the rest of its last page, may hold anything
        page = tl.load(table + keys // PAGE, mask=keys < length, other=0)
    else:
        page = tl.load(table + keys // PAGE)
    at = (page.to(tl.int64) * PAGE + keys % PAGE)[:, None] * ROW + dims[None, :]
    k = tl.load(k_cache + at)
    scores = tl.dot(mine, tl.trans(k)) * scale
    if MASKED:
        scores = tl.where(keys[None, :] <= position[:, None], scores, -1.0e30)
    higher = tl.maximum(most, tl.max(scores, 1))
    p = tl.math.exp2(scores - higher[:, None])
    fade = tl.math.exp2(most - higher)
    total = total * fade + tl.sum(p, 1)
    if MASKED:
        v = tl.load(v_cache + at, mask=keys[:, None] < length, other=0.0)
    else:
        v = tl.load(v_cache + at)
    sums = tl.dot(p.to(v.dtype), v, sums * fade[:, None])
    return sums, higher, total


@triton.jit
def attend(
    q,
    k_cache,
    v_cache,
    page_table,
    kv_lengths,
    output,
    chunk,
    max_pages,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    GROUP: tl.constexpr = HEADS // KV_HEADS
    ROW: tl.constexpr = KV_HEADS * DIM
    first = (tl.num_programs(2) - 1 - tl.program_id(2)) * BLOCK_T  # the longest tiles start first
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1)
    rows = tl.arange(0, BLOCK_T * GROUP)
    token = first + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    at = ((sequence * chunk + token) * HEADS + head)[:, None] * DIM + tl.arange(0, DIM)[None, :]
    mine = tl.load(q + at, mask=token[:, None] < chunk, other=0.0)
    length = tl.load(kv_lengths + sequence)
    position = length - chunk + token
    sums = tl.zeros((BLOCK_T * GROUP, DIM), tl.float32)
    most = tl.full((BLOCK_T * GROUP,), -1.0e30, tl.float32)
    total = tl.zeros((BLOCK_T * GROUP,), tl.float32)
    k_cache += kv_head * DIM
    v_cache += kv_head * DIM
    table = page_table + sequence * max_pages
    seen_by_all = (length - chunk + first + 1) // BLOCK_N * BLOCK_N
    end = tl.minimum(length, length - chunk + first + BLOCK_T)
    for start in tl.range(0, seen_by_all, BLOCK_N):
        sums, most, total = step(
            sums,
            most,
            total,
            mine,
            k_cache,
            v_cache,
            table,
            start,
            position,
            length,
            scale,
            ROW,
            DIM,
            PAGE,
            BLOCK_N,
            False,
        )
    for start in tl.range(seen_by_all, end, BLOCK_N):
        sums, most, total = step(
            sums,
            most,
            total,
            mine,
            k_cache,
            v_cache,
            table,
            start,
            position,
            length,
            scale,
            ROW,
            DIM,
            PAGE,
            BLOCK_N,
            True,
        )
    tl.store(output + at, (sums / total[:, None]).to(output.dtype.element_ty), mask=token[:, None] < chunk)


def run(q, k_cache, v_cache, page_table, kv_lengths, output, *, BLOCK_T, BLOCK_N, WARPS, STAGES):
    tokens, heads, dim = q.shape
    page, kv_heads = k_cache.shape[1:3]
    batch, max_pages = page_table.shape
    chunk = tokens // batch
    attend[(kv_heads, batch, triton.cdiv(chunk, BLOCK_T))](
        q,
        k_cache,
        v_cache,
        page_table,
        kv_lengths,
        output,
        chunk,
        max_pages,
        math.log2(math.e) / math.sqrt(dim),
        heads,
        kv_heads,
        dim,
        page,
        BLOCK_T,
        BLOCK_N,
        num_warps=WARPS,
        num_stages=STAGES,
    )
