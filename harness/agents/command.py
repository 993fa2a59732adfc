"""Sessions of any coding agent that has a command line.

The program gets its prompt as a file, an argument or its standard input, and the solution directory. It submits with
`harness submit`, which writes a request file; this module executes the request outside the sandbox. The output of the
program and its uses of tools are stored for each session (`transcripts`).
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import subprocess
import threading
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from string import Formatter
from typing import Any

from harness.agents import confinement
from harness.agents.session import Alive, Answer, Brief, End, Event, Text, ToolUse
from harness.agents.transcripts import KEPT_S, ToolRecord, command_log, tool_records
from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json_file
from harness.ledger.accounts import present_time
from harness.model.config import AgentConfig
from harness.workspace.files import atomic_write, remove_older

PLACEHOLDERS = ("prompt_file", "prompt", "task", "solution", "problem", "target", "model", "worker")
_PROMPT = f"{confinement.TASK}/PROMPT.md"
_POLL_S = 0.05
_ENDS_WITHIN_S = 5.0
_LONGEST_REQUEST = 1 << 20
_LONGEST_LOG = 16 << 20
_TAIL = 200

logger = logging.getLogger(__name__)


def check_template(template: str | None) -> str:
    """Return the template of the command line if it is valid.

    Raises:
        ConfigurationError: there is no template, or it has an unknown placeholder.
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
    unknown_names = names - set(PLACEHOLDERS)
    if unknown_names:
        raise ConfigurationError(
            f"unknown placeholder {', '.join(sorted(unknown_names))}; known: {', '.join(PLACEHOLDERS)}",
            where="agent.command",
            remedy="write {{ and }} for braces of the command itself",
        )
    return template


def check_command(agent: AgentConfig, root: Path | None = None) -> None:
    """Check the settings of kind `command` in the section `agent` of harness.yaml.

    Args:
        root: the workspace; None if it is not known or the check of `binds` against it does not matter.

    Raises:
        ConfigurationError: the template, a path of `binds` or a variable of `env` is not valid.
    """
    check_template(agent.command)
    bound_paths(agent, root)
    variables(agent)


def bound_paths(agent: AgentConfig, root: Path | None) -> tuple[Path, ...]:
    """Return the host paths that the sandbox shows in addition to the task.

    Args:
        agent: the section `agent` of harness.yaml.
        root: the workspace, which no path may show; None skips that check.

    Raises:
        ConfigurationError: a path does not exist, or contains the workspace or a part of it.
    """
    paths = tuple(Path(name).expanduser() for name in agent.binds)
    for path in paths:
        if not path.is_absolute() or not path.exists():
            raise ConfigurationError(
                f"no such file or directory: {path}",
                where="agent.binds",
                remedy="name what the command needs by absolute paths (`~` is this user's home), or remove the line",
            )
        target = path.resolve()
        if root is not None and (root.resolve().is_relative_to(target) or target.is_relative_to(root.resolve())):
            raise ConfigurationError(
                f"{path} would show the agent the workspace {root}: its ledger, git objects and other agents' work",
                where="agent.binds",
                remedy="name only the directories that the command itself is installed in",
            )
    return paths


def variables(agent: AgentConfig) -> dict[str, str]:
    """Return the environment variables that `agent.env` sets for the command.

    Raises:
        ConfigurationError: a name is not valid, or a variable to be copied from this environment is not set.
    """
    values = {}
    for name, value in agent.env.items():
        if not name.isidentifier():
            raise ConfigurationError(f"`{name}` is not a valid name of a variable", where="agent.env")
        resolved = os.environ.get(name) if value is None else value
        if resolved is None:
            raise ConfigurationError(
                f"{name} is not set in the environment of the harness",
                where=f"agent.env.{name}",
                remedy=f"export {name}=..., or write its value in harness.yaml",
            )
        values[name] = resolved
    return values


class CommandSession:
    """An `AgentSession` of a program."""

    def __init__(self, brief: Brief) -> None:
        assert brief.view is not None and brief.view.requests is not None  # noqa: S101, PT018 - only a tuner needs none
        self.id = brief.resume or uuid.uuid4().hex
        self.model = brief.agent.model or "command"
        self._brief, self._view, self._requests = brief, brief.view, brief.view.requests
        self._tools = {tool.name: tool for tool in brief.offered}
        self._interrupted = threading.Event()
        directory = self._view.reading.parent
        self._log, self._records = command_log(directory, self.id), tool_records(directory, self.id)
        remove_older(self._log.parent.glob("*"), KEPT_S)

    def interrupt(self, *, at_once: bool = False) -> None:
        """Terminate the program, and kill it if it does not exit within 5 s.

        Args:
            at_once: ignored, because a program has no turns.
        """
        del at_once
        self._interrupted.set()

    def events(self) -> Generator[Event, None, None]:
        """Run the program and execute its requests; yield the events."""
        command = self._command()
        for stale_request in self._requests.glob("*"):
            stale_request.unlink()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:  # a resumed session appends to its log
            log_begin = log.tell()
            process = subprocess.Popen(
                confinement.command_line(self._view, command, {"HARNESS_MODEL": self._brief.agent.model or ""}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                yield from self._serve(process, log_begin)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                process.wait(_ENDS_WITHIN_S)
        yield self._end(process.returncode, log_begin)

    def _command(self) -> list[str]:
        prompt = self._view.reading / "PROMPT.md"
        atomic_write(prompt, f"{self._brief.system}\n\n{self._brief.prompt}\n")
        values = {
            "prompt_file": _PROMPT,
            "task": confinement.TASK,
            "solution": self._view.shown,
            "problem": self._view.problem,
            "target": self._view.target,
            "model": self._brief.agent.model or "",
            "worker": self._brief.worker,
        }
        quoted = {name: shlex.quote(value) for name, value in values.items()}
        quoted["prompt"] = f'"$(cat {_PROMPT})"'  # the kernel limits one argument to 128 KiB in any case
        return ["/bin/sh", "-c", check_template(self._brief.agent.command).format(**quoted)]

    def _serve(self, process: subprocess.Popen[bytes], log_begin: int) -> Iterator[Event]:
        waited_s = 0.0
        while process.poll() is None:
            request = next(iter(sorted(self._requests.glob("*.request"))), None)
            if request is not None:
                yield from self._execute(request)
            if self._interrupted.is_set():
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_ENDS_WITHIN_S)
                return
            if self._log.stat().st_size - log_begin > _LONGEST_LOG:
                yield Text(f"the program printed more than {_LONGEST_LOG >> 20} MiB: the session ends")
                self._interrupted.set()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            waited_s += _POLL_S
            if waited_s >= 0.5:
                waited_s = 0.0
                yield Alive()

    def _execute(self, request: Path) -> Iterator[Event]:
        tool, arguments = self._read(request)
        if tool is None:
            answer = Answer(f"expected one of {', '.join(self._tools)}, with arguments", failed=True)
        else:
            yield ToolUse(tool, str(next(iter(arguments.values()), "")), json.dumps([tool, arguments], sort_keys=True))
            at, log_bytes = present_time(), self._log.stat().st_size
            answer = self._tools[tool].use(arguments)
            record = ToolRecord(
                at=at, log_bytes=log_bytes, tool=tool, arguments=arguments, answer=answer.text, failed=answer.failed
            )
            try:
                with self._records.open("a", encoding="utf-8") as records:
                    records.write(f"{record.model_dump_json()}\n")
            except OSError as error:  # a full disk must not end the session
                logger.warning("the transcript misses one use of a tool: %s", error)
        atomic_write(request.with_suffix(".answer"), json.dumps(asdict(answer)))
        request.unlink(missing_ok=True)

    def _read(self, request: Path) -> tuple[str | None, dict[str, Any]]:
        """Return the requested tool and its arguments; (None, {}) for an invalid file, which the agent may write."""
        if request.is_symlink() or not request.is_file() or request.stat().st_size > _LONGEST_REQUEST:
            return None, {}
        with suppress(FormatError, OSError, TypeError):  # TypeError: `tool` is a list or a mapping
            call = load_json_file(request, max_bytes=_LONGEST_REQUEST)
            if isinstance(call, dict) and call.get("tool") in self._tools and isinstance(call.get("arguments"), dict):
                return str(call["tool"]), call["arguments"]
        return None, {}

    def _end(self, code: int, log_begin: int) -> End:
        if self._interrupted.is_set():
            return End("interrupted", "stopped by the harness")
        with self._log.open("rb") as file:
            file.seek(max(log_begin, self._log.stat().st_size - _TAIL))
            tail = " ".join(file.read().decode(errors="replace").split())
        if code == 0:
            return End("done", tail)
        return End("crashed" if code < 0 else "failed", f"exit code {code}: {tail}")
