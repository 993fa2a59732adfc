"""The runner process: maps the sets, then serves requests from the doorbell with its adversary's code."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any

from .adversaries import ADVERSARIES
from .device import DryGpu, Gpu
from .doorbell import CALL, DONE, EMPTY, PING, RUNNER_NS, SEQUENCE, STOP, Doorbell
from .memory import Sets

_MOST_DESCRIPTORS = 250
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RunnerPlan:
    """Configuration of one runner process; the judge sends it as JSON."""

    adversary: str
    bell: int
    sets: int
    set_bytes: int
    elements: int
    rounds: int
    core: int
    """The core that the process is pinned to; -1 for any."""
    dry: bool


def launch_service(memory: mmap.mmap) -> socket.socket:
    """Fork a process that forks runners, so that CuPy is imported once, and return the socket to it."""
    judge_end, service_end = socket.socketpair()
    pid = os.fork()
    if pid:
        service_end.close()
        return judge_end
    judge_end.close()
    _end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(service_end, 4096, 1)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            service_end.close()
            os.setpgid(0, 0)
            _end_with_parent()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            status = 1
            try:
                serve(RunnerPlan(**json.loads(data)), socket.socket(fileno=descriptors[0]), memory)
                status = 0
            except BaseException:  # noqa: BLE001 - the border of a process
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(status)
        os.close(descriptors[0])


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def serve(plan: RunnerPlan, channel: socket.socket, memory: mmap.mmap) -> None:
    """Map the sets, compute each once, report readiness, and answer requests until STOP.

    Args:
        plan: configuration of the runner.
        channel: socket to the judge, which sends the sets' descriptors.
        memory: the doorbell pages.
    """
    if plan.core >= 0:
        os.sched_setaffinity(0, {plan.core})
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"  # a waiting stream must not block other streams
    gpu: Any = DryGpu() if plan.dry else Gpu()
    descriptors: list[int] = []
    while len(descriptors) < 2 * plan.sets:
        descriptors += socket.recv_fds(channel, 1, _MOST_DESCRIPTORS)[1]
    sets = Sets.receive(gpu, plan.sets, plan.set_bytes, descriptors)
    bell = Doorbell(memory, plan.bell)
    adversary = ADVERSARIES[plan.adversary](gpu, sets, bell, plan.elements, plan.rounds)
    for placement in range(plan.sets):
        adversary.work(placement)
    adversary.start()
    if plan.core >= 0:
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    gc.collect()
    gc.disable()
    served = int(bell.words[SEQUENCE])  # before the judge may ring
    channel.sendall(json.dumps({"pid": os.getpid()}).encode())
    _serve_requests(adversary, bell, served)


def _serve_requests(adversary: Any, bell: Doorbell, served: int) -> None:  # noqa: ANN401, C901, PLR0912 - one loop: every call costs time that is measured
    words = bell.words
    idle = adversary.idle
    while True:
        if idle is None:
            while words[SEQUENCE] == served:
                pass
        else:
            while words[SEQUENCE] == served:
                idle()
        served = int(words[SEQUENCE])
        kind, placement = words[2], int(words[3])
        begin = time.perf_counter_ns()
        if kind == CALL:
            adversary.call(placement)
        elif kind == PING:
            adversary.ping()
        elif kind == EMPTY:
            adversary.empty()
        elif kind == STOP:
            adversary.stop()
            words[DONE] = served
            return
        else:
            adversary.batch(int(words[5]))
        if not (kind == CALL and adversary.answers_itself):
            if not adversary.reports_time:
                words[RUNNER_NS] = time.perf_counter_ns() - begin
            words[DONE] = served
        if kind == CALL:
            adversary.after(placement)
