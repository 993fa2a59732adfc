"""Reading what an answer of the Messages API says it used, while it passes by."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.ledger.accounts import Spent

_LONGEST_LINE = 4 << 20
"""A line of a stream longer than this carries no usage; it passes by unread."""
_LARGEST_ANSWER = 64 << 20
_TEXTS = ("text", "thinking", "partial_json")
CHARACTERS_PER_TOKEN = 4
"""Of prose; source code has fewer. The model's side reports an answer's tokens at its end only."""


@dataclass
class AnswerUsage:
    """Fed with an answer's bytes, piece by piece; a stream's last word on a number counts."""

    streamed: bool
    model: str = ""
    begun: bool = False
    """Whether the model has begun to answer: what it read is to be paid for even when the stream breaks off."""
    _complete: bool = False
    """True after the stream event that reports the output's tokens."""
    _characters: int = 0
    """Of the output that has passed."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, piece: bytes) -> None:
        """The next bytes of the body."""
        self._rest += piece
        if not self.streamed:
            return
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray() if len(rest) > _LONGEST_LINE else bytearray(rest)
        for line in lines:
            if line.startswith(b"data:") and (b"usage" in line or b"_delta" in line):
                with suppress(FormatError):
                    self._event(load_json(line[5:], where="an answer of the model"))

    def end(self) -> None:
        """The body is complete, or has broken off."""
        if not self.streamed:
            with suppress(FormatError):
                self._take(load_json(self._rest, where="an answer of the model", max_bytes=_LARGEST_ANSWER))

    def _event(self, event: Any) -> None:  # noqa: ANN401 - JSON from outside
        if not isinstance(event, dict):
            return
        if event.get("type") == "message_start":
            self._take(event.get("message"))
        elif event.get("type") == "message_delta":
            self._complete = self._complete or "usage" in event
            self._take(event)
        elif event.get("type") == "content_block_delta" and isinstance(event.get("delta"), dict):
            texts = (event["delta"].get(name) for name in _TEXTS)
            self._characters += sum(len(text) for text in texts if isinstance(text, str))

    def _take(self, message: Any) -> None:  # noqa: ANN401 - JSON from outside
        if not isinstance(message, dict):
            return
        self.begun = self.begun or "usage" in message
        if isinstance(message.get("model"), str):
            self.model = message["model"]
        usage = message.get("usage")
        for name, number in usage.items() if isinstance(usage, dict) else ():
            if isinstance(number, int) and not isinstance(number, bool):
                self._numbers[name] = max(0, number)

    def spent(self) -> Spent:
        """The answer's tokens, one turn. The output of a stream that broke off is estimated from what has passed."""
        output_tokens = self._numbers.get("output_tokens", 0)
        if self.streamed and not self._complete:
            output_tokens = max(output_tokens, self._characters // CHARACTERS_PER_TOKEN)
        return Spent(
            input_tokens=self._numbers.get("input_tokens", 0),
            output_tokens=output_tokens,
            cache_write_tokens=self._numbers.get("cache_creation_input_tokens", 0),
            cache_read_tokens=self._numbers.get("cache_read_input_tokens", 0),
            turns=1,
        )
