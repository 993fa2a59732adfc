"""Extraction of the token counts from an answer of the Messages API while it is streamed."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.ledger.accounts import Spent

_LONGEST_LINE = 4 << 20
"""A longer line of a stream holds no usage and is not parsed."""
_LARGEST_ANSWER = 64 << 20
_TEXTS = ("text", "thinking", "partial_json")
CHARACTERS_PER_TOKEN = 4
"""Estimate for prose; source code has fewer. The model API reports an answer's tokens only at its end."""


@dataclass
class AnswerUsage:
    """The token counts of one answer, read from its bytes. The last value of each count in a stream is used."""

    streamed: bool
    model: str = ""
    begun: bool = False
    """True once the model has begun to answer: the input must be paid for even if the stream ends early."""
    _complete: bool = False
    """True after the stream event that reports the output's tokens."""
    _characters: int = 0
    """Characters of the output so far."""
    _numbers: dict[str, int] = field(default_factory=dict)
    _unparsed: bytearray = field(default_factory=bytearray)
    """The incomplete last line of a stream, or the whole body so far."""

    def feed(self, chunk: bytes) -> None:
        """Parse the next bytes of the body."""
        self._unparsed += chunk
        if not self.streamed:
            return
        *lines, incomplete = self._unparsed.split(b"\n")
        self._unparsed = bytearray() if len(incomplete) > _LONGEST_LINE else bytearray(incomplete)
        for line in lines:
            if line.startswith(b"data:") and (b"usage" in line or b"_delta" in line):
                with suppress(FormatError):
                    self._event(load_json(line[5:], where="an answer of the model"))

    def end(self) -> None:
        """Parse a body that is not a stream, after its last byte."""
        if not self.streamed:
            with suppress(FormatError):
                self._take(load_json(self._unparsed, where="an answer of the model", max_bytes=_LARGEST_ANSWER))

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
        """Return the answer's tokens and one turn. The output of an incomplete stream is estimated from its length."""
        spent = replace(tokens_of(self._numbers), turns=1)
        if self.streamed and not self._complete:
            estimate = self._characters // CHARACTERS_PER_TOKEN
            spent = replace(spent, output_tokens=max(spent.output_tokens, estimate))
        return spent


def tokens_of(usage: Mapping[str, int]) -> Spent:
    """Return the token counts of a `usage` object of the Messages API."""
    return Spent(
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cache_write_tokens=usage.get("cache_creation_input_tokens", 0),
        cache_read_tokens=usage.get("cache_read_input_tokens", 0),
    )
