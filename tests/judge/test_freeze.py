"""Stopped sandboxes: threads, children, and processes that wake each other."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from harness.judge.isolation import seccomp
from harness.judge.isolation.cgroup_freezer import GroupFreezer, freezer_works
from harness.judge.isolation.process_freezer import MAX_PROCESSES, FreezeError, SandboxProcesses
from harness.judge.native import load_native
from harness.judge.shared_memory import Region
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


_WOKEN_BY_A_TIMER = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
event = (ctypes.c_char * 64)()
struct.pack_into("=qii", event, 0, 0, signal.SIGCONT, 0)  # sigevent: value, signal, SIGEV_SIGNAL
timer = ctypes.c_int()
assert libc.syscall(222, 1, event, ctypes.byref(timer)) == 0, ctypes.get_errno()
once = struct.pack("=qqqq", 0, 0, 0, 3_000_000)
value = 0
while True:
    value += 1
    for place in range(4):
        struct.pack_into("<q", memory, 8 * place, value)
    assert libc.syscall(223, timer, 0, once, None) == 0, ctypes.get_errno()
"""


_NEEDS_FREEZER = pytest.mark.skipif(not freezer_works(), reason="no writable control group of version 2 here")


@contextmanager
def _sandbox(code: str, tmp_path: Path, *, freezes: bool = False) -> Iterator[tuple[SandboxProcesses, Region]]:
    region = Region(mmap.PAGESIZE, sealed=False)
    gate = "memory[4000:4001] = b'r'\nwhile memory[4001] == 0: time.sleep(0.001)\n"
    with confined(_COUNTERS + gate + code, tmp_path, inherit=(region.descriptor,)) as (confinement, _):
        wait_until(lambda: region.all[4000].item() == ord("r"), event="the sandboxed process")
        freezer = GroupFreezer.of(confinement.groups) if freezes else None
        assert freezes == (freezer is not None)
        sandbox = SandboxProcesses.of(confinement.first, isolated=True, freezer=freezer)
        region.all[4001] = 1
        try:
            wait_until(lambda: all(_counts(region)), event="all counters")
            yield sandbox, region
        finally:
            sandbox.close()
    region.close()


def _counts(region: Region) -> tuple[int, ...]:
    return struct.unpack("<4q", bytes(region.all[:32].tolist()))


@pytest.mark.parametrize(
    ("code", "freezes"),
    [
        (_THREADS, False),
        pytest.param(_THREADS, True, marks=_NEEDS_FREEZER),
        (_THREADS_THAT_COME_AND_GO, False),
        (_CHILDREN, False),
        (_WAKING_EACH_OTHER, False),
    ],
    ids=["threads", "frozen", "coming", "children", "waking"],
)
def test_nothing_moves_while_it_is_stopped(tmp_path: Path, code: str, freezes: bool) -> None:
    with _sandbox(code, tmp_path, freezes=freezes) as (sandbox, region):
        for _ in range(5):
            sandbox.stop(120.0)
            before = _counts(region)
            until = time.monotonic() + 0.05
            while time.monotonic() < until:
                assert _counts(region) == before
            sandbox.resume()
            wait_until(partial(_all_beyond, region, before), event="progress")


def _all_beyond(region: Region, before: tuple[int, ...]) -> bool:
    return all(count > count_before for count, count_before in zip(_counts(region), before, strict=True))


def test_a_fork_bomb_is_an_error(tmp_path: Path) -> None:
    code = f"""
for place in range({MAX_PROCESSES + 10}):
    if os.fork() == 0:
        time.sleep(600)
for place in range(4):
    struct.pack_into("<q", memory, 8 * place, 1)
time.sleep(600)
"""
    with _sandbox(code, tmp_path) as (sandbox, _), pytest.raises(FreezeError, match="processes in the sandbox"):
        sandbox.stop()


def test_run_delay_separates_waiting_from_running(tmp_path: Path) -> None:
    with _sandbox(_THREADS, tmp_path) as (sandbox, _):
        sandbox.stop(120.0)
        on, waited, total = sandbox.run_delay_ns()
        assert total >= on > 0
        assert waited >= 0
        assert sandbox.run_delay_ns() == (on, waited, total), "a stopped sandbox uses no processor time"


def test_a_stopped_sandbox_passes_the_check(tmp_path: Path) -> None:
    with _sandbox(_THREADS, tmp_path) as (sandbox, _):
        sandbox.check_still_stopped()  # without a stop there is nothing to check
        for _ in range(20):
            sandbox.stop(5.0)
            sandbox.check_still_stopped()
            sandbox.check_still_stopped()
            sandbox.resume()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are this architecture's")
def test_a_timer_that_continues_a_stopped_sandbox_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter's rule against timers is off, so that only the detection is tested."""
    denied = {name: number for name, number in seccomp._DENIED["x86_64"].items() if name != "timer_create"}  # noqa: SLF001
    monkeypatch.setitem(seccomp._DENIED, "x86_64", denied)  # noqa: SLF001
    with _sandbox(_WOKEN_BY_A_TIMER, tmp_path) as (sandbox, region):
        wait_until(lambda: _continued_by_its_timer(sandbox, region), event="the timer's signal")
        with pytest.raises(FreezeError, match="while it was stopped"):
            sandbox.check_still_stopped()


def _continued_by_its_timer(sandbox: SandboxProcesses, region: Region) -> bool:
    """Stop the sandbox; return true if its timer continues it. A stop can discard a pending signal, so it may not."""
    try:
        sandbox.stop(5.0)
    except FreezeError:
        return False
    before = _counts(region)
    try:
        wait_until(lambda: _counts(region) != before, event="progress", deadline_s=0.2)
    except TimeoutError:
        sandbox.resume()
        return False
    return True


def test_a_sandbox_that_was_continued_and_stopped_again_is_detected(tmp_path: Path) -> None:
    with _sandbox(_THREADS, tmp_path) as (sandbox, region):
        sandbox.stop(5.0)
        before = _counts(region)
        os.kill(sandbox.runner, signal.SIGCONT)
        wait_until(lambda: _counts(region) != before, event="progress")
        os.kill(sandbox.runner, signal.SIGSTOP)
        with pytest.raises(FreezeError, match="while it was stopped"):
            sandbox.check_still_stopped()


@_NEEDS_FREEZER
def test_no_signal_continues_a_frozen_sandbox(tmp_path: Path) -> None:
    with _sandbox(_THREADS, tmp_path, freezes=True) as (sandbox, region):
        sandbox.stop(5.0)
        sandbox.check_still_stopped()  # freezing gives no thread a processor
        before = _counts(region)
        os.kill(sandbox.runner, signal.SIGCONT)
        wait_until(lambda: _is_refused(sandbox), event="the signal's trace")
        assert _counts(region) == before
        sandbox.resume()
        wait_until(partial(_all_beyond, region, before), event="progress")


@_NEEDS_FREEZER
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls are this architecture's")
def test_a_timer_does_not_continue_a_frozen_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    denied = {name: number for name, number in seccomp._DENIED["x86_64"].items() if name != "timer_create"}  # noqa: SLF001
    monkeypatch.setitem(seccomp._DENIED, "x86_64", denied)  # noqa: SLF001
    with _sandbox(_WOKEN_BY_A_TIMER, tmp_path, freezes=True) as (sandbox, region):
        wait_until(lambda: _woken_by_its_timer(sandbox, region), event="the timer's signal")


def _woken_by_its_timer(sandbox: SandboxProcesses, region: Region) -> bool:
    """Stop the sandbox; return true if its timer's signal leaves a trace. A stop can discard a pending signal."""
    sandbox.stop(5.0)
    before = _counts(region)
    try:
        wait_until(lambda: _is_refused(sandbox), event="the signal's trace", deadline_s=0.2)
    except TimeoutError:
        return False
    else:
        assert _counts(region) == before
        return True
    finally:
        sandbox.resume()


def _is_refused(sandbox: SandboxProcesses) -> bool:
    try:
        sandbox.check_still_stopped()
    except FreezeError as error:
        return "while it was stopped" in error.reason
    return False


@pytest.mark.parametrize("freezes", [False, pytest.param(True, marks=_NEEDS_FREEZER)])
def test_the_clock_does_not_start_for_a_sandbox_that_has_run(tmp_path: Path, judge_cache: Path, freezes: bool) -> None:
    native = load_native(judge_cache)
    assert native is not None
    client_socket, peer_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with client_socket, peer_socket, _sandbox(_THREADS, tmp_path, freezes=freezes) as (sandbox, region):
        sandbox.stop(5.0)
        proved, before = sandbox.proved_slices, _counts(region)
        assert proved is not None
        exchange = partial(
            native.exchange, client_socket.fileno(), *sandbox.descriptors(), spin=False, within_s=0.05, record=24
        )
        assert exchange(slices=proved + 1).refused
        assert _counts(region) == before
        unanswered = exchange(slices=proved)
        assert (unanswered.refused, unanswered.data) == (False, None), "the sandbox ran without an answer"
        wait_until(partial(_all_beyond, region, before), event="progress")
        assert exchange(slices=proved).refused, "the sandbox runs"


def test_a_process_that_ended_while_it_was_stopped_is_detected(tmp_path: Path) -> None:
    with _sandbox(_THREADS, tmp_path) as (sandbox, _):
        sandbox.stop(5.0)
        os.kill(sandbox.runner, signal.SIGKILL)
        wait_until(lambda: _has_ended(sandbox), event="its end")
        with pytest.raises(FreezeError, match="while it was stopped"):
            sandbox.check_still_stopped()


def test_a_sandbox_that_ended_is_stopped(tmp_path: Path) -> None:
    code = "for place in range(4): struct.pack_into('<q', memory, 8 * place, 1)\n"
    with _sandbox(code, tmp_path) as (sandbox, _):
        wait_until(lambda: _has_ended(sandbox), event="its end")
        sandbox.stop()
        sandbox.resume()


def _has_ended(sandbox: SandboxProcesses) -> bool:
    try:
        return Path(f"/proc/{sandbox.runner}/stat").read_text().rpartition(") ")[2][0] in "ZX"
    except OSError:
        return True


def test_a_sandbox_whose_command_has_ended_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with confined("import time; time.sleep(60)", tmp_path) as (sandbox, _):
        monkeypatch.setattr(SandboxProcesses, "_members", lambda _: [sandbox.first])
        with pytest.raises(FreezeError, match="the sandbox ended before it began"):
            SandboxProcesses.of(sandbox.first, isolated=True)
