"""Choose the submodules that may become problems, and find which of their inputs' dimensions vary."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from harness.corpus.captures import ModuleCall


@dataclass(frozen=True)
class ModelSizes:
    """Sizes that a model is run with."""

    batch: int
    sequence: int
    text: int = 0
    """Length of a second sequence, such as the text that an image is made from."""


FIRST_SIZES, SECOND_SIZES = ModelSizes(3, 37, 19), ModelSizes(5, 53, 29)
"""Two runs tell dimensions that vary from constants. Primes keep products apart from sums."""


@dataclass(frozen=True)
class InputLeaf:
    """One tensor among the arguments of a submodule."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """At `FIRST_SIZES`."""
    axes: tuple[str | None, ...]
    """Name of the axis of each dimension that varies; None for a constant one."""


@dataclass(frozen=True)
class CandidateModule:
    """A submodule and how it is called."""

    path: str
    module: nn.Module
    leaves: tuple[InputLeaf, ...]
    others: tuple[Any, ...]
    """All leaves of the arguments in order; `None` at the places of tensors, which `tensor_places` lists."""
    tensor_places: tuple[int, ...]
    structure: pytree.TreeSpec
    output_places: tuple[int, ...] | None = None
    """Places of the problem's outputs among the tensors that the module returns; None if all are outputs."""

    @property
    def signature(self) -> str:
        """Kinds of the arguments, without sizes."""
        tensors = [(leaf.name, leaf.dtype, leaf.axes) for leaf in self.leaves]
        return repr((tensors, [value for value in self.others if isinstance(value, bool | str)]))

    def arguments(self, tensors: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of `forward` with these tensors."""
        values = list(self.others)
        for place, tensor in zip(self.tensor_places, tensors, strict=True):
            values[place] = tensor
        arguments: dict[str, Any] = pytree.tree_unflatten(values, self.structure)
        parameters = inspect.signature(self.module.forward).parameters
        variadic = next((name for name, p in parameters.items() if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        extra = arguments.pop(variadic, ()) if variadic else ()
        if not extra:
            return [], arguments
        before = [name for name in parameters if name in arguments and name != variadic]
        return [*(arguments.pop(name) for name in before), *extra], arguments


def candidate_modules(first: Mapping[str, ModuleCall], second: Mapping[str, ModuleCall]) -> Iterator[CandidateModule]:
    """Yield one candidate for each distinct submodule of a model, outermost first.

    Two submodules of the same class with the same parameter shapes and argument shapes are one. Torch's own modules
    are left out: alone they are single operators.

    Args:
        first: calls at `FIRST_SIZES`.
        second: calls at `SECOND_SIZES`.
    """
    seen: set[object] = set()
    for path, call in first.items():
        other = second.get(path)
        if other is None or type(call.module).__module__.startswith("torch."):
            continue
        candidate = _candidate(call, other)
        if candidate is None:
            continue
        identity = (
            type(call.module),
            tuple((name, tuple(p.shape)) for name, p in call.module.named_parameters()),
            tuple((leaf.name, leaf.shape) for leaf in candidate.leaves),
            tuple(repr(value) for value in candidate.others if isinstance(value, int | float | str | None)),
        )
        if identity not in seen and not _is_stack(call.module):
            seen.add(identity)
            yield candidate


_LARGE_LAYER = 8


def _is_stack(module: nn.Module) -> bool:
    """True if a module holds a list of several large layers of one class: its layers are the problems."""
    for inner in module.modules():
        if isinstance(inner, nn.ModuleList | nn.Sequential) and len(inner) > 1:
            kinds = [type(layer) for layer in inner if sum(1 for _ in layer.modules()) >= _LARGE_LAYER]
            if len(kinds) > len(set(kinds)):
                return True
    return False


def _candidate(first: ModuleCall, second: ModuleCall) -> CandidateModule | None:
    paths, structure = pytree.tree_flatten_with_path(first.arguments)
    others, _ = pytree.tree_flatten(second.arguments)
    if len(paths) != len(others):
        return None
    leaves: list[InputLeaf] = []
    values: list[Any] = []
    places: list[int] = []
    names = AxisNames()
    for place, ((path, value), other) in enumerate(zip(paths, others, strict=True)):
        if not isinstance(value, torch.Tensor):
            if _varies(value, other):
                return None
            values.append(value)
            continue
        if not isinstance(other, torch.Tensor) or other.dim() != value.dim():
            return None
        axes = tuple(names.of(*sizes) for sizes in zip(value.shape, other.shape, strict=True))
        leaves.append(InputLeaf(_leaf_name(path), value.dtype, tuple(value.shape), axes))
        values.append(None)
        places.append(place)
    if not any(axis for leaf in leaves for axis in leaf.axes):
        return None
    return CandidateModule(first.path, first.module, tuple(leaves), tuple(values), tuple(places), structure)


def _varies(value: object, other: object) -> bool:
    """True if a plain argument depends on the sizes, so that the graph would be right for one size only."""
    return isinstance(value, int | float | str) and value != other


_MOST_EXTRA = 300
"""Class tokens, registers and queries that a model adds to a sequence."""


class AxisNames:
    """Names of dimensions by their sizes in the two runs."""

    def __init__(self) -> None:
        one, two = FIRST_SIZES, SECOND_SIZES
        self._bases = {
            (one.batch, two.batch): "batch",
            (one.sequence, two.sequence): "sequence",
            (one.text, two.text): "text",
            (one.batch * one.sequence, two.batch * two.sequence): "tokens",
            (one.batch * one.text, two.batch * two.text): "text_tokens",
            (one.sequence + one.text, two.sequence + two.text): "joint",
        }
        self._names = dict(self._bases)

    def of(self, first: int, second: int) -> str | None:
        """The axis of a dimension; None if it is constant."""
        if first == second:
            return None
        if (first, second) not in self._names:
            unknown = sum(name.startswith("length_") for name in self._names.values())
            self._names[first, second] = self._derived(first, second) or f"length_{unknown + 1}"
        return self._names[first, second]

    def _derived(self, first: int, second: int) -> str | None:
        """Name of a multiple of another dimension, such as windows of an image, or of one with more entries."""
        for (one, two), base in self._bases.items():
            if first % one == 0 and second % two == 0 and first // one == second // two:
                return f"{base}_times_{first // one}"
        for (one, two), base in self._bases.items():
            if base in {"sequence", "text", "joint"} and 0 < first - one == second - two <= _MOST_EXTRA:
                return f"{base}_plus_{first - one}"
        return None


_ROTARY = {"0": "cos", "1": "sin"}


def _leaf_name(path: tuple[Any, ...]) -> str:
    """Name of a leaf: its parameter, and its place or key inside of that."""
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    if len(words) == 2 and words[1] in _ROTARY and ("position_embeddings" in words[0] or "rotary" in words[0]):
        return _ROTARY[words[1]]
    return "_".join(word for word in words if word)
