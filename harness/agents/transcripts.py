"""Transcripts of sessions: prompts, messages, uses of tools and their answers, in chronological order.

| kind | files below `<git common dir>/harness/agents/<worker>/` | written by |
| --- | --- | --- |
| claude | `home/.claude/projects/*/<session>.jsonl`: one JSON object per line | the CLI, inside its sandbox |
| command | `transcripts/<session>.log`: the output of the program | the harness |
| command | `transcripts/<session>.jsonl`: one `ToolRecord` per line | the harness |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from harness.agents.model_access.prices import price_of, usd
from harness.agents.model_access.usage import tokens_of
from harness.errors import FormatError
from harness.formats.bounded import RECORD_BYTES, load_json
from harness.ledger.accounts import Account
from harness.model.base_models import StrictModel
from harness.model.config import Price
from harness.workspace.directories import Workspace

KEPT_S = 30 * 24 * 3600.0
"""Age at which transcripts of commands are deleted; the same as for claude (its `cleanupPeriodDays`)."""
_LONGEST_LOG = 32 << 20

ItemKind = Literal["prompt", "text", "thinking", "tool", "result", "output"]


@dataclass(frozen=True)
class Item:
    """One event of a session."""

    kind: ItemKind
    text: str
    at: str = ""
    """ISO time; empty for a program's output, for which only the times of tool uses are recorded."""
    failed: bool = False
    usd: float | None = None
    """Cost of the model's answer, on its first item only."""


class ToolRecord(StrictModel):
    """One use of a tool by a command agent."""

    format: Literal[1] = 1
    at: str
    log_bytes: int
    """Length of the session's log when the tool was called, which orders tool uses and output."""
    tool: str
    arguments: dict[str, object]
    answer: str
    failed: bool


def agent_directory(workspace: Workspace, worker: str) -> Path:
    """Return the directory with a worker's transcripts and its agents' home."""
    return workspace.state / "agents" / worker


def command_log(directory: Path, session: str) -> Path:
    """Return the file with the output of a command's session.

    Args:
        directory: the result of `agent_directory`.
    """
    return directory / "transcripts" / f"{session}.log"


def tool_records(directory: Path, session: str) -> Path:
    """Return the file with the tool uses of a command's session.

    Args:
        directory: the result of `agent_directory`.
    """
    return command_log(directory, session).with_suffix(".jsonl")


def transcript_files(workspace: Workspace, account: Account) -> list[Path]:
    """Return the transcript files of an account's session; [] for a tuner, or if they were deleted.

    Args:
        account: names worker, session and kind.
    """
    directory = agent_directory(workspace, account.worker)
    if account.agent == "claude":
        transcripts = sorted((directory / "home" / ".claude" / "projects").glob("*/*.jsonl"))
        files = [file for file in transcripts if file.stem == account.session and not file.is_symlink()]
    else:
        files = [command_log(directory, account.session), tool_records(directory, account.session)]
    return [file for file in files if file.is_file()]


def read_transcript(workspace: Workspace, account: Account, prices: Mapping[str, Price]) -> list[Item]:
    """Return the events of an account's session, over all of its openings; [] without a transcript.

    Args:
        account: names worker, session and kind.
        prices: model name pattern -> price, from harness.yaml.
    """
    files = transcript_files(workspace, account)
    if account.agent == "claude":
        return [item for file in files for item in _claude_items(file, prices)]
    directory = agent_directory(workspace, account.worker)
    return list(_command_items(directory, account.session)) if files else []


def _lines(file: Path) -> Iterator[Any]:
    """Yield the values of a JSON-lines file; malformed lines are skipped, because an agent can write into its home."""
    with file.open("rb") as lines:
        while line := lines.readline(RECORD_BYTES):
            with suppress(FormatError):
                yield load_json(line, where=str(file))


def _claude_items(file: Path, prices: Mapping[str, Price]) -> Iterator[Item]:
    counted: set[str] = set()
    for line in _lines(file):
        message = line.get("message") if isinstance(line, dict) else None
        if not isinstance(message, dict) or line.get("type") not in {"user", "assistant"}:
            continue
        at, content = str(line.get("timestamp") or ""), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        cost = _cost(message, prices) if str(message.get("id")) not in counted else None
        counted.add(str(message.get("id")))
        for block in blocks if isinstance(blocks, list) else ():
            item = _item_of_block(block, at, cost, of_user=line["type"] == "user")
            if item is not None:
                cost = None
                yield item


def _item_of_block(block: object, at: str, cost: float | None, *, of_user: bool) -> Item | None:
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if kind == "text":
        return Item("prompt" if of_user else "text", str(block.get("text", "")), at, usd=cost)
    if kind == "thinking":
        return Item("thinking", str(block.get("thinking", "")), at, usd=cost)
    if kind == "tool_use":
        tool_input = block.get("input")
        arguments = tool_input if isinstance(tool_input, dict) else {}
        return Item("tool", _call(str(block.get("name")).removeprefix("mcp__harness__"), arguments), at, usd=cost)
    if kind == "tool_result":
        return Item("result", _text(block.get("content")), at, failed=block.get("is_error") is True)
    return None


def _text(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(block.get("text", "")) for block in content if isinstance(block, dict))
    return str(content)


def _call(tool: str, arguments: Mapping[str, object]) -> str:
    """Return a tool use as text: arguments of one line follow the name, longer ones are below it."""
    words, below = [tool], []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value)
        if "\n" in text:
            below.append(f"{name}:\n{text}")
        else:
            words.append(f"{name}={text}")
    return "\n".join([" ".join(words), *below])


def _cost(message: Mapping[str, Any], prices: Mapping[str, Price]) -> float | None:
    usage = message.get("usage")
    if not isinstance(usage, dict):
        return None
    tokens = tokens_of({name: value for name, value in usage.items() if isinstance(value, int)})
    return usd(tokens, price_of(str(message.get("model")), prices))


def _command_items(directory: Path, session: str) -> Iterator[Item]:
    log, records = command_log(directory, session), tool_records(directory, session)
    printed = b""
    with suppress(FileNotFoundError), log.open("rb") as file:
        printed = file.read(_LONGEST_LOG)
    begin = 0
    for line in _lines(records) if records.is_file() else ():
        try:
            record = ToolRecord.model_validate(line)
        except ValidationError:  # another version of the harness wrote the record
            continue
        yield from _output(printed[begin : record.log_bytes])
        begin = max(begin, record.log_bytes)
        yield Item("tool", _call(record.tool, record.arguments), record.at)
        yield Item("result", record.answer, record.at, record.failed)
    yield from _output(printed[begin:])


def _output(printed: bytes) -> Iterator[Item]:
    text = printed.decode(errors="replace").strip("\n")
    if text:
        yield Item("output", text)
