"""Sessions of Claude, by its SDK. The one module that imports it.

The SDK and the CLI that it drives talk over the CLI's standard streams; the CLI and everything it starts run confined
(`confinement`), the SDK and the tools here, outside. The conversation runs in a thread of its own; tools are used in
the thread that goes through the events, one at a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import shlex
import threading
import uuid
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
from claude_agent_sdk.types import HookContext, HookInput, HookJSONOutput

from harness.agents import confinement
from harness.agents.loop import run_and_close
from harness.agents.session import Alive, Answer, Brief, End, Event, Retry, Text, Tool, ToolUse, Usage
from harness.errors import ConfigurationError
from harness.model.config import AgentRole
from harness.model.truncate import one_line
from harness.workspace.files import atomic_write

TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "TodoWrite")
SERVER = "harness"
_SUBAGENTS = ("Agent", "Task")
"""Names under which versions of the CLI offer subagents."""
_ALIVE_S = 0.5
_GRACE_S = 20.0
"""From being told to stop to being killed: a turn that is under way may end."""
_HURRIED_S = 5.0
_CLOSE_S = 30.0
_NUDGES = 2
"""Ends of turn without a submission in between after which the agent is taken at its word."""
_SUMMARY = 120
_ENV = {
    "CLAUDE_CONFIG_DIR": f"{confinement.HOME}/.claude",
    "CLAUDE_CODE_TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
    "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",  # the gateway has waited long enough when it says no
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "MCP_TOOL_TIMEOUT": str(24 * 3600 * 1000),  # a submission waits for its turn on a device
    "BASH_DEFAULT_TIMEOUT_MS": "120000",
    "BASH_MAX_OUTPUT_LENGTH": "20000",
}
_NUDGE = (
    "Your turn has ended, your assignment has not. If you see another way to make it faster, go on and submit it. "
    "If not, leave a note of what you learned with the note tool, and say that you are done."
)
_HELD = {408, 409, 429, 500, 502, 503, 504, 529}
_REFUSED = {401, 403}

logger = logging.getLogger(__name__)


@dataclass
class _Call:
    """A tool that the agent has asked for."""

    tool: Tool
    given: dict[str, Any]
    answer: Future[Answer] = field(default_factory=Future)


class ClaudeSession:
    """An `AgentSession` of Claude."""

    def __init__(self, brief: Brief) -> None:
        if brief.view is None:
            raise ConfigurationError("a session of claude needs a view of what it is shown")
        self.model = brief.model or "default"
        self._brief, self._view = brief, brief.view
        resumable = brief.resume is not None and _transcript(brief.view.home, brief.resume)
        self._resume = brief.resume if resumable else None
        self.id = self._resume or str(uuid.uuid4())
        self._events: queue.SimpleQueue[Event | _Call] = queue.SimpleQueue()
        self._interrupted = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[End] | None = None
        self._told = self._hurried = False
        self._usd = 0.0
        self._client: sdk.ClaudeSDKClient | None = None
        self._breaking: asyncio.Task[None] | None = None

    def interrupt(self, *, at_once: bool = False) -> None:
        """End at the next boundary between turns; after a while, at once."""
        if self._interrupted.is_set() and (self._hurried or not at_once):
            return
        self._hurried = self._hurried or at_once
        self._interrupted.set()
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # it has just ended by itself
                loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_HURRIED_S if self._hurried else _GRACE_S, self._cancel)
        if self._hurried and self._client is not None and not self._told:
            self._told = True
            self._breaking = loop.create_task(self._client.interrupt())

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def events(self) -> Generator[Event, None, None]:
        """Talk, use tools, and say what happens."""
        thread = threading.Thread(target=self._run, name=f"claude-{self.id[:8]}", daemon=True)
        thread.start()
        event: Event = Alive()
        try:
            while not isinstance(event, End):
                event = self._next()
                yield event
        finally:
            loop = self._loop
            if thread.is_alive() and loop is not None:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self._cancel)
            self._refuse_waiting_calls()
            thread.join(_CLOSE_S)

    def _next(self) -> Event:
        """What happens next; a tool that the agent asked for is used meanwhile."""
        try:
            item = self._events.get(timeout=_ALIVE_S)
        except queue.Empty:
            return Alive()
        if isinstance(item, _Call):
            item.answer.set_result(item.tool.use(item.given))
            return Alive()
        return item

    def _refuse_waiting_calls(self) -> None:
        with suppress(queue.Empty):
            while True:
                item = self._events.get_nowait()
                if isinstance(item, _Call):
                    item.answer.set_result(Answer("the session ends", failed=True))

    # --- in the conversation's thread ---

    def _run(self) -> None:
        try:
            end = run_and_close(self._conversation())
        except Exception as error:  # the border of the SDK: whatever it raises, the worker goes on
            logger.exception("the session %s broke", self.id)
            end = End("crashed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        self._events.put(end)

    async def _conversation(self) -> End:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._talk())
        if self._interrupted.is_set():
            self._arm()
        try:
            return await self._task
        except asyncio.CancelledError:
            return End("interrupted", "told to stop; the turn under way was cut off")

    async def _talk(self) -> End:
        end: End | None = None
        async with sdk.ClaudeSDKClient(self._options()) as client:
            await client.query(_again(self._brief.prompt) if self._resume else self._brief.prompt)
            self._client = client
            nudges, submitted = 0, self._brief.submitted()
            while end is None:
                end = await self._listen(client)
                idle, submitted = self._brief.submitted() == submitted, self._brief.submitted()
                nudges = nudges + 1 if idle else 0
                if end is None and self._interrupted.is_set():
                    end = End("interrupted", "told to stop between two turns")
                elif end is None and (nudges >= _NUDGES or self._brief.role == "planner"):
                    end = End("done", f"says that it is done, after {submitted} submissions")
                elif end is None:
                    await client.query(_NUDGE)
        return end or End("crashed", "the CLI went away")

    async def _listen(self, client: sdk.ClaudeSDKClient) -> End | None:
        """Hear one turn out; None when the agent ended it by itself."""
        async for message in client.receive_response():
            for event in _heard(message):
                self._events.put(event)
            if isinstance(message, sdk.SystemMessage) and message.subtype == "init":
                self.model = str(message.data.get("model") or self.model)
            if isinstance(message, sdk.ResultMessage):
                if self._view.network == "host":  # no gateway has counted
                    self._events.put(self._used(message))
                return _ended(message, interrupted=self._told)
            if self._interrupted.is_set() and not self._told:
                self._told = True
                await client.interrupt()
        return End("crashed", "the CLI ended without a result")

    def _used(self, message: sdk.ResultMessage) -> Usage:
        """What the CLI says a turn of the agent took; its money is a running total."""
        usage = message.usage or {}
        tokens = sum(number for name, number in usage.items() if name.endswith("_tokens") and isinstance(number, int))
        before, self._usd = self._usd, message.total_cost_usd or self._usd
        return Usage(usd=max(0.0, self._usd - before), tokens=tokens, turns=message.num_turns)

    def _options(self) -> sdk.ClaudeAgentOptions:
        brief = self._brief
        names = [f"mcp__{SERVER}__{tool.name}" for tool in brief.offered]
        server = sdk.create_sdk_mcp_server(SERVER, tools=[self._sdk_tool(tool) for tool in brief.offered])
        builtin: tuple[str, ...] = TOOLS if brief.role == "worker" else ("Read", "Glob", "Grep")
        roles = {name: self._subagent(role) for name, role in brief.roles.items()} if brief.role == "worker" else {}
        builtin = (*builtin, *_SUBAGENTS) if roles else builtin
        effort: Any = brief.effort
        return sdk.ClaudeAgentOptions(
            cli_path=self._confined_cli(),
            tools=list(builtin),
            allowed_tools=[*builtin, *names],
            permission_mode="dontAsk",
            setting_sources=[],
            strict_mcp_config=True,
            settings=json.dumps({"includeCoAuthoredBy": False, "cleanupPeriodDays": 30}),
            mcp_servers={SERVER: server},
            system_prompt=brief.system,
            verbatim_prompts=True,
            model=brief.model,
            effort=effort,
            max_turns=brief.budget.turns,
            max_budget_usd=brief.budget.usd,
            resume=self._resume,
            session_id=None if self._resume else self.id,
            agents=roles or None,
            hooks={"PreToolUse": [sdk.HookMatcher(hooks=[self._before_tool], on_failure="block")]},
            stderr=lambda line: logger.info("cli of %s: %s", self.id[:8], line),
            cwd="/",
        )

    @staticmethod
    def _subagent(role: AgentRole) -> sdk.AgentDefinition:
        """Return a role of harness.yaml in the SDK's form. Its requests pass the session's gateway like all others."""
        tools = [name if name in TOOLS else f"mcp__{SERVER}__{name}" for name in role.tools]
        return sdk.AgentDefinition(role.description, role.prompt, tools=tools, model=role.model, effort=role.effort)

    def _confined_cli(self) -> Path:
        """A script that runs the CLI confined: the SDK takes one path."""
        bundled = Path(sdk.__file__).parent / "_bundled" / "claude"
        cli = os.environ.get("HARNESS_CLAUDE_CLI") or str(bundled)
        longest = self._brief.max_answer_tokens
        limits = {} if longest is None else {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(longest)}
        command = confinement.command_line(self._view, [cli], {**_ENV, **limits})
        passed = ' CLAUDE_AGENT_SDK_VERSION="$CLAUDE_AGENT_SDK_VERSION"'
        env_i, rest = shlex.join(command[:2]), shlex.join(command[2:])
        script = self._view.reading.parent / "claude"
        atomic_write(script, f'#!/bin/sh\nexec {env_i}{passed} {rest} "$@"\n')
        script.chmod(0o700)
        return script

    def _sdk_tool(self, tool: Tool) -> sdk.SdkMcpTool[Any]:
        properties = {each.name: {"type": "string", "description": each.description} for each in tool.parameters}
        needed = [each.name for each in tool.parameters if each.needed]
        schema = dict(tool.schema or {"type": "object", "properties": properties, "required": needed})

        async def use(given: dict[str, Any]) -> dict[str, Any]:
            call = _Call(tool, given)
            self._events.put(call)
            answer = await asyncio.wrap_future(call.answer)
            return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.failed}

        return sdk.tool(tool.name, tool.description, schema)(use)

    async def _before_tool(self, asked: HookInput, _: str | None, __: HookContext) -> HookJSONOutput:
        """Runs before every tool; one that raises blocks the tool."""
        name, given = str(asked["tool_name"]), dict(asked["tool_input"])  # type: ignore[typeddict-item]
        if self._interrupted.is_set():
            return _denied("you are being moved to other work: end your turn now, your work is kept")
        path = given.get("file_path")
        if name in {"Write", "Edit"} and isinstance(path, str):
            allowed = self._view.shown
            # Inside the sandbox: nothing of this host is looked at.
            spot = os.path.normpath(f"{confinement.TASK}/{path}" if path[:1] != "/" else path)  # noqa: ASYNC240
            if not spot.startswith((f"{allowed}/", "/tmp/", f"{confinement.HOME}/")):  # noqa: S108
                return _denied(f"only files below {allowed}/ may change")
        return {}


def _denied(why: str) -> HookJSONOutput:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": why,
        }
    }


def _heard(message: object) -> Iterator[Event]:
    if isinstance(message, sdk.AssistantMessage):
        for block in message.content:
            if isinstance(block, sdk.TextBlock) and block.text.strip():
                yield Text(one_line(block.text, _SUMMARY))
            elif isinstance(block, sdk.ToolUseBlock):
                yield ToolUse(block.name.removeprefix(f"mcp__{SERVER}__"), _summary(block.input), _key(block))
    elif isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry":
        delay = message.data.get("retry_delay_ms")
        yield Retry(str(message.data.get("error") or "the model's side"), float(delay or 0) / 1e3)
    else:
        yield Alive()


def _ended(message: sdk.ResultMessage, *, interrupted: bool) -> End | None:  # noqa: PLR0911 - a table
    """What a turn's end means for the session; None: the agent has ended its turn."""
    text = one_line(message.result or "; ".join(message.errors or []) or message.subtype, _SUMMARY)
    if message.subtype in {"error_max_turns", "error_max_budget_usd"}:
        return End("budget", message.subtype.removeprefix("error_"))
    if interrupted or (message.terminal_reason or "").startswith("aborted"):
        return End("interrupted", "told to stop between two turns")
    if not message.is_error:
        return None
    status = message.api_error_status
    if status in _REFUSED:
        return End("refused", text)
    if status in _HELD or (status is None and message.terminal_reason == "api_error"):
        return End("held", text)
    if "the harness ends this session" in text:
        return End("budget", text)
    return End("failed", text)


def _again(prompt: str) -> str:
    return (
        "This session was cut off and goes on now. Your files are as you left them; a tool that was running then was "
        f"lost. Go on where you were. For reference, the assignment as it stands now:\n\n{prompt}"
    )


def _transcript(home: Path, session: str) -> bool:
    """Whether the CLI can go on with a session: it keeps its conversations in its home."""
    return any((home / ".claude" / "projects").glob(f"*/{session}.jsonl"))


def _summary(given: Mapping[str, Any]) -> str:
    for name in ("command", "file_path", "message", "query", "pattern", "text"):
        if isinstance(given.get(name), str):
            return one_line(str(given[name]), _SUMMARY)
    return ""


def _key(block: sdk.ToolUseBlock) -> str:
    """Tells two uses of a tool apart by what they are given."""
    return json.dumps([block.name, block.input], sort_keys=True, default=str)
