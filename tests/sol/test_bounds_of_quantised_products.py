"""Quantised products: the unit is that of the stored dtype, also where the reference dequantises first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sol.cases import (
    BF16,
    FP4,
    FP8,
    GBS,
    INT8,
    LINEAR,
    W4,
    W8,
    X4,
    X8,
    X16,
    Y16,
    Case,
    check,
    for_each_case,
    product_us,
)  # fmt: skip

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

BITS_8 = [
    # Eight bits on the unit for eight. H200: 2.147e9 / 1979e12 = 1.085 us, and 4,194,312 B / 4.8e12 = 0.874 us.
    # B200: 2.147e9 / 4500e12 = 0.477 us, and 4,194,312 B / 8e12 = 0.524 us.
    Case(
        "fp8 with a scale for each tensor",
        {"x": "512 2048 float8_e4m3fn", "w": "1024 2048 float8_e4m3fn", "sx": "float32", "sw": "float32"},
        {"y": "512 1024 bfloat16"},
        "return ((x.float() * sx) @ (w.float() * sw).t()).to(torch.bfloat16)",
        bytes=X8 + W8 + 8 + Y16,
        products={(FP8, FP8): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 4_194_312 / GBS["b200"] / 1e3},
    ),
    # Blocks of 128 x 128 for weights and 1 x 128 for activations: 8 x 16 and 512 x 16 scales of 4 B, 33,280 B.
    Case(
        "fp8 with scales for blocks",
        {"x": "512 2048 float8_e4m3fn", "w": "1024 2048 float8_e4m3fn", "sx": "512 16 float32", "sw": "8 16 float32"},
        {"y": "512 1024 bfloat16"},
        """
scale = sw.repeat_interleave(128, 0).repeat_interleave(128, 1)
rows = (x.float().view(512, 16, 128) * sx[:, :, None]).view(512, 2048)
return (rows @ (w.float() * scale).t()).to(torch.bfloat16)
""",
        bytes=X8 + W8 + 33_280 + Y16,
        products={(FP8, FP8): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 4_227_584 / GBS["b200"] / 1e3},
    ),
    # Exponents of blocks of 32, one byte each: 512 x 64 + 1024 x 64 = 98,304 B.
    Case(
        "mxfp8: fp8 with exponents for blocks of 32",
        {"x": "512 2048 float8_e4m3fn", "w": "1024 2048 float8_e4m3fn", "ex": "512 64 int8", "ew": "1024 64 int8"},
        {"y": "512 1024 bfloat16"},
        """
def whole(values, exponents):
    return (values.float().unflatten(1, (-1, 32)) * torch.exp2(exponents.float())[..., None]).flatten(1)
return (whole(x, ex) @ whole(w, ew).t()).to(torch.bfloat16)
""",
        bytes=X8 + W8 + 98_304 + Y16,
        products={(FP8, FP8): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 4_292_608 / GBS["b200"] / 1e3},
    ),
    # torch's own scaled product names two scales of 4 B; they are no operands.
    Case(
        "torch._scaled_mm",
        {"x": "512 2048 float8_e4m3fn", "w": "1024 2048 float8_e4m3fn", "sx": "float32", "sw": "float32"},
        {"y": "512 1024 bfloat16"},
        "return torch._scaled_mm(x, w.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)",
        bytes=X8 + W8 + 8 + Y16,
        products={(FP8, FP8): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 4_194_312 / GBS["b200"] / 1e3},
    ),
    # bfloat16 activations need the bfloat16 unit, which holds fp8 weights exactly.
    Case(
        "fp8 weights, bfloat16 activations",
        {"x": "512 2048 bfloat16", "w": "1024 2048 float8_e4m3fn", "sw": "1024 1 float32"},
        {"y": "512 1024 bfloat16"},
        "return F.linear(x, (w.float() * sw).to(torch.bfloat16))",
        bytes=X16 + W8 + 4_096 + Y16,
        products={(BF16, FP8): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
    # The reference quantises the activations itself: it multiplies eight-bit values.
    # H200: 2,097,152 + 2,097,152 + 4 + 1,048,576 = 5,242,884 B / 4.8e12 = 1.092 us, above 1.085 us of products.
    Case(
        "activations quantised to fp8 on the way",
        {"x": "512 2048 bfloat16", "w": "1024 2048 float8_e4m3fn", "sw": "float32"},
        {"y": "512 1024 bfloat16"},
        """
scale = x.float().abs().amax(-1, keepdim=True) / 448.0
quantised = (x.float() / scale).to(torch.float8_e4m3fn)
return ((quantised.float() * scale) @ (w.float() * sw).t()).to(torch.bfloat16)
""",
        bytes=X16 + W8 + 4 + Y16,
        products={(FP8, FP8): LINEAR},
        us={"h200": 5_242_884 / GBS["h200"] / 1e3},
    ),
    # Scales for rows and for columns: 512 x 4 + 1024 x 4 = 6,144 B.
    Case(
        "int8 dequantised to float32",
        {"x": "512 2048 int8", "w": "1024 2048 int8", "sx": "512 1 float32", "sw": "1024 1 float32"},
        {"y": "512 1024 bfloat16"},
        "return ((x.float() * sx) @ (w.float() * sw).t()).to(torch.bfloat16)",
        bytes=X8 + W8 + 6_144 + Y16,
        products={(INT8, INT8): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 4_200_448 / GBS["b200"] / 1e3},
    ),
    # int32 sums: 512 x 1024 x 4 B out. B200: 5,242,880 B / 8e12 = 0.655 us.
    Case(
        "torch._int_mm",
        {"x": "512 2048 int8", "w": "1024 2048 int8"},
        {"y": "512 1024 int32"},
        "return torch._int_mm(x, w.t())",
        bytes=X8 + W8 + 2 * Y16,
        products={(INT8, INT8): LINEAR},
        us={"b200": 5_242_880 / GBS["b200"] / 1e3},
    ),
    # A zero point for each row is a scale too: 1024 x (4 + 4) B.
    Case(
        "int8 weights with zero points, bfloat16 activations",
        {"x": "512 2048 bfloat16", "w": "1024 2048 int8", "zero": "1024 1 float32", "sw": "1024 1 float32"},
        {"y": "512 1024 bfloat16"},
        "return F.linear(x, ((w.float() - zero) * sw).to(torch.bfloat16))",
        bytes=X16 + W8 + 8_192 + Y16,
        products={(BF16, INT8): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
    # Rounded and clamped to -127..127 in floats: these are eight-bit integers, whatever holds them.
    Case(
        "fake quantisation to int8 in bfloat16",
        {"x": "512 2048 bfloat16", "w": "1024 2048 int8", "sw": "float32"},
        {"y": "512 1024 bfloat16"},
        """
step = x.float().abs().amax(-1, keepdim=True) / 127
rounded = torch.clamp(torch.round(x.float() / step), -127, 127)
return ((rounded * step) @ (w.float() * sw).t()).to(torch.bfloat16)
""",
        bytes=X16 + W8 + 4 + Y16,
        products={(INT8, INT8): LINEAR},
    ),
]

UNPACK = """
table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device={0}.device)
def values(packed):
    codes = packed.view(torch.uint8).to(torch.int64)
    codes = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    return table[codes & 7] * (1.0 - 2.0 * (codes >> 3).float())
"""
BITS_4 = [
    # Two codes a byte; e4m3 scales for blocks of 16: 512 x 128 + 1024 x 128 = 196,608 B.
    # B200: 2.147e9 / 9000e12 = 0.239 us of products; 524,288 + 1,048,576 + 196,608 +
    # 1,048,576 = 2,818,048 B take 0.352 us.
    Case(
        "nvfp4 on both sides, dequantised by a table",
        {"x": "512 1024 int8", "w": "1024 1024 int8", "sx": "512 128 float8_e4m3fn", "sw": "1024 128 float8_e4m3fn"},
        {"y": "512 1024 bfloat16"},
        UNPACK.format("x")
        + """
def whole(packed, scales):
    return (values(packed).unflatten(-1, (-1, 16)) * scales.float()[..., None]).flatten(-2)
return (whole(x, sx) @ whole(w, sw).t()).to(torch.bfloat16)
""",
        bytes=X4 + W4 + 196_608 + Y16,
        products={(FP4, FP4): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 2_818_048 / GBS["b200"] / 1e3},
    ),
    # 8192^3: 2 x 5.498e11 = 1.0995e12 operations / 9000e12 = 122.2 us on the B200; 1,979 on the H200: 555.6 us.
    Case(
        "a large nvfp4 product",
        {"x": "8192 4096 float4_e2m1fn_x2", "w": "8192 4096 float4_e2m1fn_x2"},
        {"y": "8192 8192 bfloat16"},
        UNPACK.format("x") + "return (values(x) @ values(w).t()).to(torch.bfloat16)",
        bytes=2 * 8192 * 4096 + 8192 * 8192 * 2,
        products={(FP4, FP4): 2 * 8192**3},
        us=product_us(2 * 8192**3, FP4),
    ),
    # Two values of four bits in each element: 512 x 1024 x 2048 products, as above. Scales as above.
    Case(
        "torch._scaled_mm of nvfp4",
        {
            "x": "512 1024 float4_e2m1fn_x2",
            "w": "1024 1024 float4_e2m1fn_x2",
            "sx": "65536 float8_e4m3fn",
            "sw": "131072 float8_e4m3fn",
        },
        {"y": "512 1024 bfloat16"},
        "return torch._scaled_mm(x, w.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)",
        bytes=X4 + W4 + 196_608 + Y16,
        products={(FP4, FP4): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6, "b200": 2_818_048 / GBS["b200"] / 1e3},
    ),
    # The same exponents as torch's own dtype of powers of two: 1024 x 64 B.
    Case(
        "mxfp8 weights with exponents viewed as e8m0",
        {"x": "512 2048 bfloat16", "w": "1024 2048 float8_e4m3fn", "ew": "1024 64 int8"},
        {"y": "512 1024 bfloat16"},
        """
scale = ew.view(torch.float8_e8m0fnu).float()
whole = (w.float().unflatten(1, (-1, 32)) * scale[..., None]).flatten(1)
return F.linear(x, whole.to(torch.bfloat16))
""",
        bytes=X16 + W8 + 65_536 + Y16,
        products={(BF16, FP8): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
    # Scales of e4m3 for blocks of 16 weights: 1024 x 128 B; bfloat16 activations decide the unit.
    Case(
        "nvfp4 weights, bfloat16 activations",
        {"x": "512 2048 bfloat16", "w": "1024 1024 int8", "sw": "1024 128 float8_e4m3fn", "s": "float32"},
        {"y": "512 1024 bfloat16"},
        UNPACK.format("w")
        + """
whole = (values(w).unflatten(-1, (-1, 16)) * (sw.float() * s)[..., None]).flatten(-2)
return F.linear(x, whole.to(torch.bfloat16))
""",
        bytes=X16 + W4 + 131_072 + 4 + Y16,
        products={(BF16, FP4): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
    # Exponents for blocks of 32: 512 x 64 + 1024 x 64 = 98,304 B.
    Case(
        "mxfp4 on both sides",
        {"x": "512 1024 int8", "w": "1024 1024 int8", "ex": "512 64 int8", "ew": "1024 64 int8"},
        {"y": "512 1024 bfloat16"},
        UNPACK.format("x")
        + """
def whole(packed, exponents):
    scale = torch.pow(2.0, exponents.view(torch.uint8).float() - 127)
    return (values(packed).unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)
return (whole(x, ex) @ whole(w, ew).t()).to(torch.bfloat16)
""",
        bytes=X4 + W4 + 98_304 + Y16,
        products={(FP4, FP4): LINEAR},
        us={"h200": LINEAR / 1979.0 / 1e6},
    ),
    # Activations quantised to eight bits and four-bit weights: the wider type decides.
    Case(
        "mxfp4 weights, fp8 activations",
        {"x": "512 2048 float8_e4m3fn", "w": "1024 1024 int8", "ew": "1024 64 int8"},
        {"y": "512 1024 bfloat16"},
        UNPACK.format("w")
        + """
whole = (values(w).unflatten(-1, (-1, 32)) * torch.exp2(ew.float())[..., None]).flatten(-2)
return (x.float() @ whole.t()).to(torch.bfloat16)
""",
        bytes=X8 + W4 + 65_536 + Y16,
        products={(FP8, FP4): LINEAR},
        us=product_us(LINEAR, FP8),
    ),
    # Groups of 128: 1024 x 16 scales and zero points of 2 B, 65,536 B together.
    Case(
        "int4 weights with zero points for groups",
        {"x": "512 2048 bfloat16", "w": "1024 1024 int8", "sw": "1024 16 bfloat16", "zero": "1024 16 bfloat16"},
        {"y": "512 1024 bfloat16"},
        """
codes = torch.stack((w & 15, (w >> 4) & 15), -1).flatten(-2)
whole = (codes.to(torch.bfloat16).unflatten(-1, (-1, 128)) - zero[..., None]) * sw[..., None]
return F.linear(x, whole.flatten(-2))
""",
        bytes=X16 + W4 + 65_536 + Y16,
        products={(BF16, FP4): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
    # Sixteen levels of any kind are four bits: NF4. One scale of 4 B for 64 weights: 1024 x 32 x 4 = 131,072 B.
    Case(
        "a code book of sixteen levels",
        {"x": "512 2048 bfloat16", "w": "1024 2048 int8", "book": "16 float32", "sw": "1024 32 float32"},
        {"y": "512 1024 bfloat16"},
        """
whole = (book[w.long()].unflatten(-1, (-1, 64)) * sw[..., None]).flatten(-2)
return F.linear(x, whole.to(torch.bfloat16))
""",
        bytes=X16 + W8 + 64 + 131_072 + Y16,
        products={(BF16, FP4): LINEAR},
        us=product_us(LINEAR, BF16),
    ),
]


@for_each_case([*BITS_8, *BITS_4])
def test_operations_and_their_unit_are_those_computed_by_hand(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
