"""Execute a reference's operators without the values that do not affect its control flow.

Floating-point tensors are meta tensors, with shapes but without values or memory. Integers and booleans determine
loops, slices and indices, so that small tensors of them have values if these are known. Results that depend on unknown
values are replaced by those with the least work: zeros, and the existing order for operators that order unknown values.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.sol.arguments import OperatorCall, Untyped, changed_argument, is_view, tensors_in, with_tensors
from harness.sol.element_regions import storage_of
from harness.sol.operators import is_product, product_operations

MOST_SECONDS = 1.0
"""Limit of the processor time of one workload's analysis. It is not wall time, so that load has no effect."""
MOST_BYTES = 2 * 10**9
"""Limit of the memory of one workload's analysis."""
_MAX_OPERATIONS = 4 * 10**9
"""Limit of the operations of products with values, about a second on a slow core: torch cannot interrupt one."""
_KNOWN_INTEGERS = 2**22
"""Largest number of elements of an integer tensor with values."""
_KNOWN_MASKS = 2**26
"""The same for masks; masks of attention have a row for each query."""
_KNOWN_FLOATS = 2**12
"""The same for floats: lookup tables and other constants."""
DRAWN_FLOATS = 2**20
"""The same for floats of custom inputs, whose order may determine integers."""
_SIZE_CHECK_ELEMENTS = 2**20
"""Number of elements from which on the size of a result is computed before the result."""
_ORDERING = {
    "topk": True, "sort": True, "argsort": True, "argmax": False, "argmin": False, "max": False, "min": False,
    "multinomial": True, "bucketize": False, "searchsorted": False, "mode": False, "median": False, "kthvalue": False,
    "_unique2": True,
}  # fmt: skip
"""Operators whose integer results depend on values -> true if the results along the last axis are distinct."""
_GROWING = {"repeat", "constant_pad_nd", "one_hot", "im2col", "upsample_nearest1d", "upsample_nearest2d"}
"""Operators of one tensor whose result can be many times larger."""
_VALUE_DEPENDENT = {"_local_scalar_dense", *_ORDERING}
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "uniform", "exponential", "log_normal", "geometric")
_FILLED_LIKE = {"zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_BY_MASK = {"index", "index_put", "index_put_", "_index_put_impl_"}
_INDICES = 1
"""Position of the indices among the arguments of `_BY_MASK`."""


class LimitReachedError(Exception):
    """The analysis of a workload exceeds its limit of time, memory or operations; the message names the limit."""


@dataclass
class AnalysisLimits:
    """Time, memory and operations that one workload's analysis has used."""

    seconds: float | None = None
    """Limit of the processor time in seconds; None for `MOST_SECONDS`."""
    begin_s: float = field(default_factory=time.thread_time)
    bytes: int = 0
    operations: int = 0

    def check_time(self) -> None:
        """Check the processor time.

        Raises:
            LimitReachedError: the analysis has used more than `seconds`.
        """
        seconds = MOST_SECONDS if self.seconds is None else self.seconds
        if time.thread_time() - self.begin_s > seconds:
            raise LimitReachedError(f"its analysis takes more than {seconds:g} s")

    def take(self, nbytes: int) -> None:
        """Add the memory of an operator.

        Raises:
            LimitReachedError: the analysis uses more than `MOST_BYTES`.
        """
        self.bytes += nbytes
        if self.bytes > MOST_BYTES:
            raise LimitReachedError(f"its analysis takes more than {MOST_BYTES / 1e9:g} GB")

    def work(self, operations: int) -> None:
        """Add the operations of a product that is computed with values.

        Raises:
            LimitReachedError: the analysis has more operations than a slow core computes in about `MOST_SECONDS`.
        """
        self.operations += operations
        if self.operations > _MAX_OPERATIONS:
            raise LimitReachedError(
                f"its analysis takes more than {_MAX_OPERATIONS:.0g} operations on values (about {MOST_SECONDS:g} s)"
            )


class TensorValues:
    """Executes operators, with or without values.

    Args:
        limits: limits of all operators together.
        known_floats: largest number of elements of a float tensor with values.
        everything: give values to all tensors, for references that do not run otherwise.
    """

    def __init__(self, limits: AnalysisLimits, *, known_floats: int = _KNOWN_FLOATS, everything: bool = False) -> None:
        self.limits = limits
        self._known_floats = known_floats
        self._everything = everything
        self._invented: set[int] = set()
        self._alive: list[torch.Tensor] = []
        self.randomness = False
        """Random numbers with values were drawn."""

    def invent(self, tensor: torch.Tensor) -> torch.Tensor:
        """Mark the values of a tensor as placeholders, and return the tensor."""
        self._invented.add(storage_of(tensor))
        self._alive.append(tensor)
        return tensor

    def is_known(self, tensor: torch.Tensor) -> bool:
        """Return true if a tensor has values that are not placeholders."""
        return not tensor.is_meta and storage_of(tensor) not in self._invented

    def run(self, func: Untyped, args: Sequence[Untyped], kwargs: Mapping[str, Untyped]) -> Untyped:
        """Execute an operator and return its result.

        Raises:
            LimitReachedError: the analysis exceeds a limit.
        """
        self.limits.check_time()
        tensors = tensors_in(args, kwargs)
        name = func._overloadpacket.__name__  # noqa: SLF001 - the operator without its overload
        if self._everything:
            out = self._with_values(func, args, kwargs, tensors)
        elif not tensors or name in _FILLED_LIKE:
            out = self._created(func, args, kwargs, name)
        elif all(tensor.is_meta for tensor in tensors) and name not in _VALUE_DEPENDENT and "device" not in kwargs:
            return func(*args, **kwargs)  # the most frequent case, which must be fast
        elif any(tensor.is_meta for tensor in tensors):
            out = self._without_values(func, args, kwargs, name)
        else:
            out = self._small(func, args, kwargs, tensors, name)
        if any(storage_of(tensor) in self._invented for tensor in tensors):
            for tensor in tensors_in(out):
                if not tensor.is_meta:
                    self.invent(tensor)
        return out

    def _with_values(self, func: Untyped, args: Untyped, kwargs: Untyped, tensors: list[torch.Tensor]) -> Untyped:
        kwargs = _on(kwargs, "cpu")
        packet = func._overloadpacket  # noqa: SLF001
        results = [] if is_view(func) else tensors_in(_shape_of(func, args, kwargs))
        self.limits.take(sum(tensor.nbytes for tensor in results))
        if results and is_product(packet):
            call = OperatorCall(packet.__name__, packet, args, kwargs, tensors, results)
            self.limits.work(product_operations(call))
        return func(*args, **kwargs)

    def _created(self, func: Untyped, args: Untyped, kwargs: Untyped, name: str) -> Untyped:
        """Return a tensor that does not depend on values of others."""
        out = _without_data(func, args, kwargs)
        if not isinstance(out, torch.Tensor) or out.numel() > self._max_known_elements(out.dtype):
            return out
        if name in _FILLED_LIKE:
            return torch.full(out.shape, _FILLED_LIKE[name], dtype=out.dtype)
        self.limits.take(out.nbytes)
        self.randomness |= name.startswith(_RANDOM)
        return func(*args, **_on(kwargs, "cpu"))

    def _max_known_elements(self, dtype: torch.dtype) -> int:
        return self._known_floats if dtype.is_floating_point or dtype.is_complex else max_known_elements(dtype)

    def _small(self, func: Untyped, args: Untyped, kwargs: Untyped, tensors: list[torch.Tensor], name: str) -> Untyped:
        """Execute an operator of tensors with values; a large result has no values."""
        has_floats = any(_is_float(tensor) for tensor in tensors)
        max_elements = self._known_floats if has_floats else _SIZE_CHECK_ELEMENTS
        is_large = sum(tensor.numel() for tensor in tensors) > max_elements
        product = is_product(func._overloadpacket)  # noqa: SLF001
        if product or is_large or name in _GROWING or _may_grow(tensors):
            shape = _shape_of(func, args, kwargs)
            if isinstance(shape, torch.Tensor) and not is_view(func) and changed_argument(func) is None:
                if shape.numel() > self._max_known_elements(shape.dtype) or (product and _is_float(shape)):
                    return shape
                self.limits.take(shape.nbytes)
        self.randomness |= name.startswith(_RANDOM)
        out = func(*args, **_on(kwargs, "cpu"))
        if not is_view(func):
            self.limits.take(sum(tensor.nbytes for tensor in tensors_in(out)))
        return out

    def _without_values(self, func: Untyped, args: Untyped, kwargs: Untyped, name: str) -> Untyped:
        """Execute an operator with a tensor that has no values."""
        if name == "_local_scalar_dense":  # a placeholder of the unknown number
            return False if args[0].dtype is torch.bool else 1.0 if args[0].is_floating_point() else 0
        args = _with_positions(args) if name in _BY_MASK else args
        out = _without_data(func, args, kwargs)
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
        """Return positions of ordered unknown values: those of the existing order."""
        if _is_float(leaf) or leaf.dtype is torch.bool or leaf.numel() > _KNOWN_INTEGERS:
            return leaf
        self.limits.take(leaf.nbytes)
        if _ORDERING[name] and leaf.dim():
            order = torch.arange(leaf.shape[-1], dtype=leaf.dtype)
            return self.invent(order.expand(leaf.shape).contiguous())
        return self.invent(torch.zeros(leaf.shape, dtype=leaf.dtype))


def max_known_elements(dtype: torch.dtype) -> int:
    """Return the largest number of elements of a tensor of integers or booleans with values."""
    return _KNOWN_MASKS if dtype is torch.bool else _KNOWN_INTEGERS


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _to_meta(value: torch.Tensor) -> torch.Tensor:
    if value.is_meta:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _on(kwargs: Mapping[str, Untyped], device: str) -> dict[str, Untyped]:
    """Return keyword arguments with `device` replaced, and without a generator of another device."""
    return {
        name: torch.device(device) if name == "device" and value is not None else value
        for name, value in kwargs.items()
        if not (name == "generator" and device == "meta") and name != "pin_memory"
    }


def _without_data(func: Untyped, args: Untyped, kwargs: Untyped) -> Untyped:
    """Return the result of an operator on meta tensors."""
    return func(*with_tensors(args, _to_meta), **_on(with_tensors(kwargs, _to_meta), "meta"))


def _shape_of(func: Untyped, args: Untyped, kwargs: Untyped) -> Untyped:
    """Return the result without values; None if torch needs values for it, or its shape depends on them.

    Torch raises NotImplementedError or RuntimeError when an operator needs a value that a meta tensor does not have.
    """
    try:
        return _without_data(func, args, kwargs)
    except (NotImplementedError, RuntimeError):
        return None


def bytes_of_new_results(func: Untyped, args: Sequence[Untyped], kwargs: Mapping[str, Untyped]) -> int:
    """Return the bytes of the storages that an operator will create; 0 if they depend on values.

    Args:
        func: operator of torch.
        args: its positional arguments; their storages may be empty.
        kwargs: its keyword arguments.
    """
    on_meta, named_on_meta = with_tensors(args, _to_meta), with_tensors(kwargs, _to_meta)
    try:
        results = tensors_in(_without_data(func, on_meta, named_on_meta))
    except Exception:  # noqa: BLE001 - kernels without values raise any exception where they need values
        return 0
    operands = {storage_of(tensor) for tensor in tensors_in(on_meta, named_on_meta)}
    storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in results}
    return sum(size for storage, size in storages.items() if storage not in operands)


@functools.cache
def load_meta_kernels() -> None:
    """Execute a first operator without values, for which torch loads modules for a second, before a limit applies."""
    matrix = torch.empty(2, 2, device="meta")
    torch.relu(matrix @ matrix + matrix).sum(-1)


def _may_grow(tensors: list[torch.Tensor]) -> bool:
    """Return true if the tensors could broadcast to a large result."""
    return len(tensors) > 1 and math.prod(max(1, tensor.numel()) for tensor in tensors[:2]) > _SIZE_CHECK_ELEMENTS


def _with_positions(args: Sequence[Untyped]) -> list[Untyped]:
    """Return the arguments of an indexing operator with known masks replaced by the selected positions."""
    positions: list[Untyped] = []
    for index in args[_INDICES]:
        if isinstance(index, torch.Tensor) and index.dtype is torch.bool and not index.is_meta:
            positions += list(torch.nonzero(index, as_tuple=True))
        else:
            positions.append(index)
    return [args[0], positions, *args[_INDICES + 1 :]]
