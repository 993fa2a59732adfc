"""Sessions of any other coding agent with a command line.

It gets a prompt file and the worktree, and submits with `harness submit`: a request in a file that is carried out
here, outside its sandbox.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from harness.agents import confinement
from harness.agents.session import Alive, Answer, Brief, End, Event, Text, ToolUse
from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json_file
from harness.workspace.files import atomic_write

PLACEHOLDERS = ("prompt_file", "task", "solution", "problem", "target", "model", "worker")
_POLL_S = 0.05
_ENDS_WITHIN_S = 5.0
_LONGEST_REQUEST = 1 << 20
_LONGEST_LOG = 16 << 20
_TAIL = 200

logger = logging.getLogger(__name__)


def check_template(template: str | None) -> str:
    """The command line's template, with known placeholders only.

    Raises:
        ConfigurationError: there is none, or it names an unknown placeholder.
    """
    if not template:
        raise ConfigurationError(
            "agent `command` needs a command line",
            where="agent.command",
            remedy='for example: agent: {kind: command, command: "my-agent {prompt_file}"} (docs/agents.md)',
        )
    try:
        names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigurationError(f"not a template: {error}", where="agent.command") from error
    unknown = names - set(PLACEHOLDERS)
    if unknown:
        raise ConfigurationError(
            f"unknown placeholder {', '.join(sorted(unknown))}; known: {', '.join(PLACEHOLDERS)}",
            where="agent.command",
            remedy="write {{ and }} for braces of the command itself",
        )
    return template


class CommandSession:
    """An `AgentSession` of a program."""

    def __init__(self, brief: Brief) -> None:
        if brief.view is None or brief.view.requests is None:
            raise ConfigurationError("a command's session needs a view and a place for its requests")
        self.id = brief.resume or uuid.uuid4().hex
        self.model = brief.model or "command"
        self._brief, self._view, self._requests = brief, brief.view, brief.view.requests
        self._tools = {tool.name: tool for tool in brief.offered}
        self._interrupted = threading.Event()

    def interrupt(self, *, at_once: bool = False) -> None:
        """End it: a program has no turns, so it is asked to end, and killed when it does not."""
        del at_once
        self._interrupted.set()

    def events(self) -> Generator[Event, None, None]:
        """Run the program; carry out what it asks for."""
        command = self._command()
        for left in self._requests.glob("*"):
            left.unlink()
        log = self._view.reading.parent / "command.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                confinement.command_line(self._view, command, {"HARNESS_MODEL": self._brief.model or ""}),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield from self._serve(process, log)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait(_ENDS_WITHIN_S)
        yield self._end(process.returncode, log)

    def _command(self) -> list[str]:
        prompt = self._view.reading / "PROMPT.md"
        atomic_write(prompt, f"{self._brief.system}\n\n{self._brief.prompt}\n")
        values = {
            **self._brief.values,
            "prompt_file": f"{confinement.TASK}/PROMPT.md",
            "task": confinement.TASK,
            "solution": self._view.shown,
            "model": self._brief.model or "",
        }
        quoted = {name: shlex.quote(values.get(name, "")) for name in PLACEHOLDERS}
        return ["/bin/sh", "-c", check_template(self._brief.command).format(**quoted)]

    def _serve(self, process: subprocess.Popen[bytes], log: Path) -> Iterator[Event]:
        waited = 0.0
        while process.poll() is None:
            request = next(iter(sorted(self._requests.glob("*.request"))), None)
            if request is not None:
                yield from self._carry_out(request)
            if self._interrupted.is_set():
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDS_WITHIN_S)
                return
            if log.stat().st_size > _LONGEST_LOG:
                yield Text("says too much: its output is cut")
                self._interrupted.set()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            waited += _POLL_S
            if waited >= 0.5:
                waited = 0.0
                yield Alive()

    def _carry_out(self, request: Path) -> Iterator[Event]:
        tool, given = self._read(request)
        if tool is None:
            answer = Answer(f"expected one of {', '.join(self._tools)}, with arguments", failed=True)
        else:
            yield ToolUse(tool, str(next(iter(given.values()), "")), json.dumps([tool, given], sort_keys=True))
            answer = self._tools[tool].use(given)
        atomic_write(request.with_suffix(".answer"), json.dumps({"text": answer.text, "failed": answer.failed}))
        request.unlink(missing_ok=True)

    def _read(self, request: Path) -> tuple[str | None, dict[str, Any]]:
        """The tool asked for and its arguments; None when the file is no request. It was written by the agent."""
        if request.is_symlink() or not request.is_file() or request.stat().st_size > _LONGEST_REQUEST:
            return None, {}
        with suppress(FormatError, OSError, TypeError):  # TypeError: a tool that is a list or mapping
            asked = load_json_file(request, max_bytes=_LONGEST_REQUEST)
            if (
                isinstance(asked, dict)
                and asked.get("tool") in self._tools
                and isinstance(asked.get("arguments"), dict)
            ):
                return str(asked["tool"]), asked["arguments"]
        return None, {}

    def _end(self, code: int, log: Path) -> End:
        if self._interrupted.is_set():
            return End("interrupted", "told to stop")
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            tail = " ".join(file.read().decode(errors="replace").split())
        if code == 0:
            return End("done", tail)
        return End("crashed" if code < 0 else "failed", f"exit code {code}: {tail}")
