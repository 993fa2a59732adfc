"""A judge of our own for one command: started, asked, ended. The daemon has its own client."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from pydantic import TypeAdapter

from harness.errors import ConfigurationError
from harness.model.config import SandboxKind
from harness.model.judging import JudgeAnswer, JudgeEvent, JudgeProgress, JudgeReady, JudgeRequest

_END_S = 20.0
_EVENTS: TypeAdapter[JudgeReady | JudgeProgress | JudgeAnswer] = TypeAdapter(JudgeEvent)


class JudgeProcess:
    """One judge on one device."""

    def __init__(self, device: str, cache: Path, sandbox: SandboxKind) -> None:
        replaced = os.environ.get("HARNESS_JUDGE_COMMAND")  # as the daemon takes it
        program = shlex.split(replaced) if replaced else [sys.executable, "-m", "harness.judge"]
        command = [*program, "--device", device, "--cache", str(cache), "--sandbox", sandbox]
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        try:
            self.ready = JudgeReady.model_validate_json(self._line())
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The judge's process id."""
        return self._process.pid

    def _line(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 - piped
        line = self._process.stdout.readline()
        if line:
            return line
        self._process.wait(timeout=_END_S)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace").strip().removeprefix("harness judge: ")
        what, _, remedy = said.partition("\n")
        raise ConfigurationError(
            what or f"the judge ended with code {self._process.returncode}", remedy=remedy.strip() or None
        )

    def ask(self, request: JudgeRequest, progress: Callable[[JudgeProgress], None]) -> JudgeAnswer:
        """Wait for the answer to one request.

        Raises:
            ConfigurationError: the judge ended instead of answering.
        """
        assert self._process.stdin is not None  # noqa: S101 - piped
        self._process.stdin.write(request.model_dump_json() + "\n")
        self._process.stdin.flush()
        while True:
            event = _EVENTS.validate_json(self._line())
            if isinstance(event, JudgeAnswer):
                return event
            if isinstance(event, JudgeProgress):
                progress(event)

    def close(self) -> None:
        """Close its stdin, which ends it; insist when it does not."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=_END_S)
        self._said.close()


@contextlib.contextmanager
def judge_process(device: str, cache: Path, sandbox: SandboxKind) -> Iterator[JudgeProcess]:
    """A judge for the length of a block.

    Raises:
        ConfigurationError: it cannot start here; the message is its own.
    """
    judge = JudgeProcess(device, cache, sandbox)
    try:
        yield judge
    finally:
        judge.close()
