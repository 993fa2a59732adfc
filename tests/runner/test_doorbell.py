"""The shared page between judge and runner, with the runner in another process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from harness.runner.doorbell import Doorbell, Request, create_page

MANY_SPINS = 50_000_000


@pytest.fixture
def page() -> Iterator[int]:
    descriptor = create_page()
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def runner(page: int) -> Iterator[int]:
    """Yield a process that serves requests and reports n * 10 ns for a call at placement n."""
    pid = os.fork()
    if pid == 0:
        try:
            Doorbell(page).serve(call=lambda placement: 10 * placement, ping=lambda: None)
        finally:
            os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.usefixtures("runner")
def test_each_request_is_answered_once_with_what_the_runner_claims(page: int) -> None:
    doorbell = Doorbell(page)
    for number, (request, placement) in enumerate([(Request.PING, 0), (Request.CALL, 7), (Request.CALL, 3)], start=1):
        doorbell.prepare(request, placement)
        assert not doorbell.is_answered(number, spins=1000)
        doorbell.ring(number)
        assert doorbell.is_answered(number, MANY_SPINS)
        assert doorbell.claimed_ns == 10 * {1: 0, 2: 7, 3: 3}[number]


def test_the_runner_returns_at_a_request_to_end(page: int, runner: int) -> None:
    doorbell = Doorbell(page)
    doorbell.prepare(Request.END)
    doorbell.ring(1)
    assert doorbell.is_answered(1, MANY_SPINS)
    assert os.waitid(os.P_PID, runner, os.WEXITED | os.WNOWAIT) is not None


def test_a_request_made_before_the_runner_listens_is_served(page: int) -> None:
    judge = Doorbell(page)
    judge.prepare(Request.END)
    judge.ring(1)
    Doorbell(page).serve(call=lambda placement: placement, ping=lambda: None)
    assert judge.is_answered(1, spins=1)
