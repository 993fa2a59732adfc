"""Bounds of attention, fused and unfused, and of other chains of products with masks and regrouping."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sol.cases import BF16, FP8, GBS, X16, Y16, Case, check, for_each_case

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

# Attention: 2 sequences, 8 heads, 256 queries and keys of depth 64. A tensor has 2 x 8 x 256 x 64 x 2 B = 524,288 B.
HEADS, SCORES = 524_288, 2 * 8 * 256 * 256
QKV = dict.fromkeys("qkv", "2 8 256 64 bfloat16")
ATTENTION = [
    # Two products of 2 x 64 operations for each of 1,048,576 scores: 268,435,456; softmax four for each.
    Case(
        "attention",
        QKV,
        {"y": "2 8 256 64 bfloat16"},
        "return F.scaled_dot_product_attention(q, k, v)",
        bytes=4 * HEADS,
        products={(BF16, BF16): 4 * 64 * SCORES},
        elementwise=4 * SCORES,
        us={"h200": 4 * HEADS / GBS["h200"] / 1e3},
    ),
    # A causal mask shows 257 / 512 of the scores: 256 x 257 / 2 of 256 x 256.
    Case(
        "causal attention",
        QKV,
        {"y": "2 8 256 64 bfloat16"},
        "return F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        bytes=4 * HEADS,
        products={(BF16, BF16): 4 * 64 * SCORES * 257 // 512},
        elementwise=4 * SCORES * 257 // 512,
    ),
    # Unfused in float32: both products need only the unmasked elements, and their operands are bfloat16 values.
    Case(
        "causal attention spelled out",
        QKV,
        {"y": "2 8 256 64 bfloat16"},
        """
scores = (q.float() @ k.float().transpose(-1, -2)) * 0.125
hidden = torch.ones(256, 256, dtype=torch.bool, device=q.device).triu(1)
weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
return (weights @ v.float()).to(torch.bfloat16)
""",
        bytes=4 * HEADS,
        products={(BF16, BF16): 4 * 64 * SCORES * 257 // 512},
    ),
    # Windows of 64 keys: 64 x 65 / 2 + 192 x 64 = 14,368 of 65,536 scores of a head.
    Case(
        "attention in a sliding window",
        QKV,
        {"y": "2 8 256 64 bfloat16"},
        """
at = torch.arange(256, device=q.device)
shown = (at[None] <= at[:, None]) & (at[None] > at[:, None] - 64)
return F.scaled_dot_product_attention(q, k, v, attn_mask=shown)
""",
        bytes=4 * HEADS,
        products={(BF16, BF16): 4 * 64 * 16 * 14_368},
        elementwise=4 * 16 * 14_368,
    ),
    # Keys and values of two heads serve eight: each of them 2 x 2 x 256 x 64 x 2 = 131,072 B, read once.
    Case(
        "grouped heads read their keys once",
        {"q": "2 8 256 64 bfloat16", "k": "2 2 256 64 bfloat16", "v": "2 2 256 64 bfloat16"},
        {"y": "2 8 256 64 bfloat16"},
        "return F.scaled_dot_product_attention(q, k.repeat_interleave(4, 1), v.repeat_interleave(4, 1))",
        bytes=2 * HEADS + 2 * 131_072,
        products={(BF16, BF16): 4 * 64 * SCORES},
    ),
    # fp8 keys and values, dequantised: the queries are bfloat16, and so the unit is.
    Case(
        "attention over an fp8 cache",
        {"q": "2 8 256 64 bfloat16", "k": "2 8 256 64 float8_e4m3fn", "v": "2 8 256 64 float8_e4m3fn", "s": "float32"},
        {"y": "2 8 256 64 bfloat16"},
        """
keys, values = (k.float() * s).to(torch.bfloat16), (v.float() * s).to(torch.bfloat16)
return F.scaled_dot_product_attention(q, keys, values)
""",
        bytes=3 * HEADS + 4,
        products={(BF16, FP8): 4 * 64 * SCORES},
    ),
]

CHAINS = [
    # (q k^T) v without a softmax is q (k^T v): 2 x 2 x 256 x 64 x 64 operations for each of 16 heads in place of
    # 2 x 2 x 256 x 256 x 64.
    Case(
        "linear attention is regrouped",
        QKV,
        {"y": "2 8 256 64 bfloat16"},
        "return ((q @ k.transpose(-1, -2)) * 0.125) @ v",
        bytes=4 * HEADS,
        products={(BF16, BF16): 16 * 4 * 256 * 64 * 64},
    ),
    # x (A B) with rank 16 is (x A) B: 2 x 512 x 16 x (2048 + 1024) operations, far below those of LINEAR.
    Case(
        "a low-rank weight is not multiplied out",
        {"x": "512 2048 bfloat16", "a": "2048 16 bfloat16", "b": "16 1024 bfloat16"},
        {"y": "512 1024 bfloat16"},
        "return x @ (a @ b)",
        bytes=X16 + 2048 * 16 * 2 + 16 * 1024 * 2 + Y16,
        products={(BF16, BF16): 2 * 512 * 16 * 3072},
    ),
    # 2 x 16 x 32 x (512 + 64) = 589,824 operations; x (A B) would take 2 x 512 x 64 x (32 + 16).
    Case(
        "a chain in the cheaper order stays",
        {"x": "16 512 bfloat16", "a": "512 32 bfloat16", "b": "32 64 bfloat16"},
        {"y": "16 64 bfloat16"},
        "return (x @ a) @ b",
        bytes=16_384 + 32_768 + 4_096 + 2_048,
        products={(BF16, BF16): 589_824},
    ),
]


@for_each_case([*ATTENTION, *CHAINS])
def test_operations_and_bytes_are_those_computed_by_hand(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
