"""Selection of the submodules that may become problems, and of the dimensions of their inputs that vary.

A model runs twice on the meta device, without values, and the calls of all its submodules are recorded.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from harness.corpus.errors import SkippedError, error_summary


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model's inputs in one run."""

    batch: int
    sequence: int
    text: int = 0
    """Length of a second sequence, such as the text prompt of an image."""


FIRST_SIZES, SECOND_SIZES = ModelSizes(3, 37, 19), ModelSizes(5, 53, 29)
"""Sizes of two runs: a dimension that differs between them varies. With primes, products differ from sums."""


@dataclass(frozen=True)
class InputLeaf:
    """One tensor among the arguments of a submodule."""

    name: str
    place: int
    """Position among all leaves of the arguments."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Shape at `FIRST_SIZES`."""
    axes: tuple[str | None, ...]
    """Name of the axis of each varying dimension; None for a constant dimension."""


@dataclass(frozen=True)
class CandidateModule:
    """A submodule and the arguments of its call."""

    path: str
    module: nn.Module
    leaves: tuple[InputLeaf, ...]
    leaf_values: tuple[Any, ...]
    """All leaves of the arguments in order; None at the positions of tensors."""
    structure: pytree.TreeSpec
    output_places: tuple[int, ...] | None = None
    """Places of the problem's outputs among the tensors that the module returns; None if all are outputs."""

    @property
    def signature(self) -> str:
        """Text of the arguments' names, dtypes and axes, without sizes."""
        tensors = [(leaf.name, leaf.dtype, leaf.axes) for leaf in self.leaves]
        return repr((tensors, [value for value in self.leaf_values if isinstance(value, bool | str)]))

    def arguments(self, tensors: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and keyword arguments of `forward` with these tensors."""
        values = list(self.leaf_values)
        for leaf, tensor in zip(self.leaves, tensors, strict=True):
            values[leaf.place] = tensor
        arguments: dict[str, Any] = pytree.tree_unflatten(values, self.structure)
        parameters = inspect.signature(self.module.forward).parameters
        variadic = next((name for name, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        extra = arguments.pop(variadic, ()) if variadic else ()
        if not extra:
            return [], arguments
        before = [name for name in parameters if name in arguments and name != variadic]
        return [*(arguments.pop(name) for name in before), *extra], arguments


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

    def __torch_dispatch__(  # torch's interface
        self, func: object, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> object:
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - torch's name of Tensor.item
            return args[0].dtype == torch.bool or 1
        return func(*args, **(kwargs or {}))  # type: ignore[operator]


def _record_calls(model: nn.Module, arguments: Mapping[str, Any]) -> dict[str, ModuleCall]:
    """Run a model once and return the first call of each submodule by path."""
    calls: dict[str, ModuleCall] = {}
    hooks = [
        module.register_forward_pre_hook(functools.partial(_record, calls, path), with_kwargs=True)
        for path, module in model.named_modules()
    ]
    try:
        with torch.no_grad(), _AssumedValues():  # type: ignore[no-untyped-call]
            model(**arguments)
    except Exception as error:
        if not any(path for path in calls):
            raise SkippedError(f"the model does not run on meta tensors: {error_summary(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _record(
    calls: dict[str, ModuleCall], path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Add the first call of a module; its arguments are by name, those of `*args` as one tuple."""
    if path in calls:
        return
    try:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return
    arguments = dict(bound.arguments)
    kinds = {name: parameter.kind for name, parameter in bound.signature.parameters.items()}
    variadic = next((name for name in arguments if kinds[name] is inspect.Parameter.VAR_KEYWORD), None)
    extra = arguments.pop(variadic) if variadic else {}
    calls[path] = ModuleCall(path, module, {**arguments, **extra})


def candidate_modules(
    model: nn.Module, first_arguments: Mapping[str, Any], second_arguments: Mapping[str, Any]
) -> Iterator[CandidateModule]:
    """Run a model twice, and yield one candidate for each of its distinct submodules, outermost first.

    Submodules of the same class with the same parameter shapes and argument shapes count as one. Torch's own modules
    are omitted, because each is a single operator.

    Args:
        model: on the meta device, in evaluation mode.
        first_arguments: keyword arguments of its `forward` at `FIRST_SIZES`.
        second_arguments: keyword arguments of its `forward` at `SECOND_SIZES`.

    Raises:
        SkippedError: the model does not run without values.
    """
    first, second = _record_calls(model, first_arguments), _record_calls(model, second_arguments)
    identities: set[object] = set()
    for path, call in first.items():
        second_call = second.get(path)
        if second_call is None or type(call.module).__module__.startswith("torch."):
            continue
        candidate = _candidate(call, second_call)
        if candidate is None:
            continue
        identity = (
            type(call.module),
            tuple((name, tuple(p.shape)) for name, p in call.module.named_parameters()),
            tuple((leaf.name, leaf.shape) for leaf in candidate.leaves),
            tuple(repr(value) for value in candidate.leaf_values if isinstance(value, int | float | str | None)),
        )
        if identity not in identities and not _is_stack(call.module):
            identities.add(identity)
            yield candidate


_LARGE_LAYER = 8


def _is_stack(module: nn.Module) -> bool:
    """Return true if a module contains a list of several large layers of one class; the layers become problems."""
    for inner in module.modules():
        if isinstance(inner, nn.ModuleList | nn.Sequential) and len(inner) > 1:
            kinds = [type(layer) for layer in inner if sum(1 for _ in layer.modules()) >= _LARGE_LAYER]
            if len(kinds) > len(set(kinds)):
                return True
    return False


def _candidate(first: ModuleCall, second: ModuleCall) -> CandidateModule | None:
    paths, structure = pytree.tree_flatten_with_path(first.arguments)
    second_leaves, _ = pytree.tree_flatten(second.arguments)
    if len(paths) != len(second_leaves):
        return None
    leaves: list[InputLeaf] = []
    values: list[Any] = []
    names = AxisNames()
    for place, ((path, value), second_value) in enumerate(zip(paths, second_leaves, strict=True)):
        if not isinstance(value, torch.Tensor):
            if isinstance(value, int | float | str) and value != second_value:
                return None  # it depends on the sizes, so that the graph is valid for one size only
            values.append(value)
            continue
        if not isinstance(second_value, torch.Tensor) or second_value.dim() != value.dim():
            return None
        axes = tuple(names.of(*sizes) for sizes in zip(value.shape, second_value.shape, strict=True))
        leaves.append(InputLeaf(_leaf_name(path), place, value.dtype, tuple(value.shape), axes))
        values.append(None)
    if not any(axis for leaf in leaves for axis in leaf.axes):
        return None
    return CandidateModule(first.path, first.module, tuple(leaves), tuple(values), structure)


_MAX_EXTRA = 300
"""Maximum number of class tokens, registers and queries that a model adds to a sequence."""


class AxisNames:
    """Names of dimensions by their sizes in the two runs."""

    def __init__(self) -> None:
        first, second = FIRST_SIZES, SECOND_SIZES
        self._bases = {
            (first.batch, second.batch): "batch",
            (first.sequence, second.sequence): "sequence",
            (first.text, second.text): "text",
            (first.batch * first.sequence, second.batch * second.sequence): "tokens",
            (first.batch * first.text, second.batch * second.text): "text_tokens",
            (first.sequence + first.text, second.sequence + second.text): "joint",
        }
        self._names = dict(self._bases)

    def of(self, first: int, second: int) -> str | None:
        """Return the axis of a dimension; None if the dimension is constant.

        Args:
            first: size of the dimension at `FIRST_SIZES`.
            second: size of the dimension at `SECOND_SIZES`.
        """
        if first == second:
            return None
        if (first, second) not in self._names:
            unknown_count = sum(name.startswith("length_") for name in self._names.values())
            self._names[first, second] = self._derived(first, second) or f"length_{unknown_count + 1}"
        return self._names[first, second]

    def _derived(self, first: int, second: int) -> str | None:
        """Return the name of a multiple of a dimension (windows of an image), or of one with additional entries."""
        for (base_first, base_second), base in self._bases.items():
            if first % base_first == 0 and second % base_second == 0 and first // base_first == second // base_second:
                return f"{base}_times_{first // base_first}"
        for (base_first, base_second), base in self._bases.items():
            if base in {"sequence", "text", "joint"} and 0 < first - base_first == second - base_second <= _MAX_EXTRA:
                return f"{base}_plus_{first - base_first}"
        return None


_ROTARY = {"0": "cos", "1": "sin"}


def _leaf_name(path: tuple[Any, ...]) -> str:
    """Return the name of a leaf: its parameter, and its position or key inside the parameter's value."""
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    if len(words) == 2 and words[1] in _ROTARY and ("position_embeddings" in words[0] or "rotary" in words[0]):
        return _ROTARY[words[1]]
    return "_".join(word for word in words if word)
