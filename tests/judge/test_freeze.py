"""A stopped sandbox is stopped: threads, children, and processes that wake each other."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.judge.freeze import MAX_PROCESSES, FreezeError, Herd
from harness.judge.memory import Region
from tests.judge.confined import confined
from tests.waiting import wait_until

_COUNTERS = """
import mmap, os, signal, struct, sys, threading, time
memory = mmap.mmap(int(sys.argv[1]), 4096)
def count(place):
    value = 0
    while True:
        value += 1
        struct.pack_into("<q", memory, 8 * place, value)
"""
_THREADS = """
for place in range(1, 4):
    threading.Thread(target=count, args=(place,), daemon=True).start()
count(0)
"""
_CHILDREN = """
for place in range(1, 4):
    if os.fork() == 0:
        count(place)
count(0)
"""
_THREADS_THAT_COME_AND_GO = """
def one(place, value):
    struct.pack_into("<q", memory, 8 * place, value)
def again_and_again(place):
    value = 0
    while True:
        value += 1
        thread = threading.Thread(target=one, args=(place, value))
        thread.start()
        thread.join()
for place in range(1, 4):
    threading.Thread(target=again_and_again, args=(place,), daemon=True).start()
again_and_again(0)
"""
_WAKING_EACH_OTHER = """
children = []
for place in range(1, 4):
    pid = os.fork()
    if pid == 0:
        value = 0
        while True:
            value += 1
            struct.pack_into("<q", memory, 8 * place, value)
            for other in range(2, 8):
                try: os.kill(other, signal.SIGCONT)
                except OSError: pass
    children.append(pid)
value = 0
while True:
    value += 1
    struct.pack_into("<q", memory, 0, value)
    for child in children:
        os.kill(child, signal.SIGCONT)
"""


@contextmanager
def _herd(code: str, tmp_path: Path) -> Iterator[tuple[Herd, Region]]:
    region = Region(mmap.PAGESIZE, sealed=False)
    gate = "memory[4000:4001] = b'r'\nwhile memory[4001] == 0: time.sleep(0.001)\n"
    with confined(_COUNTERS + gate + code, tmp_path, inherit=(region.descriptor,)) as (sandbox, _):
        wait_until(lambda: region.all[4000].item() == ord("r"), what="the sandboxed process")
        herd = Herd.of(sandbox.first, isolated=True)
        region.all[4001] = 1
        try:
            wait_until(lambda: all(_counts(region)), what="all counters")
            yield herd, region
        finally:
            herd.close()
    region.close()


def _counts(region: Region) -> tuple[int, ...]:
    return struct.unpack("<4q", bytes(region.all[:32].tolist()))


@pytest.mark.parametrize(
    "code",
    [_THREADS, _THREADS_THAT_COME_AND_GO, _CHILDREN, _WAKING_EACH_OTHER],
    ids=["threads", "coming", "children", "waking"],
)
def test_nothing_moves_while_it_is_stopped(tmp_path: Path, code: str) -> None:
    with _herd(code, tmp_path) as (herd, region):
        for _ in range(5):
            herd.stop(120.0)
            before = _counts(region)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                assert _counts(region) == before
            herd.go()
            wait_until(partial(_all_beyond, region, before), what="progress")


def _all_beyond(region: Region, before: tuple[int, ...]) -> bool:
    return all(now > then for now, then in zip(_counts(region), before, strict=True))


def test_a_fork_bomb_is_given_up_on(tmp_path: Path) -> None:
    code = f"""
for place in range({MAX_PROCESSES + 10}):
    if os.fork() == 0:
        time.sleep(600)
for place in range(4):
    struct.pack_into("<q", memory, 8 * place, 1)
time.sleep(600)
"""
    with _herd(code, tmp_path) as (herd, _), pytest.raises(FreezeError, match="processes in the sandbox"):
        herd.stop()


def test_the_time_that_others_took_is_told_from_its_own(tmp_path: Path) -> None:
    with _herd(_THREADS, tmp_path) as (herd, _):
        herd.stop(120.0)
        on, waited, total = herd.run_delay_ns()
        assert total >= on > 0
        assert waited >= 0
        assert herd.run_delay_ns() == (on, waited, total), "stopped, it uses nothing"


def test_a_sandbox_that_ended_is_stopped(tmp_path: Path) -> None:
    code = "for place in range(4): struct.pack_into('<q', memory, 8 * place, 1)\n"
    with _herd(code, tmp_path) as (herd, _):
        wait_until(lambda: _gone(herd), what="its end")
        herd.stop()
        herd.go()


def _gone(herd: Herd) -> bool:
    try:
        return Path(f"/proc/{herd.runner}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True
