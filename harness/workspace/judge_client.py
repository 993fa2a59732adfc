"""The client of judge processes: it starts one, sends requests, and starts another when one ends.

Only this module starts a judge and reads and writes its messages. Its callers send requests and receive answers or
losses: the daemon as notices in its queue, a command through `blocking_judge`.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.errors import EXIT_HOST_FAULT, EXIT_OUT_OF_MEMORY
from harness.failpoints import failpoint
from harness.model.config import SandboxKind
from harness.model.judging import (
    PROTOCOL_FIX,
    CheckAnswer,
    CheckRequest,
    JudgeAnswer,
    JudgeProgress,
    JudgeReady,
    JudgeRequest,
)
from harness.model.process_status import JudgeState
from harness.workspace.directories import Workspace
from harness.workspace.judge_endpoint import JudgeEnded, JudgeEndpoint, JudgeNotice, Launch, LocalJudge
from harness.workspace.log_files import limit_size, tail
from harness.workspace.processes import oom_kills

START_S = 180.0
"""A judge imports torch and calibrates its clock before it is ready, which takes minutes on a slow, cold disk."""
MARGIN_S = 420.0
"""Added to the judge's own limit. That limit ends a candidate that hangs, and this one ends a judge that hangs.

The judge's limit counts from the first round; the build before it may take 180 s.
"""
BASELINE_FACTOR = 30.0
"""A baseline request times every variant on every workload with each of the device's clocks, and compiles the reference
for each workload first; max-autotune takes minutes."""
_MORE_FACTOR = 3.0
"""Factor for each kind of baseline measured on request: compiling a library takes minutes."""
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0
ERROR_PREFIX = "harness judge: "
"""Text that a judge writes before the message of an error that ends it."""
_LAST_NOTICE_S = 5.0
_TAIL_BYTES = 4000


@dataclass(frozen=True)
class RequestAnswered:
    """A request and its answer."""

    request: JudgeRequest
    answer: JudgeAnswer


@dataclass(frozen=True)
class CheckAnswered:
    """A check and its answer."""

    request: CheckRequest
    answer: CheckAnswer


@dataclass(frozen=True)
class JudgeLost:
    """The end of a judge's process, and of the request that it worked on, if any."""

    request: JudgeRequest | None
    cause: Literal["ended", "deadline", "protocol", "host", "memory"]
    """`protocol`: the judge has another protocol version, so that a restart does not help. `host`: this machine
    prevents its work now. `memory`: this machine ran out of memory or processes, which a candidate may have taken."""
    reason: str
    error: str = ""
    """The judge's own error message, if it wrote one: the error, and on further lines the fix."""
    fix: str | None = None
    checks: tuple[CheckRequest, ...] = ()
    """Checks that are lost with the process."""


def judge_command(device: str, cache: Path, sandbox: SandboxKind) -> list[str]:
    """Return the command line of the judge of one device.

    Args:
        cache: the directory of the judge's build artefacts and snapshots.
    """
    replaced = os.environ.get("HARNESS_JUDGE_COMMAND")
    program = shlex.split(replaced) if replaced else [sys.executable, "-m", "harness.judge"]
    return [*program, "--device", device, "--cache", str(cache), "--sandbox", sandbox]


def judge_log_file(workspace: Workspace, device: str) -> Path:
    """Return the file with the stderr of the judge of one device."""
    return workspace.logs / f"judge-{device.replace(':', '-')}.log"


def deadline_s(request: JudgeRequest) -> float:
    """Return the time in seconds after which a judge without an answer counts as hung."""
    factor = BASELINE_FACTOR + _MORE_FACTOR * len(request.more_variants) if request.kind == "baseline" else 1.0
    return request.max_judge_s * factor + MARGIN_S


class JudgeClient:
    """The judge of one device. All methods are for one thread; `post` is called from other threads.

    Args:
        command: the judge's command line on this host.
        post: receives the notices; the caller passes each to `handle` in its own thread.
        target: the target of its candidates, if it is not the device's own.
        launch: starts its processes in place of `command`, for a judge of another host.
    """

    def __init__(
        self,
        device: str,
        command: Sequence[str],
        log_file: Path,
        post: Callable[[JudgeNotice], None],
        *,
        target: str | None = None,
        launch: Launch | None = None,
    ) -> None:
        self.device = device
        self.log_file = log_file
        self.state: JudgeState = "waiting"
        self.ready: JudgeReady | None = None
        self.request: JudgeRequest | None = None
        self.progress: JudgeProgress | None = None
        self.failures = 0
        """Losses since the last answer."""
        self.failed_starts = 0
        """Processes in a row that ended before they were ready."""
        self.became_ready = False
        """True if any process of this client was ready."""
        self.failure: str | None = None
        """Reason of the last loss; None while the judge is ready."""
        self.host_fault: str | None = None
        """Fault of this machine that ended the process, in one line; None after an answered request."""
        self.checks: dict[str, CheckRequest] = {}
        """Checks that have no answer yet, by id."""
        self._oom_kills = 0
        self._target = target
        self._launch = launch or (lambda number: LocalJudge(device, command, number, log_file, post))
        self._post = post
        self._process_number = 0
        self._endpoint: JudgeEndpoint | None = None
        self._until = 0.0
        """Monotonic time in seconds: of the next start while waiting, of the deadline while starting or busy."""
        self._allowed_s = 0.0
        self._log_from = 0
        self._overdue = False

    @property
    def pid(self) -> int | None:
        """Process id of the judge; None without a process on this host."""
        return self._endpoint.pid if self._endpoint else None

    @property
    def target(self) -> str | None:
        """The target of its candidates; None while the judge is not ready."""
        return self.ready.target if self.ready else None

    def start(self) -> None:
        """Start the process, which sends a message when it is ready."""
        self._process_number += 1
        self.state, self.ready, self.progress = "starting", None, None
        self._overdue = False
        self._allowed_s = START_S
        self._until = time.monotonic() + self._allowed_s
        failpoint("daemon.before_judge_start")
        try:
            limit_size(self.log_file)
            self._log_from = self.log_file.stat().st_size if self.log_file.exists() else 0
            self._endpoint = self._launch(self._process_number)
        except OSError as error:
            self._post(JudgeEnded(self.device, self._process_number, f"cannot be started: {error}"))
            return
        failpoint("daemon.after_judge_start")

    def ask(self, request: JudgeRequest, *, within_s: float | None = None) -> None:
        """Send a request to an idle judge.

        Args:
            within_s: time limit in seconds; the default is `deadline_s(request)`.

        Raises:
            RuntimeError: the judge is not idle.
        """
        if self.state != "idle" or self._endpoint is None:
            raise RuntimeError(f"the judge of {self.device} is {self.state}, not idle")
        self.state, self.request, self.progress = "busy", request, None
        self._oom_kills = oom_kills()
        self._allowed_s = within_s if within_s is not None else deadline_s(request)
        self._until = time.monotonic() + self._allowed_s
        self._endpoint.send(_line(request))

    def ask_check(self, request: CheckRequest) -> None:
        """Send a check to a judge that is ready, idle or busy.

        Raises:
            RuntimeError: the judge is not ready.
        """
        if self.ready is None or self._endpoint is None:
            raise RuntimeError(f"the judge of {self.device} is {self.state}, not ready")
        self.checks[request.id] = request
        self._endpoint.send(_line(request))

    def handle(
        self, notice: JudgeNotice
    ) -> JudgeReady | JudgeProgress | RequestAnswered | CheckAnswered | JudgeLost | None:
        """Process a notice and return the resulting event; None for a notice of an earlier process."""
        if notice.process_number != self._process_number or self.state == "closed":
            return None
        if isinstance(notice, JudgeEnded):
            return self._lost(notice)
        event = notice.event
        if isinstance(event, CheckAnswer):
            return self._checked(event)
        return self._received(event)

    def _checked(self, event: CheckAnswer) -> CheckAnswered | None:
        """Return a check's answer, and extend the deadline of the request that has waited for it."""
        request = self.checks.pop(event.id, None)
        self._until += event.build_s + event.check_s
        return CheckAnswered(request, event) if request is not None else None

    def _received(
        self, event: JudgeReady | JudgeProgress | JudgeAnswer
    ) -> JudgeReady | JudgeProgress | RequestAnswered | None:
        if isinstance(event, JudgeReady):
            self.ready, self.state = event.model_copy(update={"target": self._target or event.target}), "idle"
            self.failed_starts, self.became_ready, self.failure = 0, True, None
            return self.ready
        if self.request is None or event.id != self.request.id:
            return None  # an answer without a request
        if isinstance(event, JudgeProgress):
            self.progress = event
            return event
        request_answered = RequestAnswered(self.request, event)
        self.state, self.request, self.progress, self.failures, self.host_fault = "idle", None, None, 0, None
        return request_answered

    def tick(self) -> None:
        """Restart the judge after its pause; kill one that is overdue (a notice reports its loss)."""
        if time.monotonic() < self._until:
            return
        if self.state == "waiting":
            self.start()
        elif self.state in {"starting", "busy"} and not self._overdue and self._endpoint is not None:
            self._overdue = True
            self._endpoint.kill()

    def next_tick(self) -> float | None:
        """Return the monotonic time in seconds of the next action of `tick`; None if there is none."""
        return self._until if self.state in {"waiting", "starting", "busy"} else None

    def close(self, *, grace_s: float = 3.0) -> None:
        """End the process and its whole group within twice `grace_s`, and join the reader."""
        self.hang_up()
        if self._endpoint is not None and not self._endpoint.wait_ended(grace_s):
            self._endpoint.kill()
            self._endpoint.wait_ended(grace_s)
        self._endpoint = None

    def _cause_of(self, ended: JudgeEnded) -> Literal["ended", "host", "memory"]:
        """Return the cause of the end: `host` and `memory` by the exit code, or by the kernel's count of OOM kills."""
        if ended.exit_code == EXIT_HOST_FAULT:
            return "host"
        killed_for_memory = self.request and ended.exit_code == -signal.SIGKILL and oom_kills() > self._oom_kills
        return "memory" if killed_for_memory or ended.exit_code == EXIT_OUT_OF_MEMORY else "ended"

    def give_up(self) -> None:
        """Stop restarting the process. Called after a loss."""
        self.state = "given up"

    def hang_up(self) -> None:
        """Send SIGTERM to the process, without waiting for its end."""
        self.state = "closed"
        if self._endpoint is not None:
            self._endpoint.hang_up()

    def _lost(self, ended: JudgeEnded) -> JudgeLost:
        request, overdue = self.request, self._overdue
        lateness = f"{'did not answer' if request else 'was not ready'} within {self._allowed_s:.0f} s"
        event = lateness if overdue else ended.reason
        cause = "deadline" if overdue else self._cause_of(ended)
        # A judge that fails to restart after a fault of the machine still has that fault.
        host_fault = cause in {"host", "memory"} or (self.host_fault is not None and self.state == "starting")
        checks, self.checks = tuple(self.checks.values()), {}
        self.failures += 1
        self.failed_starts += self.state == "starting" and not host_fault
        self.state, self.request, self.progress, self.ready = "waiting", None, None, None
        if self._endpoint is not None:
            self._endpoint.wait_ended(_LAST_NOTICE_S)
        self._endpoint = None
        self._until = time.monotonic() + min(FIRST_PAUSE_S * 2 ** (self.failures - 1), LONGEST_PAUSE_S)
        error, last_line = _error_written(self.log_file, self._log_from)
        sentence = "; fix: ".join((error or last_line).split("\n  "))
        quoted = f" (it wrote: {' '.join(sentence.split())})" if last_line else ""
        self.failure = f"the judge of {self.device} {event}{quoted}"
        if ended.wrong_protocol:
            reason = f"the judge of {self.device} {ended.reason}"
            return JudgeLost(request, "protocol", reason, fix=PROTOCOL_FIX, checks=checks)
        if host_fault:
            self.host_fault = "; fix: ".join((error or event).split("\n  "))
        return JudgeLost(request, cause, self.failure, error, checks=checks)


def _line(request: JudgeRequest | CheckRequest) -> bytes:
    return json.dumps(request.model_dump(mode="json")).encode() + b"\n"


def _error_written(log_file: Path, start: int) -> tuple[str, str]:
    """Return the judge's own error message and the last line, written at or after byte `start`; "" for none."""
    text = tail(log_file, start, _TAIL_BYTES).strip()
    _, marker, error = text.rpartition(ERROR_PREFIX)
    return error if marker else "", text.rpartition("\n")[2].strip()
