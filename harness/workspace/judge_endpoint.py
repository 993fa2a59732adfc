"""One judge process, on this host or another: the lines that its client sends, and the notices that it posts."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from harness.model.judging import CheckAnswer, JudgeAnswer, JudgeEvent, JudgeProgress, JudgeReady, protocol_mismatch

_EVENTS: TypeAdapter[JudgeReady | JudgeProgress | JudgeAnswer | CheckAnswer] = TypeAdapter(JudgeEvent)


@dataclass(frozen=True)
class JudgeMessage:
    """A message that a judge wrote."""

    device: str
    process_number: int
    """Number of the client's process: notices of an earlier process are ignored."""
    event: JudgeReady | JudgeProgress | JudgeAnswer | CheckAnswer


@dataclass(frozen=True)
class JudgeEnded:
    """The end of a judge's process."""

    device: str
    process_number: int
    reason: str
    wrong_protocol: bool = False
    exit_code: int = 0
    """A negative value is the signal that ended the process."""


JudgeNotice = JudgeMessage | JudgeEnded


class JudgeEndpoint(Protocol):
    """A judge process that was started. It posts a notice for each of its lines, and one for its end."""

    @property
    def pid(self) -> int | None:
        """Process id; None for a process of another host."""

    def send(self, line: bytes) -> None:
        """Send a line. If the process has ended, its end is posted."""

    def kill(self) -> None:
        """End the process and its group immediately."""

    def hang_up(self) -> None:
        """Request the end of the process, without waiting for it."""

    def wait_ended(self, within_s: float) -> bool:
        """Wait until the process has ended and its last notice is posted; return False after `within_s` seconds."""


Launch = Callable[[int], JudgeEndpoint]
"""Starts the process of a given number. Raises OSError if that fails."""


class LocalJudge:
    """A judge process of this host.

    Args:
        device: the device that its notices name.
        number: the number that its notices carry.
        post: receives the notices, in a thread of this object.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(
        self, device: str, command: Sequence[str], number: int, log_file: Path, post: Callable[[JudgeNotice], None]
    ) -> None:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # its own process group: Ctrl-C goes to the daemon, a kill to the whole group
            )
        self._reader = threading.Thread(
            target=_listen, args=(self._process, device, number, post), name=f"judge-{device}"
        )
        self._reader.start()

    @property
    def pid(self) -> int | None:
        """Process id of the judge."""
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None  # noqa: S101 - opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which another notice reports
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL to its group."""
        _signal_group(self._process, signal.SIGKILL)

    def hang_up(self) -> None:
        """Close its stdin, and send SIGTERM to its group."""
        self._close_stdin()
        _signal_group(self._process, signal.SIGTERM)

    def wait_ended(self, within_s: float) -> bool:
        """Join the reader, which reaps the process."""
        self._reader.join(timeout=within_s)
        if self._reader.is_alive():
            return False
        self._close_stdin()
        return True

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):  # unsent bytes for a process that has ended
                self._process.stdin.close()


def read_notice(device: str, number: int, line: bytes | str) -> JudgeNotice:
    """Return the message of a judge's line, or the judge's end if the line does not follow the protocol."""
    mismatch = protocol_mismatch(line, "ready", "answer")
    if mismatch is not None:
        return JudgeEnded(device, number, mismatch, wrong_protocol=True)
    try:
        return JudgeMessage(device, number, _EVENTS.validate_json(line))
    except ValidationError:
        return JudgeEnded(device, number, f"wrote a line that is not the protocol: {line[:120]!r}")


def _listen(process: subprocess.Popen[bytes], device: str, number: int, post: Callable[[JudgeNotice], None]) -> None:
    """Read lines until the process ends, then end its group, reap it and post its end."""
    refused: JudgeEnded | None = None
    assert process.stdout is not None  # noqa: S101 - opened as a pipe
    with process.stdout as lines:
        for line in lines:
            notice = read_notice(device, number, line)
            if isinstance(notice, JudgeEnded):
                refused = notice
                break
            post(notice)
    # Not reaped yet, so that its pid still identifies its group.
    broken = None if refused or _ends(process, within_s=5.0) else "closed its output and continued to run"
    _signal_group(process, signal.SIGKILL)
    code = process.wait()
    ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    reason = refused.reason if refused else broken or ended
    post(JudgeEnded(device, number, reason, refused is not None and refused.wrong_protocol, exit_code=code))


def _ends(process: subprocess.Popen[bytes], *, within_s: float) -> bool:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return True
        time.sleep(0.005)
    return False


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    if process.returncode is None:  # the group of a reaped process may be another one
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
