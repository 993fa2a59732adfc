"""The trusted kernels in this process: their copies, and their measurement of the events' overhead."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

    from harness.runner.launcher import TrustedKernels


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> TrustedKernels:
    import torch

    from harness.judge.build.cuda_builder import trusted_cubin
    from harness.runner.launcher import TrustedKernels

    torch.zeros(1, device="cuda")
    return TrustedKernels(trusted_cubin(tmp_path_factory.mktemp("cubin")))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_scaled_copies_equal_torchs_products(trusted: TrustedKernels, dtype: str) -> None:
    import torch

    source = torch.randn(70_001, device="cuda").to(getattr(torch, dtype))
    cases = [(0, 1, 1.03), (3, 4096, -0.97), (1, 70_000, 1e-30), (7, 129, 1e30)]
    copies = copied(trusted, source, [(begin, count, factor) for begin, count, factor in cases])
    for (begin, count, factor), copy in zip(cases, copies, strict=True):
        expected = torch.mul(source[begin : begin + count], factor)
        assert torch.equal(copy, expected)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float64", "bool"])
def test_copies_without_a_factor_are_exact(trusted: TrustedKernels, dtype: str) -> None:
    import torch

    source = torch.randint(0, 2, (70_001,), device="cuda").to(getattr(torch, dtype))
    cases = [(0, 70_001, None), (1, 16, None), (5, 4097, None)]
    for (begin, count, _), copy in zip(cases, copied(trusted, source, cases), strict=True):
        assert torch.equal(copy, source[begin : begin + count])


def copied(
    trusted: TrustedKernels, source: torch.Tensor, cases: Sequence[tuple[int, int, float | None]]
) -> list[torch.Tensor]:
    """Return copies of slices of `source`, each in its own memory."""
    import torch

    from harness.judge.devices.cuda_memory import DeviceBatchedCopy
    from harness.judge.input_data.copies import Piece

    targets = [torch.zeros(count, dtype=source.dtype, device="cuda") for _, count, _ in cases]
    size = source.dtype.itemsize
    DeviceBatchedCopy(trusted)(
        [
            Piece(source.data_ptr() + begin * size, target.data_ptr(), count, source.dtype, factor)
            for (begin, count, factor), target in zip(cases, targets, strict=True)
        ]
    )
    return targets


def test_the_measured_overhead_of_events_is_repeatable(trusted: TrustedKernels) -> None:
    overheads_us = [trusted.pair_overhead_us() for _ in range(10)]
    assert statistics.stdev(overheads_us) < 0.08, overheads_us
    assert 1.0 < min(overheads_us) < 8.0, overheads_us


def test_sealed_readings_agree_with_cupti() -> None:
    from benchmarks.cupti import agreement

    rows = list(agreement())
    assert len(rows) >= 8
    differing = [row for row in rows if abs(float(row[2].rpartition(" ")[2])) > float(row[1].partition(" ")[0])]
    assert not differing, "\n".join(" ".join(row) for row in rows)
