"""Tensors and devices among an operator's arguments.

Tensors are nested in tuples, lists and dictionaries only, for which torch's pytree is slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

Untyped: TypeAlias = Any
"""Type of the arguments of a dispatch mode: torch has no public types for operators, operands and results."""

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class OperatorCall:
    """An executed operator."""

    name: str
    """Name without the overload."""
    packet: Untyped
    """Operator of torch, without the overload."""
    args: Sequence[Untyped]
    kwargs: Mapping[str, Untyped]
    operands: list[torch.Tensor]
    """Tensors among the arguments, in order."""
    results: list[torch.Tensor]
    """Returned tensors, in order."""
    changes: bool = False
    """The operator changes one of its arguments in place and returns it."""


def tensors_in(*values: Untyped) -> list[torch.Tensor]:
    """Return all tensors in values, in order."""
    tensors: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, tuple | list):
            tensors += tensors_in(*value)
        elif isinstance(value, dict):
            tensors += tensors_in(*value.values())
    return tensors


@functools.cache
def is_view(func: Untyped) -> bool:
    """Return true for an operator whose results are views of its arguments and that writes nothing."""
    returns = func._schema.returns  # noqa: SLF001 - torch offers nothing else
    return bool(returns) and all(item.alias_info is not None and not item.alias_info.is_write for item in returns)


@functools.cache
def changed_argument(func: Untyped) -> int | None:
    """Return the position of the argument that an operator changes and returns; None if it changes none."""
    for position, argument in enumerate(func._schema.arguments):  # noqa: SLF001 - as above
        if argument.alias_info is not None and argument.alias_info.is_write and not argument.kwarg_only:
            return position
    return None


@functools.cache
def is_composite(func: Untyped) -> bool:
    """Return true for an operator that torch always decomposes into others."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd  # noqa: SLF001 - as above
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # noqa: SLF001 - as above


def with_tensors(value: Untyped, change: Callable[[torch.Tensor], torch.Tensor]) -> Untyped:
    """Return a value with each of its tensors replaced.

    Args:
        change: returns the replacement of a tensor.
    """
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):  # also torch's named tuples, which are made from a list
        return type(value)([with_tensors(item, change) for item in value])
    return {name: with_tensors(item, change) for name, item in value.items()} if isinstance(value, dict) else value


def with_cpu(func: Untyped, args: Sequence[Untyped], kwargs: Mapping[str, Untyped]) -> tuple[Untyped, Untyped]:
    """Return the arguments of a function of torch with its devices replaced by the CPU.

    References name devices that may not exist on the host that analyses them.

    Args:
        func: function that a torch function mode received.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """
    if func is torch.Tensor.to:
        args = tuple(_CPU if _is_device(value) else value for value in args)
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": _CPU}
    return args, kwargs


def _is_device(value: Untyped) -> bool:
    return isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] in {"cuda", "cpu"})
