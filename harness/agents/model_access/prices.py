"""What a model's tokens cost: list prices in USD for a million tokens, and a run's own from harness.yaml."""

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
"""The provider's published list prices; the first glob that fits counts. Overridden by `agent.prices`."""
_DEAREST = Price(input=15, output=75)
"""For a model that no glob names: a limit in USD must hold for it too."""


def price_of(model: str, own: Mapping[str, Price]) -> Price:
    """The price of a model, by its name as its answers give it."""
    for table in (own, SHIPPED):
        for glob, price in table.items():
            if fnmatchcase(model, glob):
                return price
    return _DEAREST


def cache_write(price: Price) -> float:
    """The price of writing to the cache."""
    return price.input * 1.25 if price.cache_write is None else price.cache_write


def usd(spent: Spent, price: Price) -> float:
    """What these tokens cost. Writing to the cache is 1.25 times, reading from it a tenth, unless the price says."""
    read = price.input * 0.1 if price.cache_read is None else price.cache_read
    millionths = (
        spent.input_tokens * price.input
        + spent.output_tokens * price.output
        + spent.cache_write_tokens * cache_write(price)
        + spent.cache_read_tokens * read
    )
    return millionths / 1e6
