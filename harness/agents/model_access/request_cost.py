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
"""Assumed density of a request before an answer has reported its tokens. JSON with source code has 0.25 to 0.4 with
every tokenizer."""
DEFAULT_OUTPUT_TOKENS = 128_000
"""Assumed for a request without `max_tokens`: the longest answer of any model."""
_LARGEST_REQUEST = 64 << 20


@dataclass(frozen=True)
class RequestBound:
    """Upper bound on the cost of a request."""

    usd: float
    input_tokens: int
    output_tokens: int


class RequestBounds:
    """Computes upper bounds on the cost of one session's requests from the token counts of earlier answers.

    Each request of a session repeats the conversation. It therefore has the tokens of the largest earlier request and
    the tokens of its additional bytes. All input counts as written to the cache, which may have expired.

    Args:
        prices: model name pattern -> price, from harness.yaml.
    """

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices
        self._largest = (0, 0)
        """Bytes and tokens of the largest answered request."""

    def bound(self, body: bytes) -> RequestBound:
        """Return the largest possible cost of a request.

        Raises:
            FormatError: the request is not a JSON object.
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
        """Store the input tokens of an answered request, which refine later bounds.

        Args:
            request_bytes: length of the request.
            spent: the tokens that its answer reports.
        """
        tokens = spent.input_tokens + spent.cache_write_tokens + spent.cache_read_tokens
        if request_bytes >= self._largest[0] and tokens:
            self._largest = (request_bytes, tokens)

    def _input_tokens(self, request_bytes: int) -> int:
        largest_bytes, largest_tokens = self._largest
        if request_bytes < largest_bytes:
            tokens_per_byte = max(TOKENS_PER_BYTE, largest_tokens / largest_bytes)
            return round(request_bytes * tokens_per_byte + 0.5)
        return largest_tokens + round((request_bytes - largest_bytes) * TOKENS_PER_BYTE + 0.5)
