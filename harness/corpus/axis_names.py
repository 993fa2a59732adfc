"""Names for constant sizes, from the model's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_KEY = re.compile(
    r"hidden|intermediate|vocab|head|dim|channel|expert|state|kernel|embed|width|ffn|d_model|d_ff|rank|mel|patch|inner"
)
_NO_SIZE = re.compile(r"token|_id$|layers|depth|dropout|position|version|blocks|num_return|per_tok|window|groups_")
_SMALLEST = 5
"""Smallest size with a name; smaller ones, such as the number of colour channels, are written as digits."""
_EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts")
_MIXTURE = re.compile(r"moe|expert|router", re.IGNORECASE)
"""Classes in which a size that is both a number of experts and another one is the number of experts."""
_FIRST = ("hidden_size", "d_model", "n_embd", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim",
          "num_attention_heads", "num_key_value_heads", *_EXPERTS)  # fmt: skip
_OFTEN = {"n_embd": "hidden_size", "d_model": "hidden_size", "ffn_dim": "intermediate_size",
          "d_ff": "intermediate_size"}  # fmt: skip


def constant_names(config: Mapping[str, Any], class_name: str = "") -> dict[int, str]:
    """Return the name of the constant axis of each size that a configuration names; the most usual name wins.

    Args:
        class_name: class of the module, which decides between names of one size.
    """
    sizes: dict[str, int] = {}
    for key, value in _integers(config):
        if value >= _SMALLEST and _KEY.search(key) and not _NO_SIZE.search(key):
            sizes.setdefault(key, value)
    sizes |= {name: size for name, size in _derived(config, sizes).items() if name not in sizes}
    first = (*_EXPERTS, *_FIRST) if _MIXTURE.search(class_name) else _FIRST
    ordered = [*(key for key in first if key in sizes), *(key for key in sizes if key not in first)]
    names: dict[int, str] = {}
    for key in ordered:
        name = _OFTEN.get(key, key)
        if name.isidentifier() and name not in names.values():
            names.setdefault(sizes[key], name)
    return names


def _derived(config: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes that follow from a configuration, such as the size of all heads together."""
    integers = dict(reversed(list(_integers(config))))  # of several with one key the first
    heads, hidden = integers.get("num_attention_heads"), sizes.get("hidden_size")
    head = integers.get("head_dim") or integers.get("attention_head_dim")
    derived: dict[str, int] = {}
    if head is None and heads and hidden and hidden % heads == 0 and hidden // heads >= _SMALLEST:
        head = hidden // heads
    if head and heads:
        groups = integers.get("num_key_value_heads")
        if hidden is None:
            derived["hidden_size"] = heads * head
        derived["head_dim"] = head
        derived["query_size"] = heads * head
        if groups and groups != heads:
            derived["key_value_size"] = groups * head
            derived["query_key_value_size"] = (heads + 2 * groups) * head
        else:
            derived["query_key_value_size"] = 3 * heads * head
    for name in ("intermediate_size", "moe_intermediate_size"):
        if name in sizes:
            derived[f"gate_up_{name}"] = 2 * sizes[name]
    return derived


def _integers(config: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the integers of a configuration, then those of nested configurations."""
    nested = []
    for key, value in config.items():
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            yield str(key), value
        elif isinstance(value, Mapping) and str(key).endswith("config"):
            nested.append(value)
    for inner in nested:
        yield from _integers(inner)
