"""Runners' outputs on the CPU: equal for both sides of a race, and empty for each new runner."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
import torch

from harness.judge.devices import cpu_clock
from harness.judge.input_data.layout import Field, Layout
from harness.judge.shared_memory import OutputPool, Region, poison_outputs


def test_outputs_of_a_runner_are_empty_for_the_next() -> None:
    pool = OutputPool(3 * mmap.PAGESIZE)
    lent = [pool.lend() for _ in range(5)]
    for region in lent:
        region.all.fill_(7)
        pool.take_back(region)
    assert not any(pool.lend().all.any() for _ in range(5))


def test_the_memory_of_timed_runners_remains_if_a_check_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> OutputPool:
        raise OSError("no memory")

    clock = cpu_clock.CpuClock.__new__(cpu_clock.CpuClock)
    timed_regions = {"_inputs": Region(1, sealed=True), "_spare_outputs": OutputPool(1)}
    vars(clock).update(timed_regions)
    monkeypatch.setattr(cpu_clock, "OutputPool", refuse)
    with pytest.raises(OSError, match="no memory"), clock.temporary_memory([Layout((), (), 4096, 4096, ())]):
        pass
    assert vars(clock) == timed_regions


def test_all_memory_is_allocated_before_use() -> None:
    pool = OutputPool(3 * mmap.PAGESIZE + 1)
    assert pool.bytes == 4 * mmap.PAGESIZE
    allocated_bytes = {os.fstat(pool.lend().descriptor).st_blocks * 512 for _ in range(5)}
    assert allocated_bytes == {pool.bytes}


def test_no_output_page_is_a_huge_page() -> None:
    """The kernel reports it: `nh` in VmFlags stands for MADV_NOHUGEPAGE."""
    pool = OutputPool(16 << 20)
    regions = [pool.lend(), Region(16 << 20, sealed=True)]
    for region in regions:
        region.all.fill_(1)
        entry = _smaps_entry(region.address)
        assert "nh" in entry["VmFlags"].split()
        assert entry["Rss"] == f"{16 << 10} kB"
        assert [entry[name] for name in ("ShmemPmdMapped", "FilePmdMapped")] == ["0 kB", "0 kB"]
        region.close()
    pool.close()


def _smaps_entry(address: int) -> dict[str, str]:
    """Return the fields of one mapping of this process, from /proc/self/smaps (proc_pid_smaps(5))."""
    text = Path("/proc/self/smaps").read_text()
    lines = text[text.index(f"\n{address:x}-") + 1 :].splitlines()[1:]
    fields = (line.partition(":") for line in lines[: next(i for i, line in enumerate(lines) if "VmFlags" in line) + 1])
    return {name: value.strip() for name, _, value in fields}


def test_large_outputs_get_larger_regions_and_small_ones_the_usual_regions() -> None:
    pool = OutputPool(mmap.PAGESIZE)
    early = pool.lend()
    assert pool.resize(10 * mmap.PAGESIZE), "the size changes"
    assert not pool.resize(10 * mmap.PAGESIZE)
    pool.take_back(early)
    assert [pool.lend().bytes for _ in range(4)] == [10 * mmap.PAGESIZE] * 4, "all have the new size"
    assert pool.resize(1)
    assert pool.bytes == mmap.PAGESIZE


def test_unwritten_outputs_are_nan_or_a_pattern() -> None:
    fields = (Field("y", "float32", (4,), 0, 16, None), Field("index", "int32", (4,), 64, 16, None))
    region = Region(2 * mmap.PAGESIZE, sealed=False)
    layout = Layout((), fields, 0, mmap.PAGESIZE, ())
    poison_outputs(region, layout, [0, 1], native=None, inputs=region)
    for slot in (0, 1):
        outputs = layout.output_views(region.slot(slot, layout.output_stride))
        assert outputs["y"].isnan().all()
        assert bytes(outputs["index"].view(torch.uint8).tolist()) == b"\xa5" * 16, "-1 is a plausible index"
    region.close()


def test_an_output_that_is_updated_in_place_begins_as_its_input_of_the_same_slot() -> None:
    inputs, region = (Region(2 * mmap.PAGESIZE, sealed=False) for _ in range(2))
    cache = Field("cache", "int32", (4,), 64, 16, None)
    fields = (Field("y", "float32", (4,), 0, 16, None), Field("new", "int32", (4,), 64, 16, None, "cache"))
    layout = Layout((cache,), fields, mmap.PAGESIZE, mmap.PAGESIZE, ())
    for slot in (0, 1):
        cache.view(inputs.slot(slot, mmap.PAGESIZE)).fill_(slot + 5)
    poison_outputs(region, layout, [0, 1], None, inputs)
    for slot in (0, 1):
        outputs = layout.output_views(region.slot(slot, layout.output_stride))
        assert outputs["y"].isnan().all()
        assert outputs["new"].tolist() == [slot + 5] * 4
    region.close()
    inputs.close()
