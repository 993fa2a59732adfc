"""Recording of the calls of all submodules while a model runs once on the meta device, without values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.corpus.errors import SkippedError


@dataclass(frozen=True)
class ModuleCall:
    """The first call of a submodule."""

    path: str
    """Dotted path in the model; empty for the model itself."""
    module: nn.Module
    arguments: dict[str, Any]
    """Parameter of `forward` -> argument."""


class _AssumedValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Returns True or 1 for reads of single values, which meta tensors do not have.

    Models read values to validate arguments and to choose shortcuts. The exported graph is verified with real values.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(  # torch's interface
        self, func: object, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - torch's name of Tensor.item
            return args[0].dtype == torch.bool or 1
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def record_calls(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, ModuleCall]:
    """Run a model once and return the first call of each submodule by path.

    Args:
        model: on the meta device, in evaluation mode.
        arguments: keyword arguments of its `forward`.

    Raises:
        SkippedError: the model does not run without values.
    """
    calls: dict[str, ModuleCall] = {}
    hooks = [
        module.register_forward_pre_hook(_recorder(path, calls), with_kwargs=True)
        for path, module in model.named_modules()
    ]
    try:
        with torch.no_grad(), _AssumedValues():
            model(**arguments)
    except Exception as error:
        if not any(path for path in calls):
            raise SkippedError(f"the model does not run on meta tensors: {error_summary(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _recorder(path: str, calls: dict[str, ModuleCall]) -> Callable[..., None]:
    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if path in calls:
            return
        try:
            bound = inspect.signature(module.forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return
        calls[path] = ModuleCall(path, module, _flattened(bound))

    return record


def _flattened(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return the arguments by name: those of `**kwargs` by their keys, those of `*args` as one tuple."""
    arguments: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            arguments.update(value)
        else:
            arguments[name] = value
    return arguments


def error_summary(error: BaseException) -> str:
    """Return the type of an exception and the first line of its message, in at most 160 characters."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else ''}"[:160]
