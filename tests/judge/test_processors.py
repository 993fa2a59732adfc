"""Processors of the judge of a GPU and of the timed runner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.judge.devices.processors import TimingCores, assign, physical_cores


def system(root: Path, siblings: dict[int, str]) -> Path:
    """Write a description of processors: for each processor, the list of the processors of its core."""
    for number, text in siblings.items():
        directory = root / f"cpu{number}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(f"{text}\n")
    return root


def test_judge_and_runner_are_never_on_one_core(tmp_path: Path) -> None:
    threads = {number: f"{number % 8},{number % 8 + 8}" for number in range(16)}
    processors = assign(range(16), system=system(tmp_path, threads))
    assert processors is not None
    assert (processors.judge, processors.timed) == (frozenset({7, 15}), frozenset({6, 14}))
    assert processors.remaining == frozenset(range(16)) - {6, 7, 14, 15}


def test_ranges_and_processors_that_may_not_be_used(tmp_path: Path) -> None:
    where = system(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})
    assert physical_cores({0, 1, 2}, where) == {frozenset({0, 1}), frozenset({2})}


def test_with_many_cores_the_sibling_processors_stay_idle(tmp_path: Path) -> None:
    processors = assign(range(16), system=tmp_path)
    assert processors is not None
    assert (processors.judge, processors.timed, processors.remaining) == (
        frozenset({14}),
        frozenset({12}),
        frozenset(range(12)),
    )


def test_judges_of_one_host_have_disjoint_cores_on_the_node_of_their_gpu(tmp_path: Path) -> None:
    nodes = [frozenset(range(32)), frozenset(range(32, 64))]
    near_gpus = [nodes[0], nodes[0], nodes[1], nodes[1]]
    assigned = [assign(range(64), near_gpus, gpu, tmp_path) for gpu in range(4)]
    own = [processors.judge | processors.timed for processors in assigned if processors is not None]
    assert [min(processors) for processors in own] == [28, 24, 60, 56]
    assert sum(map(len, own)) == len(frozenset[int]().union(*own)) == 8
    assert all(processors <= near for processors, near in zip(own, near_gpus, strict=True))
    remaining = {processors.remaining for processors in assigned if processors is not None}
    assert remaining == {
        frozenset([*range(24), *range(32, 56)])
    }  # no runner starts on a core on which another judge times


def test_gpus_that_share_too_few_cores_are_not_pinned(tmp_path: Path) -> None:
    everywhere = [frozenset[int]()] * 4
    assert assign(range(15), everywhere, 0, tmp_path) is None
    assert assign(range(16), everywhere, 3, tmp_path) is not None


def test_few_cores_are_not_divided(tmp_path: Path) -> None:
    assert assign(range(3), system=tmp_path) is None
    assert assign(range(4), system=tmp_path) is not None


class Runner:
    """Stand-in for a runner's connection."""

    has_served = False


def test_every_batch_but_a_workloads_first_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[frozenset[int]] = []
    pinned: list[frozenset[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, processors: own.append(processors))
    allowed = frozenset(range(5))
    cores, runner = TimingCores(allowed, system=system(tmp_path, {number: str(number) for number in allowed})), Runner()
    with cores.pinned(runner, pinned.append):
        pass
    assert (own, pinned) == ([], [])
    with cores.pinned(runner, pinned.append):
        (judge,), (timed,) = own, pinned
        assert len(judge) == len(timed) == 1
        assert judge.isdisjoint(timed)
    assert own[1:] == [allowed]
    assert pinned[1:] == [cores.of_runners] == [allowed - judge - timed]
