"""Prices of models in USD per million tokens: list prices, and prices of a run from harness.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

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


def price_of(model: str, own: Mapping[str, Price]) -> Price:
    """Return the price of a model.

    Args:
        model: name of the model, as its answers give it.
        own: name pattern -> price, which override the list prices.
    """
    for table in (own, SHIPPED):
        for glob, price in table.items():
            if fnmatchcase(model, glob):
                return price
    return _DEAREST


def cache_write(price: Price) -> float:
    """Return the price of writing a million tokens to the cache, in USD."""
    return price.input * 1.25 if price.cache_write is None else price.cache_write


def usd(spent: Spent, price: Price) -> float:
    """Return the cost of tokens in USD.

    A cache write costs 1.25 times the input price and a cache read a tenth of it, unless the price states them.

    Args:
        spent: the numbers of tokens.
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
