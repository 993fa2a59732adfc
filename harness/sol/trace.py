"""What a reference does to its inputs: floating-point operations, and which bytes it reads.

The reference runs once under a dispatch mode that sees every operator: on meta tensors, which have shapes and no
values, and where its way depends on values, on real ones. This is the only module here that imports torch as it loads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
_Tensors = list[torch.Tensor]

_EXACT_ELEMENTS = 2**24
"""Up to this size an input keeps a map of its elements that were read; beyond, the largest single region counts."""
_SELECTING = {
    "slice", "select", "narrow", "index", "index_select", "gather", "take", "take_along_dim", "embedding", "where",
    "masked_fill", "masked_fill_", "masked_select", "tril", "triu", "unfold", "as_strided",
    "diagonal", "max_pool2d_with_indices", "scatter", "index_put", "index_put_", "slice_scatter",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "split", "split_with_sizes",
    "unbind",
}  # fmt: skip
"""Operators after which an element of what went in may not matter to what comes out: they drop some, or choose."""
_FREE = {
    "clone", "copy_", "_to_copy", "contiguous", "cat", "stack", "fill_", "zero_", "zeros_like", "empty_like",
    "full_like", "ones_like", "new_empty", "new_zeros", "new_full", "arange", "empty", "zeros", "ones", "full",
    "scalar_tensor", "constant_pad_nd", "lift_fresh", "lift_fresh_copy", "bitwise_and", "bitwise_or",
    "bitwise_not", "logical_not",
    "logical_and", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "abs", "neg", "flip", "roll", "repeat",
    "_local_scalar_dense", "empty_strided", "copy", "detach",
} | _SELECTING  # fmt: skip
"""Operators that move, compare or flip signs: no floating-point operations."""
_SCATTERING = {"index_put_", "index_copy_", "index_add_", "index_fill_", "scatter_", "scatter_add_", "masked_scatter_"}
"""Operators that write some elements of what they are given first: as many as they are given further on."""
_PER_ELEMENT = {
    "native_layer_norm": 7, "native_group_norm": 7, "native_batch_norm": 7, "_softmax": 4, "_log_softmax": 4, "silu": 4,
    "sigmoid": 3, "gelu": 6, "var": 4, "var_mean": 4, "std": 4, "addcmul": 3, "addcdiv": 3, "lerp": 3,
    "_fused_rms_norm": 4,
}  # fmt: skip
"""Operations for each element that goes in, where an operator is several; every other counts one."""


@dataclass
class Trace:
    """What one run of a reference showed."""

    products: Counter[str] = field(default_factory=Counter)
    """Floating-point operations of matrix products and convolutions, by operand dtype."""
    elementwise: Counter[str] = field(default_factory=Counter)
    """Those of everything else, by dtype."""
    read: dict[str, int] = field(default_factory=dict)
    """Input -> elements of it that an operator other than a view took in."""
    needed: dict[str, int] = field(default_factory=dict)
    """Input -> elements that every way to the same outputs must read, as far as that can be proved."""


def trace(run: Any, inputs: Mapping[str, Any]) -> Trace:  # noqa: ANN401 - a problem's own function
    """Run `run(*inputs)` and say what it did. Inputs are tensors (meta or real) and Python scalars."""
    recorder = _OperationRecorder({name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)})
    with torch.no_grad(), recorder, _Attention(recorder):
        run(*inputs.values())
    return recorder.result()


class _ByteRegion:
    """The elements of one input that were read."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.elements = tensor.numel()
        self.offset = tensor.storage_offset()
        self.dense = tensor.is_contiguous()
        exact = self.dense and self.elements <= _EXACT_ELEMENTS
        self.seen = torch.zeros(self.elements, dtype=torch.bool) if exact else None
        self.largest = 0
        self.total = 0

    def add(self, view: torch.Tensor) -> None:
        """Note that every element of a view of this input was read."""
        shape, strides = list(view.shape), list(view.stride())
        for axis, stride in enumerate(strides):
            if stride == 0:  # a broadcast axis repeats one element
                shape[axis] = min(shape[axis], 1)
        size = math.prod(shape)
        self.largest, self.total = max(self.largest, size), self.total + size
        if self.seen is not None and size:
            self.seen.as_strided(shape, strides, view.storage_offset() - self.offset).fill_(value=True)

    def certain(self) -> int:
        """Elements that were read, never too many."""
        return int(self.seen.sum()) if self.seen is not None else min(self.largest, self.elements)

    def likely(self) -> int:
        """Elements that were read, as well as it can be told."""
        return int(self.seen.sum()) if self.seen is not None else min(self.total, self.elements)


class _OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Trace()
        self.inputs = dict(inputs)
        self.regions = {name: _ByteRegion(tensor) for name, tensor in inputs.items()}
        self.storages = {_storage(tensor): name for name, tensor in inputs.items()}
        self.gathered: Counter[str] = Counter()
        self.partial: set[str] = set()
        self.origins: dict[int, frozenset[str]] = {}
        self.narrow: dict[int, str] = {}  # storage -> the narrower dtype its values were exactly cast from
        self.counting = True
        self.alive: list[torch.Tensor] = []  # keeps a storage's address from being used again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        packet = func._overloadpacket  # noqa: SLF001 - the operator without its overload, as torch's own counter does
        if packet not in flop_registry and packet not in _VECTOR_PRODUCTS:
            with self:
                decomposed = func.decompose(*args, **kwargs)
            if decomposed is not NotImplemented:
                return decomposed
        out = func(*args, **kwargs)
        self.record(func, packet, args, kwargs, out)
        return out

    def record(self, func: Any, packet: Any, args: Any, kwargs: Any, out: Any) -> None:  # noqa: ANN401
        """Count one operator that ran."""
        taken, made = list(_tensors((args, kwargs))), list(_tensors(out))
        name = packet.__name__
        self.alive += [*taken, *made]
        sources = frozenset[str]().union(*(self.origin(tensor) for tensor in taken))
        if name == "_to_copy" and taken[0].is_floating_point() and taken[0].itemsize < made[0].itemsize:
            self.narrow[_storage(made[0])] = self.dtype(taken[0])
        if _is_view(func):
            # A view of an input is resolved when something reads it; of anything else it may drop what was computed.
            if name in _SELECTING and not any(_storage(tensor) in self.storages for tensor in taken):
                self.partial |= sources
            return
        self.read(name, taken, made)
        if name in _SELECTING or _has_boolean_choice(taken, made):
            chosen_from = [tensor for place, tensor in enumerate(taken) if not _chooses(place, tensor)]
            self.partial |= frozenset[str]().union(*(self.origin(tensor) for tensor in chosen_from))
        for tensor in made:
            self.origins[_storage(tensor)] = self.origins.get(_storage(tensor), frozenset()) | sources
        self.count(packet, args, kwargs, out, taken, made)

    def origin(self, tensor: torch.Tensor) -> frozenset[str]:
        """The inputs a tensor is one of, or was computed from."""
        storage = _storage(tensor)
        itself = {self.storages[storage]} if storage in self.storages else set[str]()
        return self.origins.get(storage, frozenset()) | itself

    def read(self, name: str, taken: _Tensors, made: _Tensors) -> None:
        """Note which elements of inputs an operator takes in; of what it indexes, only as many as come out."""
        out = sum(tensor.numel() for tensor in made)
        for position, tensor in enumerate(taken):
            source = self.storages.get(_storage(tensor))
            if source is None:
                continue
            if position == 0 and name in {"index", "index_select", "gather", "take", "embedding"}:
                self.gathered[source] += min(out, tensor.numel())
            elif position == 0 and name in _SCATTERING:
                given = max((other.numel() for other in taken[1:]), default=0)
                self.gathered[source] += min(given, tensor.numel())
            else:
                self.regions[source].add(tensor)

    def count(self, packet: Any, args: Any, kwargs: Any, out: Any, taken: _Tensors, made: _Tensors) -> None:  # noqa: ANN401
        """Add an operator's floating-point operations."""
        name = packet.__name__
        floats = [tensor for tensor in taken if tensor.is_floating_point()]
        if not self.counting:
            return
        if packet in flop_registry:
            self.found.products[self.dtype(*(floats or taken)[-2:])] += int(
                flop_registry[packet](*args, **kwargs, out_val=out)
            )
        elif packet in _VECTOR_PRODUCTS:
            matrix = max(taken, key=lambda tensor: tensor.numel())
            self.found.products[self.dtype(matrix)] += 2 * matrix.numel()
        elif floats and name not in _FREE:
            elements = max(tensor.numel() for tensor in [*floats, *made])
            self.found.elementwise[_dtype(floats[0])] += _PER_ELEMENT.get(name, 1) * elements

    def dtype(self, *operands: torch.Tensor) -> str:
        """The dtype a product of these needs: bfloat16 values cast to float32 multiply exactly as bfloat16 do."""
        names = [self.narrow.get(_storage(tensor), _dtype(tensor)) for tensor in operands]
        return max(names, key=lambda name: getattr(torch, name).itemsize)

    def result(self) -> Trace:
        """The whole run."""
        for name, region in self.regions.items():
            self.found.read[name] = min(region.likely() + self.gathered[name], region.elements)
            self.found.needed[name] = 0 if name in self.partial else region.certain()
        return self.found


class _Attention(TorchFunctionMode):
    """Counts fused attention as what it is: on tensors without values, torch spells it out in float32."""

    def __init__(self, recorder: _OperationRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention or not self.recorder.counting:
            return func(*args, **kwargs)
        self.recorder.counting = False
        try:
            out = func(*args, **kwargs)
        finally:
            self.recorder.counting = True
        query, key, value = (*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))[:3]
        scores = math.prod(query.shape[:-1]) * key.shape[-2]
        self.recorder.found.products[_dtype(query)] += 2 * scores * (query.shape[-1] + value.shape[-1])
        self.recorder.found.elementwise["float32"] += _PER_ELEMENT["_softmax"] * scores
        return out


_VECTOR_PRODUCTS = (aten.mv, aten.addmv, aten.dot, aten.vdot)
"""Products that torch's own registry leaves out: two operations for each element of the matrix."""


def _tensors(value: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - meta tensors have no address to tell them apart


def _is_view(func: Any) -> bool:  # noqa: ANN401
    returns = func._schema.returns  # noqa: SLF001
    return bool(returns) and all(one.alias_info is not None and not one.alias_info.is_write for one in returns)


def _has_boolean_choice(taken: _Tensors, made: _Tensors) -> bool:
    """A mask among the operands of arithmetic makes some of the others' elements irrelevant."""
    return any(tensor.dtype is torch.bool for tensor in taken) and any(tensor.is_floating_point() for tensor in made)


def _chooses(place: int, tensor: torch.Tensor) -> bool:
    """A mask or an index says which elements matter, and is itself needed."""
    return tensor.dtype is torch.bool or (place > 0 and not tensor.is_floating_point())


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
