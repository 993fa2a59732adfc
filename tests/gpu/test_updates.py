"""A problem whose reference updates an input in place, timed on a GPU by both clocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.conftest import evaluated
from tests.judge.courtroom import write_pytorch
from tests.judge.test_updates import write_cache

_TORCH = "def run(cache, k, pos, sums, out):\n    out[pos] = k\n    sums.copy_(out.sum(-1))\n"
_TRITON = """
import triton
import triton.language as tl

@triton.jit
def update(k, sums, out, pos, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, WIDTH)
    new = tl.load(k + at)
    old = tl.load(out + row * WIDTH + at)
    kept = tl.where(row == pos, new, old)
    tl.store(out + row * WIDTH + at, kept, mask=row == pos)
    tl.store(sums + row, tl.sum(kept))

def run(cache, k, pos, sums, out):
    update[(cache.shape[0],)](k, sums, out, pos, WIDTH=64)
"""


@pytest.mark.parametrize(("language", "source"), [("pytorch", _TORCH), ("triton", _TRITON)], ids=["pytorch", "triton"])
def test_a_solution_that_updates_the_changed_row_passes(tmp_path: Path, language: str, source: str) -> None:
    solution = write_pytorch(tmp_path / "solution", source, language=language)
    assert evaluated(solution, write_cache(tmp_path), tmp_path, 100.0) == "PASSED"
