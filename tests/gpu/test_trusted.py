"""The trusted kernels, in this process: what they copy, and what they say of the events' overhead."""

from __future__ import annotations

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
def test_scaled_pieces_are_what_torch_makes_of_them(trusted: TrustedKernels, dtype: str) -> None:
    import torch

    source = torch.randn(70_001, device="cuda").to(getattr(torch, dtype))
    cases = [(0, 1, 1.03), (3, 4096, -0.97), (1, 70_000, 1e-30), (7, 129, 1e30)]
    made = copied(trusted, source, [(begin, count, factor) for begin, count, factor in cases])
    for (begin, count, factor), found in zip(cases, made, strict=True):
        right = torch.mul(source[begin : begin + count], factor)
        assert torch.equal(found, right)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "int64", "float64", "bool"])
def test_other_pieces_are_copied_as_they_are(trusted: TrustedKernels, dtype: str) -> None:
    import torch

    source = torch.randint(0, 2, (70_001,), device="cuda").to(getattr(torch, dtype))
    cases = [(0, 70_001, None), (1, 16, None), (5, 4097, None)]
    for (begin, count, _), found in zip(cases, copied(trusted, source, cases), strict=True):
        assert torch.equal(found, source[begin : begin + count])


def copied(
    trusted: TrustedKernels, source: torch.Tensor, cases: Sequence[tuple[int, int, float | None]]
) -> list[torch.Tensor]:
    """Slices of `source`, each into memory of its own."""
    import torch

    from harness.judge.batched_copy import Piece
    from harness.judge.devices.cuda_memory import DeviceBatchedCopy

    targets = [torch.zeros(count, dtype=source.dtype, device="cuda") for _, count, _ in cases]
    size = source.dtype.itemsize
    DeviceBatchedCopy(trusted)(
        [
            Piece(source.data_ptr() + begin * size, target.data_ptr(), count, source.dtype, factor)
            for (begin, count, factor), target in zip(cases, targets, strict=True)
        ]
    )
    return targets


def test_the_overhead_of_events_is_the_same_again_and_again(trusted: TrustedKernels) -> None:
    found = [trusted.pair_overhead_us() for _ in range(10)]
    assert max(found) - min(found) < 0.15, found
    assert 1.0 < min(found) < 8.0, found


def test_sealed_readings_agree_with_cupti() -> None:
    from benchmarks.cupti import agreement

    rows = list(agreement())
    assert len(rows) >= 8
    for what, allowed, seen in rows:
        difference = abs(float(seen.rpartition(" ")[2]))
        assert difference <= float(allowed.partition(" ")[0]), f"{what}: {seen}, allowed {allowed}"
