"""Runs a reference's operators without the values that do not decide its way.

Floating-point tensors are meta tensors: shapes without values or memory. Integers and booleans decide loops, slices and
indices, so they keep their values where these are known and few. What the reference computes from unknown values is
answered with the least work: zeros, and for the order of unknown values the order in which they stand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.sol.arguments import OperatorCall, Untyped, changed_argument, is_view, tensors_in, with_tensors
from harness.sol.element_regions import storage_of
from harness.sol.operators import is_product, product_operations

MOST_SECONDS = 1.0
"""Processor time of one workload's analysis. It is not wall time, so that a busy machine changes no bound."""
MOST_BYTES = 2 * 10**9
"""Memory of one workload's analysis."""
_MOST_OPERATIONS = 4 * 10**9
"""Of products with values: torch cannot be interrupted within one, and a slow core needs about a second for these."""
_KNOWN_INTEGERS = 2**22
"""Integer tensors up to this size keep their values."""
_KNOWN_MASKS = 2**26
"""The same for masks: those of attention have a row for each query."""
_KNOWN_FLOATS = 2**12
"""The same for floats: lookup tables and other constants."""
DRAWN_FLOATS = 2**20
"""The same for floats of custom inputs, whose order may decide integers."""
_LOOK_FIRST = 2**20
"""From so many elements on, the size of a result is computed before the result."""
_ORDERING = {
    "topk": True, "sort": True, "argsort": True, "argmax": False, "argmin": False, "max": False, "min": False,
    "multinomial": True, "bucketize": False, "searchsorted": False, "mode": False, "median": False, "kthvalue": False,
    "_unique2": True,
}  # fmt: skip
"""Operators whose integer results depend on values; true: along the last axis all of them differ."""
_GROWING = {"repeat", "constant_pad_nd", "one_hot", "im2col", "upsample_nearest1d", "upsample_nearest2d"}
"""Operators of one tensor whose result can be many times as large."""
_ASKING = {"_local_scalar_dense", *_ORDERING}
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "log_normal", "geometric")
_FILLED_LIKE = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_BY_MASK = {"index", "index_put", "index_put_", "_index_put_impl_"}
_INDICES = 1
"""Place of the indices among the arguments of `_BY_MASK`."""


class LimitReachedError(Exception):
    """The analysis of a workload takes longer, or more memory, than allowed. The message names which."""


@dataclass
class AnalysisLimits:
    """Time and memory that one workload's analysis has used."""

    seconds: float | None = None
    """Most processor time; `MOST_SECONDS` by default."""
    begin_s: float = field(default_factory=time.thread_time)
    bytes: int = 0
    operations: int = 0

    def check_time(self) -> None:
        """Raise if the time is up.

        Raises:
            LimitReachedError: more than `seconds` of processor time.
        """
        seconds = MOST_SECONDS if self.seconds is None else self.seconds
        if time.thread_time() - self.begin_s > seconds:
            raise LimitReachedError(f"its analysis takes more than {seconds:g} s")

    def take(self, nbytes: int) -> None:
        """Count memory that an operator needs.

        Raises:
            LimitReachedError: more than `MOST_BYTES`.
        """
        self.bytes += nbytes
        if self.bytes > MOST_BYTES:
            raise LimitReachedError(f"its analysis takes more than {MOST_BYTES / 1e9:g} GB")

    def work(self, operations: int) -> None:
        """Count operations of a product that is computed with values.

        Raises:
            LimitReachedError: more than can be done in `MOST_SECONDS`.
        """
        self.operations += operations
        if self.operations > _MOST_OPERATIONS:
            raise LimitReachedError(
                f"its analysis takes more than {_MOST_OPERATIONS:.0g} operations on values (about {MOST_SECONDS:g} s)"
            )


class TensorValues:
    """Executes operators, with values or without.

    Args:
        limits: what all operators together may use.
        known_floats: floats up to so many elements keep their values.
        everything: all tensors have values; for references that do not run without.
    """

    def __init__(
        self,
        limits: AnalysisLimits,
        *,
        known_floats: int = _KNOWN_FLOATS,
        everything: bool = False,
    ) -> None:
        self.limits = limits
        self._known_floats = known_floats
        self._everything = everything
        self._invented: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self.randomness = False
        """Random numbers were drawn that have values."""

    def invent(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note that the values of an integer tensor are made up; returns it."""
        self._invented.add(storage_of(tensor))
        self._alive.append(tensor)
        return tensor

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return true if a tensor has values, and these are true ones."""
        return not tensor.is_meta and storage_of(tensor) not in self._invented

    def run(self, func: Untyped, args: Sequence[Untyped], kwargs: Mapping[str, Untyped]) -> Untyped:
        """Return an operator's result.

        Raises:
            LimitReachedError: the analysis uses too much.
        """
        self.limits.check_time()
        tensors = tensors_in(args, kwargs)
        name = func._overloadpacket.__name__  # noqa: SLF001 - the operator without its overload
        if self._everything:
            out = self._with_values(func, args, kwargs, tensors)
        elif not tensors or name in _FILLED_LIKE:
            out = self._made(func, args, kwargs, name)
        elif all(tensor.is_meta for tensor in tensors) and name not in _ASKING and "device" not in kwargs:
            return func(*args, **kwargs)  # the usual case, which has to be fast
        elif any(tensor.is_meta for tensor in tensors):
            out = self._without_values(func, args, kwargs, name)
        else:
            out = self._small(func, args, kwargs, tensors, name)
        if any(storage_of(tensor) in self._invented for tensor in tensors):
            for tensor in tensors_in(out):
                if not tensor.is_meta:
                    self.invent(tensor)
        return out

    def _with_values(
        self,
        func: Untyped,
        args: Untyped,
        kwargs: Untyped,
        tensors: list[torch.Tensor],
    ) -> Untyped:
        kwargs = _on(kwargs, "cpu")
        packet = func._overloadpacket  # noqa: SLF001
        name, product = packet.__name__, is_product(packet)
        if not is_view(func):
            shape = _shape_of(func, args, kwargs)
            if shape is not None:
                self._admit(shape)
                if product:
                    made = tensors_in(shape)
                    self.limits.work(product_operations(OperatorCall(name, packet, args, kwargs, tensors, made)))
        return func(*args, **kwargs)

    def _admit(self, shape: Untyped) -> None:
        """Count the memory of results that are not views."""
        self.limits.take(sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(shape)))

    def _made(self, func: Untyped, args: Untyped, kwargs: Untyped, name: str) -> Untyped:
        """A tensor made of no other's values."""
        plain = with_tensors(args, _to_meta)
        out = func(*plain, **_on(with_tensors(kwargs, _to_meta), "meta"))
        if not isinstance(out, torch.Tensor):
            return out
        if out.numel() > self._most_known(out.dtype):
            return out
        if name in _FILLED_LIKE:
            return torch.full(out.shape, _FILLED_LIKE[name], dtype=out.dtype)
        self.limits.take(out.numel() * out.element_size())
        self.randomness |= name.startswith(_RANDOM)
        return func(*args, **_on(kwargs, "cpu"))

    def _most_known(self, dtype: torch.dtype) -> int:
        return self._known_floats if dtype.is_floating_point or dtype.is_complex else most_known(dtype)

    def _small(self, func: Untyped, args: Untyped, kwargs: Untyped, tensors: list[torch.Tensor], name: str) -> Untyped:
        """An operator of tensors that have values: with values, unless the result is large."""
        elements = sum(tensor.numel() for tensor in tensors)
        floats = any(_is_float(tensor) for tensor in tensors)
        product = is_product(func._overloadpacket)  # noqa: SLF001
        large = elements > (_LOOK_FIRST if not floats else self._known_floats)
        if product or large or name in _GROWING or _may_grow(tensors):
            shape = _shape_of(func, args, kwargs)
            if isinstance(shape, torch.Tensor) and not is_view(func) and changed_argument(func) is None:
                if shape.numel() > self._most_known(shape.dtype) or (product and _is_float(shape)):
                    return shape
                self.limits.take(shape.numel() * shape.element_size())
        self.randomness |= name.startswith(_RANDOM)
        out = func(*args, **_on(kwargs, "cpu"))
        if not is_view(func):
            self.limits.take(sum(tensor.numel() * tensor.element_size() for tensor in tensors_in(out)))
        return out

    def _without_values(self, func: Untyped, args: Untyped, kwargs: Untyped, name: str) -> Untyped:
        """An operator of which a tensor has no values."""
        if name == "_local_scalar_dense":
            return _least(args[0].dtype)
        args = _with_positions(args) if name in _BY_MASK else args
        out = func(*with_tensors(args, _to_meta), **_on(with_tensors(kwargs, _to_meta), "meta"))
        changed = changed_argument(func)
        if changed is not None:
            target = args[changed]
            if isinstance(target, torch.Tensor) and not target.is_meta:
                self.invent(target)
            return target
        if name in _ORDERING:
            return with_tensors(out, lambda tensor: self._ordered(tensor, name))
        return out

    def _ordered(self, leaf: torch.Tensor, name: str) -> torch.Tensor:
        """Places of unknown values in an order: those in which they stand."""
        if _is_float(leaf) or leaf.dtype is torch.bool or leaf.numel() > _KNOWN_INTEGERS:
            return leaf
        self.limits.take(leaf.numel() * leaf.element_size())
        if _ORDERING[name] and leaf.dim():
            order = torch.arange(leaf.shape[-1], dtype=leaf.dtype)
            return self.invent(order.expand(leaf.shape).contiguous())
        return self.invent(torch.zeros(leaf.shape, dtype=leaf.dtype))


def most_known(dtype: torch.dtype) -> int:
    """Return the elements up to which a tensor of integers or booleans keeps its values."""
    return _KNOWN_MASKS if dtype is torch.bool else _KNOWN_INTEGERS


def _least(dtype: torch.dtype) -> float | int | bool:
    """The value that an unknown number is taken for."""
    return False if dtype is torch.bool else 1.0 if dtype.is_floating_point else 0


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _to_meta(value: torch.Tensor) -> torch.Tensor:
    if value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _on(kwargs: Mapping[str, Untyped], device: str) -> dict[str, Untyped]:
    """Keyword arguments with another device, where they name one, and without a generator of another one."""
    return {
        name: torch.device(device) if name == "device" and value is not None else value
        for name, value in kwargs.items()
        if not (name == "generator" and device == "meta") and name != "pin_memory"
    }


def _shape_of(func: Untyped, args: Untyped, kwargs: Untyped) -> Untyped:
    """The result without values; None where torch needs values for it, or its shape depends on them.

    Torch raises NotImplementedError or RuntimeError when an operator needs a value that a meta tensor does not have.
    """
    try:
        return func(*with_tensors(args, _to_meta), **_on(with_tensors(kwargs, _to_meta), "meta"))
    except (NotImplementedError, RuntimeError):
        return None


def _may_grow(tensors: list[torch.Tensor]) -> bool:
    """Broadcasting these could make a large tensor."""
    return len(tensors) > 1 and math.prod(max(1, tensor.numel()) for tensor in tensors[:2]) > _LOOK_FIRST


def _with_positions(args: Sequence[Untyped]) -> list[Untyped]:
    """Arguments of an indexing operator with known masks replaced by the positions that they choose."""
    positions: list[Untyped] = []
    for index in args[_INDICES]:
        if isinstance(index, torch.Tensor) and index.dtype is torch.bool and not index.is_meta:
            positions += list(torch.nonzero(index, as_tuple=True))
        else:
            positions.append(index)
    return [args[0], positions, *args[_INDICES + 1 :]]
