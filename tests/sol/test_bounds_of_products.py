"""Bounds of products of floats: the unit that computes them, also if the reference casts, broadcasts or masks first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sol.cases import (
    BF16,
    FP32,
    GBS,
    LINEAR,
    W16,
    X16,
    Y16,
    Case,
    check,
    for_each_case,
    product_us,
)  # fmt: skip

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

BITS_16 = [
    # H200: 2.147e9 / 989.5e12 = 2.170 us, and 7,340,032 B / 4.8e12 = 1.529 us. B200: 0.954 us and 0.918 us.
    Case(
        "a bfloat16 layer",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16"},
        {"y": "512 1024 bfloat16"},
        "return F.linear(x, w)",
        bytes=X16 + W16 + Y16,
        products={(BF16, BF16): LINEAR},
        elementwise=0,
        us=product_us(LINEAR, BF16),
    ),
    # bfloat16 values cast to float32 multiply exactly on the bfloat16 unit, which adds in float32.
    Case(
        "cast to float32 before the product",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16"},
        {"y": "512 1024 bfloat16"},
        "return (x.float() @ w.float().t()).to(torch.bfloat16)",
        bytes=X16 + W16 + Y16,
        products={(BF16, BF16): LINEAR},
        elementwise=0,
        us=product_us(LINEAR, BF16),
    ),
    # autocast runs products in bfloat16. The device that the reference names need not be here.
    Case(
        "float32 inputs under autocast",
        {"x": "512 2048 float32", "w": "1024 2048 float32"},
        {"y": "512 1024 float32"},
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    zero = torch.zeros(1024, device="cuda")
    return F.linear(x.to("cuda"), w.cuda(), zero).float()
""",
        bytes=2 * (X16 + W16 + Y16),
        products={(BF16, BF16): LINEAR},
    ),
    # Both operands split into two 16-bit parts, three products of parts: 3 x 2.147e9 / 989.5e12 = 6.511 us.
    Case(
        "float32 takes three products of 16-bit parts",
        {"x": "512 2048 float32", "w": "1024 2048 float32"},
        {"y": "512 1024 float32"},
        "return x @ w.t()",
        bytes=2 * (X16 + W16 + Y16),
        products={(FP32, FP32): LINEAR},
        us=product_us(3 * LINEAR, BF16),
    ),
    # One operand split, two products: 2 x 2.147e9 / 989.5e12 = 4.341 us.
    Case(
        "float32 with bfloat16 takes two",
        {"x": "512 2048 float32", "w": "1024 2048 bfloat16"},
        {"y": "512 1024 float32"},
        "return x @ w.float().t()",
        bytes=2 * X16 + W16 + 2 * Y16,
        products={(FP32, BF16): LINEAR},
        us=product_us(2 * LINEAR, BF16),
    ),
    # A bfloat16 result shows no more than bfloat16 operands give: the float32 operands may be rounded first.
    # H200: 14,680,064 - 1,048,576 = 13,631,488 B / 4.8e12 = 2.840 us, above 2.170 us of products.
    Case(
        "float32 inputs of a bfloat16 result",
        {"x": "512 2048 float32", "w": "1024 2048 float32"},
        {"y": "512 1024 bfloat16"},
        "return (x @ w.t()).to(torch.bfloat16)",
        bytes=2 * X16 + 2 * W16 + Y16,
        products={(BF16, BF16): LINEAR},
        us={"h200": 13_631_488 / GBS["h200"] / 1e3},
    ),
    # 8 x 2 x 64 x 64 x 32 = 2,097,152 operations; 8 x 64 x 32 x 2 B twice and 8 x 64 x 64 x 2 B.
    Case(
        "a batch of products by einsum",
        {"a": "8 64 32 bfloat16", "b": "8 64 32 bfloat16"},
        {"y": "8 64 64 bfloat16"},
        "return torch.einsum('bik,bjk->bij', a, b)",
        bytes=2 * 32_768 + 65_536,
        products={(BF16, BF16): 2_097_152},
        elementwise=0,
    ),
    # One row: 2 x 4096 x 1024 operations, and the matrix of 8,388,608 B dominates.
    Case(
        "a matrix times a vector",
        {"w": "4096 1024 bfloat16", "x": "1024 bfloat16"},
        {"y": "4096 bfloat16"},
        "return w @ x",
        bytes=8_388_608 + 2_048 + 8_192,
        products={(BF16, BF16): 8_388_608},
        us={"h200": (8_388_608 + 2_048 + 8_192) / GBS["h200"] / 1e3},
    ),
    # Half of the outputs are returned: half of the weights, half of the operations.
    Case(
        "columns of a product that are dropped",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16"},
        {"y": "512 512 bfloat16"},
        "return F.linear(x, w)[:, :512].clone()",
        bytes=X16 + W16 // 2 + Y16 // 2,
        products={(BF16, BF16): LINEAR // 2},
    ),
    # Only the last row: 1 x 2048 x 2 B of x, all weights, 1024 x 2 B; 2 x 1024 x 2048 operations.
    Case(
        "rows of a product that are dropped",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16"},
        {"y": "1 1024 bfloat16"},
        "return F.linear(x, w)[-1:].clone()",
        bytes=4_096 + W16 + 2_048,
        products={(BF16, BF16): LINEAR // 512},
    ),
]

SUMS = [
    # (512, 1, 2048) times (1, 1024, 2048), summed: the same layer.
    Case(
        "broadcast, multiply, sum",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16"},
        {"y": "512 1024 bfloat16"},
        "return (x[:, None, :] * w[None, :, :]).sum(-1)",
        bytes=X16 + W16 + Y16,
        products={(BF16, BF16): LINEAR},
        elementwise=0,
        us=product_us(LINEAR, BF16),
    ),
    # The same in float32 after casts, with a scale for each row on the way: the scaling goes into the product.
    Case(
        "broadcast, multiply, sum with casts and a scale",
        {"x": "512 2048 bfloat16", "w": "1024 2048 bfloat16", "scale": "2048 bfloat16"},
        {"y": "512 1024 bfloat16"},
        "return ((x.float()[:, None] * w.float()[None]) * scale.float()).sum(-1).to(torch.bfloat16)",
        bytes=X16 + W16 + 4_096 + Y16,
        products={(BF16, BF16): LINEAR},
        elementwise=0,
        us=product_us(LINEAR, BF16),
    ),
    # A mean is a sum. 2 x 32 x 64 x 128 = 524,288 operations; 32 x 128 x 4 + 64 x 128 x 4 + 32 x 64 x 4 B.
    Case(
        "broadcast, multiply, mean",
        {"a": "32 128 float32", "b": "64 128 float32"},
        {"y": "32 64 float32"},
        "return (a.unsqueeze(1) * b).mean(-1)",
        bytes=16_384 + 32_768 + 8_192,
        products={(FP32, FP32): 524_288},
        elementwise=0,
    ),
    # Sixteen outer products of 128 x 256, added up: 2 x 128 x 256 x 16 = 1,048,576 operations.
    Case(
        "a sum of outer products",
        {"a": "128 16 float32", "b": "16 256 float32"},
        {"y": "128 256 float32"},
        """
total = torch.zeros(128, 256, device=a.device)
for k in range(16):
    total = total + a[:, k, None] * b[None, k]
return total
""",
        bytes=8_192 + 16_384 + 131_072,
        products={(FP32, FP32): 1_048_576},
        elementwise=0,
    ),
    # Row by row: 2 x 64 x 128 operations.
    Case(
        "inner products of rows",
        {"a": "64 128 bfloat16", "b": "64 128 bfloat16"},
        {"y": "64 bfloat16"},
        "return (a * b).sum(-1)",
        bytes=2 * 16_384 + 128,
        products={(BF16, BF16): 16_384},
        elementwise=0,
    ),
]

OTHER = [
    # 3 x 3 with padding 1 on 16 x 16: along each axis 16 x 3 - 2 = 46 of 48 taps are inside: 32 x 16 x 46 x 46
    # products.
    # In: 16 x 256 x 2 B, weights 32 x 16 x 9 x 2 B, out: 32 x 256 x 2 B.
    Case(
        "a convolution does not multiply its padding",
        {"x": "1 16 16 16 bfloat16", "w": "32 16 3 3 bfloat16"},
        {"y": "1 32 16 16 bfloat16"},
        "return F.conv2d(x, w, padding=1)",
        bytes=8_192 + 9_216 + 16_384,
        products={(BF16, BF16): 2 * 32 * 16 * 46 * 46},
    ),
    # Eight experts, two for each of 64 tokens, whose choice is data. The least work is all tokens at the same two:
    # 2 x 256 x 128 x 2 B of weights, 2 x 64 x 256 x 128 operations each. The router adds
    # 8 x 128 x 2 B and 2 x 64 x 8 x 128 = 131,072 operations.
    Case(
        "experts that are chosen by data",
        {"x": "64 128 bfloat16", "router": "8 128 bfloat16", "w": "8 256 128 bfloat16"},
        {"y": "64 256 bfloat16"},
        """
chosen = F.linear(x, router).topk(2).indices
y = torch.zeros(64, 256, dtype=x.dtype, device=x.device)
for expert in range(8):
    rows = (chosen == expert).any(-1).nonzero().flatten()
    if rows.numel():
        y.index_add_(0, rows, F.linear(x[rows], w[expert]))
return y
""",
        bytes=16_384 + 2_048 + 2 * 65_536 + 32_768,
        products={(BF16, BF16): 2 * 2 * 64 * 256 * 128 + 131_072},
        elementwise=2 * 64 * 256,
    ),
]


@for_each_case([*BITS_16, *SUMS, *OTHER])
def test_operations_and_their_unit_are_those_computed_by_hand(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
