"""Prices of models in USD per million tokens, and upper bounds on what a request can cost before it is forwarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.ledger.accounts import Spent
from harness.model.config import Price

SHIPPED: Mapping[str, Price] = {
    "claude-opus-4-[01]*": Price(input=15, output=75),
    "claude-opus-4-20*": Price(input=15, output=75),
    "claude-opus-*": Price(input=5, output=25),
    "claude-sonnet-*": Price(input=3, output=15),
    "claude-haiku-*": Price(input=1, output=5),
    "claude-3-5-haiku*": Price(input=0.8, output=4),
}
"""Name pattern -> the provider's published list price; the first pattern that matches counts. `agent.prices` overrides
it."""
_DEAREST = Price(input=15, output=75)
"""Price of a model that no pattern matches: a limit in USD must hold for it too."""
TOKENS_PER_BYTE = 0.5
"""Assumed density of a request before an answer has reported its tokens. JSON with source code has 0.25 to 0.4 with
every tokenizer."""
DEFAULT_OUTPUT_TOKENS = 128_000
"""Assumed for a request without `max_tokens`: the longest answer of any model."""
_LARGEST_REQUEST = 64 << 20


def price_of(model: str, own: Mapping[str, Price]) -> Price:
    """Return the price of a model.

    Args:
        model: name of the model, as its answers give it.
        own: name pattern -> price, which override the list prices.
    """
    prices = (price for table in (own, SHIPPED) for glob, price in table.items() if fnmatchcase(model, glob))
    return next(prices, _DEAREST)


def cache_write(price: Price) -> float:
    """Return the price of writing a million tokens to the cache, in USD."""
    return price.input * 1.25 if price.cache_write is None else price.cache_write


def usd(spent: Spent, price: Price) -> float:
    """Return the cost of tokens in USD.

    A cache write costs 1.25 times the input price and a cache read a tenth of it, unless the price states them.

    Args:
        price: USD per million tokens of each kind.
    """
    cache_read = price.input * 0.1 if price.cache_read is None else price.cache_read
    millionths = (
        spent.input_tokens * price.input
        + spent.output_tokens * price.output
        + spent.cache_write_tokens * cache_write(price)
        + spent.cache_read_tokens * cache_read
    )
    return millionths / 1e6


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
