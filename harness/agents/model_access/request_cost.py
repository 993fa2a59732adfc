"""Upper bounds on what a request to the Messages API can cost, before it is forwarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.agents.model_access.prices import cache_write, price_of
from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.ledger.accounts import Spent
from harness.model.config import Price

TOKENS_PER_BYTE = 0.5
"""Of a request whose tokens are not known yet. JSON with source code has 0.25 to 0.4, whatever the tokenizer."""
DEFAULT_OUTPUT_TOKENS = 128_000
"""Where a request names no `max_tokens`: the longest answer of any model."""
_LARGEST_REQUEST = 64 << 20


@dataclass(frozen=True)
class RequestBound:
    """Upper bound on the cost of a request."""

    usd: float
    input_tokens: int
    output_tokens: int


class RequestBounds:
    """Bounds the requests of one session, and learns from their answers how many tokens they had.

    The requests of a session repeat the conversation, so a request has the tokens of the largest one before it and
    those of its further bytes. All input counts as written to the cache: the cache may have expired.

    Args:
        prices: the run's own prices.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._largest = (0, 0)
        """Bytes and tokens of the largest request that was answered."""

    def bound(self, body: bytes) -> RequestBound:
        """Return what a request may cost at most.

        Raises:
            FormatError: it is not a JSON object.
        """
        request = load_json(body, where="the request", max_bytes=_LARGEST_REQUEST)
        if not isinstance(request, dict):
            raise FormatError("not a JSON object", where="the request")
        limit = request.get("max_tokens")
        output_tokens = limit if isinstance(limit, int) and limit > 0 else DEFAULT_OUTPUT_TOKENS
        input_tokens = self._input_tokens(len(body))
        price = price_of(str(request.get("model")), self._prices)
        usd = (input_tokens * max(price.input, cache_write(price)) + output_tokens * price.output) / 1e6
        return RequestBound(usd, input_tokens, output_tokens)

    def learn(self, request_bytes: int, spent: Spent) -> None:
        """Take the tokens that the answer to a request of so many bytes reports."""
        tokens = spent.input_tokens + spent.cache_write_tokens + spent.cache_read_tokens
        if request_bytes >= self._largest[0] and tokens:
            self._largest = (request_bytes, tokens)

    def _input_tokens(self, size: int) -> int:
        known_bytes, known_tokens = self._largest
        if size < known_bytes:
            per_byte = max(TOKENS_PER_BYTE, known_tokens / known_bytes)
            return round(size * per_byte + 0.5)
        return known_tokens + round((size - known_bytes) * TOKENS_PER_BYTE + 0.5)
