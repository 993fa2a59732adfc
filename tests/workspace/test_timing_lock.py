"""Builds and timings exclude each other, across processes."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.workspace.timing_lock import lock_directory, timing, timing_apart, working
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("own_locks")


@contextmanager
def _in_background(name: str, hold: object) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Hold a lock in a thread from the first event until the second is set."""
    is_held, release = threading.Event(), threading.Event()

    def run() -> None:
        with hold():  # type: ignore[operator]
            is_held.set()
            release.wait(20)

    thread = threading.Thread(target=run, name=name)
    thread.start()
    try:
        yield is_held, release
    finally:
        release.set()
        thread.join(timeout=120)


def _free(name: str) -> bool:
    descriptor = os.open(lock_directory() / name, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def test_several_may_work_at_once() -> None:
    with working(), _in_background("second", working) as (is_held, _):
        assert is_held.wait(20)


def test_a_clock_waits_for_work_and_later_work_waits_for_the_clock() -> None:
    with _in_background("first", working) as (working_held, finish):
        assert working_held.wait(20)
        with _in_background("clock", timing) as (timed, stop):
            wait_until(lambda: not _free("quiet-gate"), event="the clock at the gate")
            with _in_background("later", working) as (later, _):
                assert not timed.is_set()
                finish.set()
                assert timed.wait(20)
                assert not later.is_set(), "later work does not precede the waiting clock"
                stop.set()
                assert later.wait(20)


def test_locks_are_released_when_the_block_fails() -> None:
    with pytest.raises(ZeroDivisionError), timing():
        raise ZeroDivisionError
    assert _free("quiet")
    assert _free("quiet-gate")


def test_clocks_on_devices_of_their_own_run_at_once_and_a_cpus_clock_waits_for_them() -> None:
    with (
        _in_background("GPU", timing_apart) as (first, end_first),
        _in_background("other", timing_apart) as (second, end),
    ):
        assert first.wait(20)
        assert second.wait(20)
        with _in_background("CPU", timing) as (timed, _):
            wait_until(lambda: not _free("quiet-gate"), event="the CPU's clock at the gate")
            end_first.set()
            assert not timed.is_set()
            end.set()
            assert timed.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_each_user_of_a_host_takes_the_same_locks() -> None:
    script = """
import os, sys
from pathlib import Path
from harness.judge.devices.lock import take_device_lock
from harness.workspace import timing_lock
timing_lock._OF_ALL_USERS = Path(sys.argv[1])
os.environ.pop("HARNESS_LOCK_DIR", None)
os.umask(0o077)
user = int(sys.argv[2])
os.setgroups([])
os.setgid(user)
os.setuid(user)
with timing_lock.timing():
    os.close(take_device_lock(sys.argv[3], "the device"))
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o1777)
        for user, device in ((65534, "first"), (65533, "second"), (65534, "second"), (0, "first")):
            arguments = (sys.executable, "-c", script, directory, str(user), device)
            completed = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
            assert completed.returncode == 0, completed.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_doctor_reports_a_lock_that_this_user_may_not_open() -> None:
    script = """
import os, sys
from harness.cli.preflight.machine import check_locks
from harness.errors import ConfigurationError
os.setuid(65534)
try:
    check_locks(None)
except ConfigurationError as error:
    print(error)
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        command, environment = (sys.executable, "-c", script), {**os.environ, "HARNESS_LOCK_DIR": directory}
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "this user may not lock a device of this host" in completed.stdout
    assert "HARNESS_LOCK_DIR" in completed.stdout
