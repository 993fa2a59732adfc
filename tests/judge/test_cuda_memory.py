"""Poison and samples of outputs in host memory, by the functions that are used on the device."""

from __future__ import annotations

import pytest
import torch

from harness.judge.devices.cuda_memory import POSITIONS, WORD, OutputSample, is_poisoned, poison
from harness.judge.devices.cuda_timers import calls_per_batch
from harness.judge.input_data.layout import Field, Layout
from harness.judge.memory_plan import placement_count
from harness.model.interval import FIRST_BLOCKS

GIB = 1 << 30
STRIDE = 16384
LAYOUT = Layout(
    inputs=(),
    outputs=(
        Field("y", "float32", (1025,), 0, 4100, None),
        Field("index", "int32", (1027,), 4160, 4108, None),
        Field("flag", "bool", (3,), 8320, 3, None),
    ),
    input_stride=0,
    output_stride=STRIDE,
    axes=(),
)

NO_INPUTS = torch.empty(0, dtype=torch.uint8)


def words(outputs: torch.Tensor, sample: OutputSample) -> torch.Tensor:
    return outputs.view(torch.int64)[sample.indices]


def test_poison_is_detected_in_every_sample() -> None:
    outputs = torch.zeros(STRIDE, dtype=torch.uint8)
    poison(outputs, LAYOUT, NO_INPUTS)
    for _ in range(200):
        sample = OutputSample.draw(STRIDE)
        assert is_poisoned(words(outputs, sample), LAYOUT, sample)


@pytest.mark.parametrize(("begin", "end"), [(0, 4096), (4160, 8256), (8448, STRIDE)], ids=["y", "index", "after"])
def test_written_bytes_are_detected(begin: int, end: int) -> None:
    outputs = torch.zeros(STRIDE, dtype=torch.uint8)
    poison(outputs, LAYOUT, NO_INPUTS)
    outputs[begin:end] = 1
    sample = OutputSample.draw(STRIDE)
    assert not is_poisoned(words(outputs, sample), LAYOUT, sample)


def test_an_output_that_is_updated_in_place_has_the_content_of_its_input() -> None:
    cache = Field("cache", "float32", (1000,), 64, 4000, None)
    fields = (
        Field("y", "float32", (1025,), 0, 4100, None),
        Field("new", "float32", (1000,), 4160, 4000, None, "cache"),
    )
    layout = Layout((cache,), fields, 4096, STRIDE, ())
    input_bytes, outputs = torch.randint(256, (4096,), dtype=torch.uint8), torch.zeros(STRIDE, dtype=torch.uint8)
    poison(outputs, layout, input_bytes)
    assert torch.equal(outputs[4160:8160], input_bytes[64:4064])
    assert outputs[:4100].eq(255).all()
    assert outputs[8160:].eq(255).all()
    sample = OutputSample.draw(STRIDE)
    assert is_poisoned(words(outputs, sample), layout, sample)
    outputs[:4096] = 1
    assert not is_poisoned(words(outputs, sample), layout, sample)


def test_samples_are_within_the_outputs_at_varying_offsets() -> None:
    offsets = set()
    for _ in range(100):
        sample = OutputSample.draw(STRIDE)
        assert sample.indices.numel() == POSITIONS
        assert int(sample.indices.min()) * WORD >= 0
        assert int(sample.indices.max()) * WORD + WORD <= STRIDE
        offsets.add(sample.offset)
    assert len(offsets) == STRIDE // POSITIONS // WORD


@pytest.mark.parametrize(
    ("size", "free", "calls", "count"),
    [
        (2 << 20, 140 * GIB, 10, 64),
        (2 << 20, 140 * GIB, 6, 38),
        (2 << 20, 140 * GIB, 5, 32),
        (256 << 20, 140 * GIB, 10, 16),
        (2 * GIB, 140 * GIB, 10, 4),
        (2 * GIB, 140 * GIB, 1, 4),
        (40 * GIB, 140 * GIB, 1, 1),
    ],
)
def test_large_sets_and_short_batches_have_fewer_placements(size: int, free: int, calls: int, count: int) -> None:
    assert placement_count(size, free, calls) == count


@pytest.mark.parametrize("workloads", [1, 2, 3, 4, 7, 14, 60])
def test_workloads_share_the_calls_and_each_placement_has_two_that_count(workloads: int) -> None:
    calls = calls_per_batch(workloads)
    assert calls * workloads >= calls_per_batch(1), "all workloads together have at least the calls of one alone"
    counted = 2 * FIRST_BLOCKS * (calls - 1)  # two batches in each block; their first calls do not count
    assert counted >= 2 * placement_count(2 << 20, 140 * GIB, calls), "fewer would leave `placement_variance` at 0"
