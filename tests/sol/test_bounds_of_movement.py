"""Bytes that references have to move: views, copies, slices, tables, updates, masks and unused work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sol.cases import GBS, Case, check, for_each_case

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

CASES = [
    # 1024 x 1024 x 4 B read and written, in another order: 8,388,608 B / 4.8 TB/s = 1.748 us. No operation.
    Case(
        "a transpose moves each byte once and computes nothing",
        {"x": "1024 1024 float32"},
        {"y": "1024 1024 float32"},
        "return x.t().contiguous()",
        bytes=2 * 1024 * 1024 * 4,
        elementwise=0,
        us={"h200": 8_388_608 / GBS["h200"] / 1e3, "b200": 8_388_608 / GBS["b200"] / 1e3},
    ),
    # reshape of a transposed tensor copies through `_unsafe_view`: 2 x 64 x 32 x 16 x 2 B = 131,072 B, no operation.
    Case(
        "merging the heads of attention is a copy",
        {"x": "64 32 16 bfloat16"},
        {"y": "64 512 bfloat16"},
        "return x.transpose(1, 2).reshape(64, 512)",
        bytes=2 * 64 * 32 * 16 * 2,
        elementwise=0,
    ),
    # 3 x 5 views of one tensor of 4,096 B; the result is all of it once more.
    Case(
        "a chain of views is free",
        {"x": "4 256 float32"},
        {"y": "256 4 float32"},
        "v = x.view(2, 2, 256).permute(2, 0, 1).unsqueeze(0).squeeze(0).flatten(1)\nreturn v.clone()",
        bytes=2 * 4096,
        elementwise=0,
    ),
    # One row of 256 x 4 B is read, 64 of them are written: 1,024 + 65,536.
    Case(
        "a broadcast reads one row",
        {"x": "8 256 float32"},
        {"y": "64 256 float32"},
        "return x[3].expand(64, 256).contiguous()",
        bytes=1024 + 64 * 1024,
        elementwise=0,
    ),
    # Two tensors of 100 x 64 x 2 B in, both out: 4 x 12,800. Concatenation moves.
    Case(
        "concatenation moves",
        {"a": "100 64 bfloat16", "b": "100 64 bfloat16"},
        {"y": "200 64 bfloat16"},
        "return torch.cat((b, a))",
        bytes=4 * 12_800,
        elementwise=0,
    ),
    # Of the concatenation only the first 100 rows are returned: `a` is never needed. 2 x 12,800.
    Case(
        "what a slice drops of a concatenation is not read",
        {"a": "100 64 bfloat16", "b": "100 64 bfloat16"},
        {"y": "100 64 bfloat16"},
        "return torch.cat((b, a))[:100].clone()",
        bytes=2 * 12_800,
        elementwise=0,
    ),
    # Columns 0 to 31 of 128: 64 x 32 x 4 B read and written.
    Case(
        "a slice of columns reads these columns",
        {"x": "64 128 float32"},
        {"y": "64 32 float32"},
        "return x[:, :32] * 2",
        bytes=2 * 64 * 32 * 4,
        elementwise=64 * 32,
    ),
    # The slice is taken after the arithmetic; the other columns' values are computed by the reference alone.
    Case(
        "a slice after arithmetic reads no more",
        {"x": "64 128 float32"},
        {"y": "64 32 float32"},
        "return (x * 2)[:, :32].clone()",
        bytes=2 * 64 * 32 * 4,
        elementwise=64 * 32,
    ),
    # `b` only goes into a value that is not returned: 2 x 4,096 B, one addition an element.
    Case(
        "unused work counts nothing",
        {"a": "1024 float32", "b": "1024 float32"},
        {"y": "1024 float32"},
        "unused = (a * b).exp().sum()\nreturn a + 1",
        bytes=2 * 4096,
        elementwise=1024,
    ),
    # 16 ids drawn evenly from 1,000 rows take 1000 (1 - 0.999^16) = 15.8808 different ones on average, 512 B each:
    # 8,130 B (rounded down); 16 rows written: 8,192 B; ids 128 B.
    Case(
        "a lookup of random rows",
        {"table": "1000 256 bfloat16", "ids": "16 int64"},
        {"y": "16 256 bfloat16"},
        "return F.embedding(ids, table)",
        bytes=8_130 + 8_192 + 128,
        elementwise=0,
    ),
    # 4 bags of 4 ids each, drawn from 1,000 rows: as many rows as above, 8,130 B; 4 x 512 B
    # out; ids 128 B, offsets 32 B.
    Case(
        "bags of random rows",
        {"table": "1000 128 float32", "ids": "16 int64", "offsets": "4 int64"},
        {"y": "4 128 float32"},
        "return F.embedding_bag(ids, table, offsets, mode='sum')",
        bytes=8_130 + 2_048 + 128 + 32,
        elementwise=0,
    ),
    # The ids are the problem's own: 5 different ones of 16. 5 x 512 B read, 16 x 512 B written, 128 B of ids.
    Case(
        "a lookup of known rows",
        {"table": "1000 256 bfloat16", "ids": "16 int64"},
        {"y": "16 256 bfloat16"},
        "return table[ids]",
        bytes=5 * 512 + 16 * 512 + 128,
        elementwise=0,
        make="""
ids = torch.arange(16, device=device) % 5
return {"table": torch.randn(1000, 256, device=device).to(torch.bfloat16), "ids": ids}
""",
    ),
    # Two lookups of the same 4 rows read them once: 4 x 512 + 8 x 512 + 64.
    Case(
        "rows that are looked up twice are read once",
        {"table": "100 256 bfloat16", "ids": "4 int64"},
        {"y": "8 256 bfloat16"},
        "return torch.cat((table[ids], table.index_select(0, ids.flip(0))))",
        bytes=4 * 512 + 8 * 512 + 4 * 8,
        make="""
return {"table": torch.randn(100, 256, device=device).to(torch.bfloat16),
        "ids": torch.tensor([7, 1, 50, 3], device=device)}
""",
    ),
    # One of 8 elements of each of 64 rows: 64 x 4 B, ids 64 x 8 B, 64 x 4 B out.
    Case(
        "gather takes one element of a row",
        {"x": "64 8 float32", "ids": "64 1 int64"},
        {"y": "64 1 float32"},
        "return x.gather(1, ids)",
        bytes=64 * 4 + 64 * 8 + 64 * 4,
        elementwise=0,
    ),
    # Rows 0 to 3 of the cache are written, 4 x 128 x 2 B; the new rows are read, 4 x 128 x 2 B, and 4 indices of 8 B.
    Case(
        "index_copy_ into a cache touches the new rows",
        {"cache": "1024 128 bfloat16", "rows": "4 128 bfloat16", "slots": "4 int64"},
        {"out": "1024 128 bfloat16"},
        "cache.index_copy_(0, slots, rows)",
        bytes=2 * 1024 + 32,
        elementwise=0,
        updates={"out": "cache"},
    ),
    # As before, through a clone: the output begins as the cache, so a kernel copies nothing.
    Case(
        "a cloned cache is still updated in place",
        {"cache": "1024 128 bfloat16", "rows": "4 128 bfloat16", "slots": "4 int64"},
        {"out": "1024 128 bfloat16"},
        "new = cache.clone()\nnew[slots] = rows\nreturn new",
        bytes=2 * 1024 + 32,
        elementwise=0,
        updates={"out": "cache"},
    ),
    # 8 rows are read, added to and written: 2 x 8 x 64 x 4 B of the cache, 8 x 64 x 4 B of the increments.
    Case(
        "an addition in place reads and writes what it changes",
        {"cache": "512 64 float32", "more": "8 64 float32"},
        {"out": "512 64 float32"},
        "cache[16:24] += more",
        bytes=3 * 8 * 64 * 4,
        elementwise=8 * 64,
        updates={"out": "cache"},
    ),
    # The lower triangle with the diagonal: 100 x 101 / 2 = 5,050 of 10,000 elements of 4 B; the output is whole.
    Case(
        "tril reads a triangle",
        {"x": "100 100 float32"},
        {"y": "100 100 float32"},
        "return x.tril()",
        bytes=(5_050 + 10_000) * 4,
        elementwise=0,
    ),
    # Both branches are chosen from; which one is data, so both count: 2 x 4,096 B, the mask 1,024 B, the output.
    Case(
        "a choice by an unknown mask reads both sides",
        {"mask": "1024 bool", "a": "1024 float32", "b": "1024 float32"},
        {"y": "1024 float32"},
        "return torch.where(mask, a, b)",
        bytes=1024 + 3 * 4096,
        elementwise=0,
    ),
    # The mask is known to take the first quarter from `a`: 256 x 4 B of it and 768 x 4 B of `b`.
    Case(
        "a choice by a known mask reads what it takes",
        {"a": "1024 float32", "b": "1024 float32"},
        {"y": "1024 float32"},
        "return torch.where(torch.arange(1024, device=a.device) < 256, a, b)",
        bytes=256 * 4 + 768 * 4 + 4096,
        elementwise=0,
    ),
    # Windows of 3 with step 1 over 1,026 elements read each once: 4,104 B; 1,024 x 3 elements out: 12,288 B.
    Case(
        "overlapping windows read each element once",
        {"x": "1026 float32"},
        {"y": "1024 3 float32"},
        "return x.unfold(0, 3, 1).contiguous()",
        bytes=4_104 + 12_288,
        elementwise=0,
    ),
]


@for_each_case(CASES)
def test_bytes_and_operations_are_those_computed_by_hand(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
