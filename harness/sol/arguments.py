"""Tensors among an operator's arguments: they are nested in tuples and lists only, which torch's pytree is slow for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Untyped: TypeAlias = Any
"""Type of what torch passes to a dispatch mode: operators, operands and results have no public types in torch."""


@dataclass(frozen=True)
class OperatorCall:
    """One operator that ran, with the tensors that it took and those that it returned."""

    name: str
    packet: Untyped
    args: Sequence[Untyped]
    kwargs: Mapping[str, Untyped]
    taken: list[torch.Tensor]
    made: list[torch.Tensor]
    changes: bool = False
    """It changes one of its arguments in place, and returns that."""


def tensors_in(*values: Untyped) -> list[torch.Tensor]:
    """Return the tensors in some values, in order."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += tensors_in(*value)
        elif isinstance(value, dict):
            found += tensors_in(*value.values())
    return found


@functools.cache
def is_view(func: Untyped) -> bool:
    """Return true for operators whose results are views of their arguments, and that write nothing."""
    returns = func._schema.returns  # noqa: SLF001 - torch offers nothing else
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


@functools.cache
def changed_argument(func: Untyped) -> int | None:
    """Return the place of the argument that an operator changes and returns; None where it changes none."""
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - as above
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only:
            return place
    return None


@functools.cache
def is_composite(func: Untyped) -> bool:
    """Return true for operators that torch only ever runs as several others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - as above
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # noqa: SLF001 - as above


def with_tensors(value: Untyped, change: Callable[[torch.Tensor], torch.Tensor]) -> Untyped:
    """Return a value with each of its tensors replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is tuple or type(value) is list:
        return type(value)(with_tensors(one, change) for one in value)
    if isinstance(value, tuple):  # torch's named results
        return type(value)([with_tensors(one, change) for one in value])
    return {name: with_tensors(one, change) for name, one in value.items()} if isinstance(value, dict) else value
