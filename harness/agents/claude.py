"""Sessions of Claude, through its SDK, which only this module imports.

The SDK and its CLI communicate over the CLI's standard streams. The CLI and all processes that it starts run in the
sandbox (`confinement`); the SDK and the tools run outside. The conversation runs in a thread of its own. The thread
that iterates over the events uses the tools, one at a time.
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
from collections.abc import Coroutine, Generator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import claude_agent_sdk as sdk
from claude_agent_sdk.types import HookContext, HookInput, HookJSONOutput

from harness.agents import confinement
from harness.agents.session import Alive, Answer, Brief, End, Event, Retry, Text, Tool, ToolUse, Usage
from harness.agents.visibility import claude_cli
from harness.ledger.accounts import Spent
from harness.model.config import AgentRole
from harness.model.printable import count_of, one_line
from harness.workspace.files import atomic_write

TOOLS = ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "TodoWrite")
SERVER = "harness"
_SUBAGENTS = ("Agent", "Task")
"""Names under which versions of the CLI offer subagents."""
_ALIVE_S = 0.5
_GRACE_S = 20.0
"""Time between an interrupt and the cancellation, in which the present turn may end."""
_SHORT_GRACE_S = 5.0
_CLOSE_S = 30.0
_MAX_PROMPTS_TO_CONTINUE = 2
"""Number of consecutive turns without a submission after which a session that ends its turn is done."""
_SUMMARY = 120
_ENV = {
    "CLAUDE_CONFIG_DIR": f"{confinement.HOME}/.claude",
    "CLAUDE_CODE_TMPDIR": "/tmp",  # noqa: S108 - the sandbox's own
    "CLAUDE_CODE_ENTRYPOINT": "sdk-py",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
    "CLAUDE_CODE_MAX_RETRIES": "2",  # the gateway has already retried
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "MCP_TOOL_TIMEOUT": str(24 * 3600 * 1000),  # a submission waits for its turn on a device
    "BASH_DEFAULT_TIMEOUT_MS": "120000",
    "BASH_MAX_OUTPUT_LENGTH": "20000",
}
_CONTINUE_PROMPT = (
    "Your turn has ended, but your assignment has not. If you have another idea that makes the kernel faster, try it "
    "and submit it. If not, record what you learned with the note tool, and report that you are done."
)
_RETRIED_STATUSES = {408, 409, 429, 500, 502, 503, 504, 529}
_REFUSED_STATUSES = {401, 403}

logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass
class _Call:
    """A tool call of the agent, which waits for its answer."""

    tool: Tool
    arguments: dict[str, Any]
    answer: Future[Answer] = field(default_factory=Future)

    def make(self) -> None:
        """Use the tool, unless the conversation has been cancelled meanwhile."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(self.tool.use(self.arguments))

    def refuse(self) -> None:
        """Answer that the session ends, without using the tool."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_result(Answer("the session ends", failed=True))


class ClaudeSession:
    """An `AgentSession` of Claude."""

    def __init__(self, brief: Brief) -> None:
        assert brief.view is not None  # noqa: S101 - only a tuner needs no sandbox
        self.model = brief.agent.model or "default"
        self._brief, self._view = brief, brief.view
        # The CLI stores its conversations in its home, and can resume only those.
        transcripts = (brief.view.home / ".claude" / "projects").glob(f"*/{brief.resume}.jsonl")
        self._resume = brief.resume if any(transcripts) else None
        self.id = self._resume or str(uuid.uuid4())
        self._events: queue.SimpleQueue[Event | _Call] = queue.SimpleQueue()
        self._interrupted = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[End] | None = None
        self._client_interrupted = self._at_once = False
        self._usd = 0.0
        self._client: sdk.ClaudeSDKClient | None = None
        self._client_interrupt: asyncio.Task[None] | None = None

    def interrupt(self, *, at_once: bool = False) -> None:
        """End the session after the present turn; cancel it if the turn does not end within the grace period.

        Args:
            at_once: interrupt the present turn, and cancel the session after 5 s instead of 20 s.
        """
        if self._interrupted.is_set() and (self._at_once or not at_once):
            return
        self._at_once = self._at_once or at_once
        self._interrupted.set()
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has already closed
                loop.call_soon_threadsafe(self._schedule_cancel)

    def _schedule_cancel(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_SHORT_GRACE_S if self._at_once else _GRACE_S, self._cancel)
        if self._at_once and self._client is not None and not self._client_interrupted:
            self._client_interrupted = True
            self._client_interrupt = loop.create_task(self._client.interrupt())

    def _cancel(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def events(self) -> Generator[Event, None, None]:
        """Run the conversation and its tools; yield the events."""
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
        """Return the next event; use a tool if the agent has called one."""
        try:
            item = self._events.get(timeout=_ALIVE_S)
        except queue.Empty:
            return Alive()
        if isinstance(item, _Call):
            item.make()
            return Alive()
        return item

    def _refuse_waiting_calls(self) -> None:
        with suppress(queue.Empty):
            while True:
                item = self._events.get_nowait()
                if isinstance(item, _Call):
                    item.refuse()

    # --- The methods below run in the conversation's thread. ---

    def _run(self) -> None:
        try:
            end = run_and_close(self._conversation())
        except Exception as error:  # an error of the SDK must not end the worker
            logger.exception("the session %s failed", self.id)
            end = End("crashed", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        self._events.put(end)

    async def _conversation(self) -> End:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._run_turns())
        if self._interrupted.is_set():
            self._schedule_cancel()
        try:
            return await self._task
        except asyncio.CancelledError:
            return End("interrupted", "stopped during a turn")

    async def _run_turns(self) -> End:
        end: End | None = None
        async with sdk.ClaudeSDKClient(self._options()) as client:
            await client.query(_resume_prompt(self._brief.prompt) if self._resume else self._brief.prompt)
            self._client = client
            idle_turns, submissions = 0, self._brief.submitted()
            while end is None:
                end = await self._run_turn(client)
                idle, submissions = self._brief.submitted() == submissions, self._brief.submitted()
                idle_turns = idle_turns + 1 if idle else 0
                if end is None and self._interrupted.is_set():
                    end = End("interrupted", "stopped between two turns")
                elif end is None and (idle_turns >= _MAX_PROMPTS_TO_CONTINUE or self._brief.role == "planner"):
                    end = End("done", f"the agent is done, after {count_of(submissions, 'submission')}")
                elif end is None:
                    await client.query(_CONTINUE_PROMPT)
        return end or End("crashed", "the CLI ended")

    async def _run_turn(self, client: sdk.ClaudeSDKClient) -> End | None:
        """Receive the messages of one turn; return the session's end, or None if the agent ended its turn."""
        async for message in client.receive_response():
            for event in _message_events(message):
                self._events.put(event)
            if isinstance(message, sdk.SystemMessage) and message.subtype == "init":
                self.model = str(message.data.get("model") or self.model)
            if isinstance(message, sdk.ResultMessage):
                if self._view.network == "host":  # without a gateway, the CLI's report is the only count
                    self._events.put(self._turn_usage(message))
                return _end_of_turn(message, interrupted=self._client_interrupted)
            if self._interrupted.is_set() and not self._client_interrupted:
                self._client_interrupted = True
                await client.interrupt()
        return End("crashed", "the CLI ended without a result")

    def _turn_usage(self, message: sdk.ResultMessage) -> Usage:
        """Return the usage of a turn from the CLI's report, whose cost is a running total."""
        usage = message.usage or {}
        tokens = sum(number for name, number in usage.items() if name.endswith("_tokens") and isinstance(number, int))
        usd_before, self._usd = self._usd, message.total_cost_usd or self._usd
        return Usage(Spent(usd=max(0.0, self._usd - usd_before), input_tokens=tokens, turns=message.num_turns))

    def _options(self) -> sdk.ClaudeAgentOptions:
        brief = self._brief
        names = [f"mcp__{SERVER}__{tool.name}" for tool in brief.offered]
        server = sdk.create_sdk_mcp_server(SERVER, tools=[self._sdk_tool(tool) for tool in brief.offered])
        roles = {name: self._subagent(role) for name, role in brief.agent.roles.items()}
        builtin: tuple[str, ...] = TOOLS if brief.role == "worker" else ("Read", "Glob", "Grep")
        builtin = (*builtin, *_SUBAGENTS) if roles else builtin
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
            model=brief.agent.model,
            effort=brief.agent.effort,
            max_turns=brief.agent.per_session.turns,
            max_budget_usd=brief.agent.per_session.usd,
            resume=self._resume,
            session_id=None if self._resume else self.id,
            agents=roles or None,
            hooks={"PreToolUse": [sdk.HookMatcher(hooks=[self._before_tool], on_failure="block")]},
            stderr=lambda line: logger.info("cli of %s: %s", self.id[:8], line),
            cwd="/",
        )

    @staticmethod
    def _subagent(role: AgentRole) -> sdk.AgentDefinition:
        """Return a role of harness.yaml as the SDK's type. Its requests use the session's gateway, like all others."""
        tools = [name if name in TOOLS else f"mcp__{SERVER}__{name}" for name in role.tools]
        return sdk.AgentDefinition(role.description, role.prompt, tools=tools, model=role.model, effort=role.effort)

    def _confined_cli(self) -> Path:
        """Write a script that runs the CLI in the sandbox, and return its path: the SDK accepts only a path."""
        max_tokens = self._brief.agent.max_answer_tokens
        limits = {} if max_tokens is None else {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(max_tokens)}
        command = confinement.command_line(self._view, [claude_cli()], {**_ENV, **limits})
        sdk_version = ' CLAUDE_AGENT_SDK_VERSION="$CLAUDE_AGENT_SDK_VERSION"'
        env_i, variables_and_command = shlex.join(command[:2]), shlex.join(command[2:])
        script = self._view.reading.parent / "claude"
        atomic_write(script, f'#!/bin/sh\nexec {env_i}{sdk_version} {variables_and_command} "$@"\n')
        script.chmod(0o700)
        return script

    def _sdk_tool(self, tool: Tool) -> sdk.SdkMcpTool[Any]:
        async def use(arguments: dict[str, Any]) -> dict[str, Any]:
            call = _Call(tool, arguments)
            self._events.put(call)
            answer = await asyncio.wrap_future(call.answer)
            return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.failed}

        return sdk.tool(tool.name, tool.description, dict(tool.schema))(use)

    async def _before_tool(self, hook_input: HookInput, _: str | None, __: HookContext) -> HookJSONOutput:
        """Deny writes outside the solution, and all tools after an interrupt. An exception blocks the tool."""
        name = str(hook_input["tool_name"])  # type: ignore[typeddict-item]
        arguments = dict(hook_input["tool_input"])  # type: ignore[typeddict-item]
        if self._interrupted.is_set():
            return _denied("the session is over: end your turn now; your files are saved")
        path = arguments.get("file_path")
        if name in {"Write", "Edit"} and isinstance(path, str):
            allowed = self._view.shown
            # A path inside the sandbox: `normpath` reads no file of this host.
            absolute = os.path.normpath(f"{confinement.TASK}/{path}" if path[:1] != "/" else path)  # noqa: ASYNC240
            if not absolute.startswith((f"{allowed}/", "/tmp/", f"{confinement.HOME}/")):  # noqa: S108
                return _denied(f"only files below {allowed}/ may change")
        return {}


def _denied(reason: str) -> HookJSONOutput:
    return {
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "deny",
            "permissionDecisionReason": reason,
        }
    }


def _message_events(message: object) -> Iterator[Event]:
    if isinstance(message, sdk.AssistantMessage):
        for block in message.content:
            if isinstance(block, sdk.TextBlock) and block.text.strip():
                yield Text(one_line(block.text, _SUMMARY))
            elif isinstance(block, sdk.ToolUseBlock):
                key = json.dumps([block.name, block.input], sort_keys=True, default=str)
                yield ToolUse(block.name.removeprefix(f"mcp__{SERVER}__"), _summary(block.input), key)
    elif isinstance(message, sdk.SystemMessage) and message.subtype == "api_retry":
        delay = message.data.get("retry_delay_ms")
        yield Retry(str(message.data.get("error") or "the model API"), float(delay or 0) / 1e3)
    else:
        yield Alive()


def _end_of_turn(message: sdk.ResultMessage, *, interrupted: bool) -> End | None:
    """Return the session's end that follows from a turn's result; None if the agent ended its turn."""
    text = one_line(message.result or "; ".join(message.errors or []) or message.subtype, _SUMMARY)
    if message.subtype in {"error_max_turns", "error_max_budget_usd"}:
        return End("budget", message.subtype.removeprefix("error_"))
    if interrupted or (message.terminal_reason or "").startswith("aborted"):
        return End("interrupted", "stopped between two turns")
    if not message.is_error:
        return None
    status = message.api_error_status
    if status in _REFUSED_STATUSES:
        return End("refused", text)
    if status in _RETRIED_STATUSES or (status is None and message.terminal_reason == "api_error"):
        return End("held", text)
    return End("failed", text)


def _resume_prompt(prompt: str) -> str:
    return (
        "This session was interrupted and continues now. Your files are unchanged; the result of a tool that was "
        f"running was lost. Continue your work. For reference, the present assignment:\n\n{prompt}"
    )


def _summary(arguments: Mapping[str, Any]) -> str:
    texts = (arguments.get(name) for name in ("command", "file_path", "message", "query", "pattern", "text"))
    return next((one_line(text, _SUMMARY) for text in texts if isinstance(text, str)), "")


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that records the transports of its processes."""

    def __init__(self) -> None:
        super().__init__()
        self.transports: list[asyncio.SubprocessTransport] = []

    async def subprocess_exec(self, *arguments: Any, **settings: Any) -> Any:  # noqa: ANN401 - forwarded unchanged
        transport, protocol = await super().subprocess_exec(*arguments, **settings)
        self.transports.append(transport)
        return transport, protocol


def run_and_close(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine like `asyncio.run`, then close the transports of its processes, and return its result.

    The pipes of a process that has ended may still be open: another process holds them, or their end was not read yet.
    A transport that is open when its loop closes keeps the descriptors, and asyncio warns when it is garbage-collected.
    """
    loop = _Loop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            return runner.run(coroutine)
        finally:
            for transport in loop.transports:
                transport.close()
