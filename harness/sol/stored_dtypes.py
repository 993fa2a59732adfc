"""The narrowest dtype in which operands of a product can be stored, independent of casts in the reference.

A reference dequantises weights and multiplies them in float32. A kernel multiplies the stored values on the matrix unit
of their dtype and applies the scales afterwards. Each tensor therefore has the widest dtype among the stored tensors
from which it was computed. Scales, which have fewer values than the scaled tensors, and constants are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.sol.arguments import Untyped
from harness.sol.element_regions import storage_of
from harness.sol.hardware import WIDTHS

CONSTANT = "constant"
"""Dtype of values that a reference creates without its inputs; they get the dtype of the other operand."""
FOUR_BITS = "float4_e2m1fn_x2"
_WIDTHS = {CONSTANT: 0, **WIDTHS}
_LOOKUPS = {"index", "index_select", "embedding", "gather", "take"}
_TABLE_BITS = ((16, FOUR_BITS), (256, "int8"))
"""(largest number of entries of a lookup table, dtype of the codes that select them)."""


@dataclass
class _Stored:
    """Knowledge about the values of one storage."""

    dtype: str
    values: int
    """Largest number of values from which it was computed; a broadcast scale has few."""
    bits: int
    """For integers: number of bits that can be set."""
    is_integral: bool = False
    """A float tensor whose values are integers."""


def wider(first: str, second: str) -> str:
    """Return the wider of two dtypes, or the first one if they have the same width.

    Args:
        first: name of a dtype.
        second: name of a dtype.
    """
    return second if _WIDTHS[second] > _WIDTHS[first] else first


def dtype_name(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype; other variants of eight-bit floats count as float8_e4m3fn."""
    name = str(tensor.dtype).removeprefix("torch.")
    return "float8_e4m3fn" if name.startswith("float8") and name not in _WIDTHS else name


class StoredDtypes:
    """Stored dtypes of all tensors of one run."""

    def __init__(self) -> None:
        self._of: dict[int, _Stored] = {}

    def add_input(self, tensor: torch.Tensor) -> None:
        """Add an input of the problem."""
        name = dtype_name(tensor)
        bits = _bits_of(tensor)
        dtype = name if name in _WIDTHS else _integer_dtype(bits)
        self._of[storage_of(tensor)] = _Stored(dtype, tensor.numel(), bits)

    def dtype(self, tensor: torch.Tensor) -> str:
        """Return the stored dtype of a tensor's values, never wider than its own."""
        stored, name = self._of.get(storage_of(tensor)), dtype_name(tensor)
        if not tensor.is_floating_point():
            own_dtype = _integer_dtype(self._bits(tensor))
            return own_dtype if stored is None or _WIDTHS[own_dtype] < _WIDTHS[stored.dtype] else stored.dtype
        if stored is None:
            return CONSTANT
        return name if _WIDTHS[name] < _WIDTHS[stored.dtype] else stored.dtype

    def record(
        self, name: str, args: Sequence[Untyped], operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> None:
        """Derive the dtypes of an operator's results from those of its operands.

        Args:
            results: tensors that it returned.
        """
        if not operands:
            return
        name = name.removesuffix("_") if not name.startswith("_") else name
        table = operands[0] if name in _LOOKUPS else None
        numbers = [tensor for tensor in operands if tensor.dtype is not torch.bool]
        sources = [table] if table is not None else numbers or operands
        dtype, values, bits = CONSTANT, 0, 1
        for operand in sources:
            count = self._values(operand)
            bits = max(bits, self._bits(operand))
            operand_dtype = self.dtype(operand)
            if operand_dtype == CONSTANT:
                continue
            dtype = wider(dtype, operand_dtype) if count == values else operand_dtype if count > values else dtype
            values = max(values, count)
        total = sum(self._values(operand) for operand in sources)
        if table is not None and table.is_floating_point():
            dtype = next((code_dtype for entries, code_dtype in _TABLE_BITS if table.numel() <= entries), dtype)
        dtype = self._quantised(name, args, operands, dtype)
        bits = _result_bits(name, args, operands, bits)
        is_clamped = name == "clamp" and self._is_integral(operands[0])
        integral = is_clamped or name in {"round", "floor", "ceil", "trunc"}
        for tensor in results:
            count = tensor.numel() if table is not None else min(tensor.numel(), max(total, values))
            self._of[storage_of(tensor)] = _Stored(dtype, count, min(bits, _bits_of(tensor)), integral)

    def _values(self, tensor: torch.Tensor) -> int:
        distinct = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            distinct *= size if stride else 1
        stored = self._of.get(storage_of(tensor))
        return min(distinct, stored.values) if stored else distinct

    def _bits(self, tensor: torch.Tensor) -> int:
        stored = self._of.get(storage_of(tensor))
        return min(_bits_of(tensor), stored.bits) if stored and not tensor.is_floating_point() else _bits_of(tensor)

    def _is_integral(self, tensor: torch.Tensor) -> bool:
        stored = self._of.get(storage_of(tensor))
        return stored is not None and stored.is_integral

    def _quantised(self, name: str, args: Sequence[Untyped], operands: Sequence[torch.Tensor], dtype: str) -> str:
        """Return the stored dtype of rounded values between two bounds, which are integers of few bits."""
        bounds = args[1:3]
        is_bounded = len(bounds) == 2 and all(isinstance(bound, int | float) for bound in bounds)
        if name != "clamp" or not is_bounded or not self._is_integral(operands[0]):
            return dtype
        quantised = _integer_dtype(int(bounds[1] - bounds[0]).bit_length())
        return quantised if _WIDTHS[quantised] < _WIDTHS[dtype] else dtype


def _integer_dtype(bits: int) -> str:
    """Return the narrowest dtype of a matrix unit that represents integers of this number of bits exactly."""
    limits = ((4, FOUR_BITS), (8, "int8"), (11, "float16"))
    return next((name for max_bits, name in limits if bits <= max_bits), "float32")


def _bits_of(tensor: torch.Tensor) -> int:
    return 1 if tensor.dtype is torch.bool else 8 * tensor.element_size()


def _result_bits(name: str, args: Sequence[Untyped], operands: Sequence[torch.Tensor], bits: int) -> int:
    """Return the number of bits that can be set in an integer result; `bits` is that of the operands."""
    if name in {"bucketize", "searchsorted"} and len(operands) > 1:
        boundaries = operands[1] if name == "bucketize" else operands[0]
        return boundaries.shape[-1].bit_length()
    constant = next((value for value in args if isinstance(value, int) and not isinstance(value, bool)), None)
    if constant is None or constant < 0:
        return bits
    after = {
        "bitwise_and": min(bits, constant.bit_length()),
        "bitwise_right_shift": max(1, bits - constant),
        "bitwise_left_shift": bits + constant,
        "remainder": min(bits, max(0, constant - 1).bit_length() or bits),
    }
    return after.get(_SAME.get(name, name), bits)


_SAME = {"__and__": "bitwise_and", "__rshift__": "bitwise_right_shift", "__lshift__": "bitwise_left_shift",
         "fmod": "remainder"}  # fmt: skip
"""Other names of the same operators."""
