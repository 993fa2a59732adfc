"""Peak figures of hardware by target: a table for GPUs, and a measurement for the CPU of this host.

This module does not import torch, because commands show these figures on machines without a judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from pydantic import Field, ValidationError

from harness.errors import ConfigurationError
from harness.formats.bounded import DOCUMENT_BYTES, load_yaml
from harness.model.base_models import StrictModel

CPU = "cpu"
_FORMAT = 1


_NARROW = ("bfloat16", "float16")
WIDTHS = {
    "float4_e2m1fn_x2": 4, "int8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "bfloat16": 16, "float16": 16,
    "float32": 32, "float64": 64,
}  # fmt: skip
"""Bits of a value by dtype. Other dtypes are constants of the reference, which every dtype can represent."""
_UNITS = {
    "float4_e2m1fn_x2": ("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e5m2", "int8", *_NARROW),
    "int8": ("int8", *_NARROW),
    "float8_e4m3fn": ("float8_e4m3fn", *_NARROW),
    "float8_e5m2": ("float8_e5m2", *_NARROW),
    "bfloat16": _NARROW,
    "float16": _NARROW,
    "float64": ("float64",),
}
"""Dtypes of matrix units that represent a dtype's values, up to a common factor."""
_SPLIT_BOTH, _SPLIT_ONE = 3, 2
"""Products of 16-bit parts per product with two float32 operands, and with one."""


def widest(dtypes: Iterable[str]) -> str | None:
    """Return the widest dtype, or the first of several with the same width; None for no dtype."""
    return max(dtypes, key=lambda dtype: WIDTHS.get(dtype, 0), default=None)


class Peaks(StrictModel):
    """Dense rates in TFLOP/s by dtype; `tf32` is for float32 operands that are truncated to it."""

    tensor: Mapping[str, float] = Field(default_factory=dict)
    """Rates of matrix units. A device without them (the CPU) computes products on the vector units."""
    vector: Mapping[str, float]
    """Rates of vector units."""


class Attainable(StrictModel):
    """Best measured rates, which are below those of the datasheet."""

    bandwidth_gbs: float
    """GB/s of device memory."""
    tensor: Mapping[str, float] = Field(default_factory=dict)
    """TFLOP/s of matrix units by dtype."""


class Hardware(StrictModel):
    """Figures of one kind of device: from the datasheet of a GPU, or measured on one CPU core."""

    target: str = ""
    name: str
    devices: tuple[str, ...] = ()
    """Names of the device that its driver reports."""
    is_measured: bool = False
    """The rates were measured on this host; otherwise they are from the vendor."""
    multiprocessors: int = 1
    clock_mhz: float | None = None
    memory_gb: float | None = None
    bandwidth_gbs: float = Field(gt=0)
    """GB/s of device memory, reads and writes together."""
    cached_gbs: float | None = None
    """GB/s of the cache, on a device on which inputs may be in a cache when a call begins."""
    l2_mib: float | None = None
    tflops: Peaks
    attainable: Attainable | None = None
    source: Mapping[str, str]
    """Source of each figure."""

    @property
    def floor_gbs(self) -> float:
        """Highest rate in GB/s at which bytes can reach the arithmetic units."""
        return max(self.bandwidth_gbs, self.cached_gbs or 0.0)

    def with_attained_products(self) -> Hardware:
        """Return these figures with measured rates of products, if there are any."""
        measured = dict(self.attainable.tensor) if self.attainable else {}
        narrow_tflops = max((measured[unit] for unit in _NARROW if unit in measured), default=None)
        if narrow_tflops is not None:  # both 16-bit formats use the same unit: the rate of one is that of the other
            measured |= {unit: measured.get(unit, narrow_tflops) for unit in _NARROW}
        return self.model_copy(
            update={"tflops": self.tflops.model_copy(update={"tensor": {**self.tflops.tensor, **measured}})}
        )

    def product_tflops(self, dtype: str, second_dtype: str | None = None) -> float:
        """Return the best rate of matrix products in TFLOP/s, at the accuracy of the wider operand.

        A narrow dtype may use the unit of any dtype that represents its values. A float32 operand can be split into two
        16-bit operands whose sum is as accurate. A product of two float32 operands then consists of three products of
        parts, and a product of a float32 and a narrow operand of two. A dtype without a unit uses the vector units.

        Source: Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022.

        Args:
            dtype: dtype of an operand.
            second_dtype: dtype of the other operand; None if it is the same.
        """
        first, second = sorted((dtype, second_dtype or dtype), key=lambda name: WIDTHS.get(name, 0))
        if WIDTHS.get(first, 0) == WIDTHS.get(second, 0):
            return max(self._tflops_of(first), self._tflops_of(second))
        if second == "float32" and first in _UNITS:
            split = max(self.tflops.tensor.get(unit, 0.0) for unit in _NARROW) / _SPLIT_ONE
            return max(self._tflops_of(second), split)
        return self._tflops_of(second)

    def _tflops_of(self, dtype: str) -> float:
        tensor = self.tflops.tensor
        if dtype == "float32":
            split = max(tensor.get(unit, 0.0) for unit in ("tf32", *_NARROW)) / _SPLIT_BOTH
            return max(self.vector_tflops(dtype), split)
        units = _UNITS.get(dtype, tuple(tensor))
        return max([self.vector_tflops(dtype), *(tensor.get(unit, 0.0) for unit in units)])

    def vector_tflops(self, dtype: str) -> float:
        """Return the best rate of vector units in TFLOP/s; a narrow dtype is at least as fast as float32."""
        vector = self.tflops.vector
        if dtype == "float64":
            return vector[dtype]
        narrower = _NARROW if WIDTHS.get(dtype, 32) < WIDTHS["bfloat16"] else (dtype,)
        return max([vector["float32"], *(vector.get(name, 0.0) for name in narrower)])


def target_of(device_name: str) -> str | None:
    """Return the target of a GPU by the name that its driver reports; None if it is not in the table."""
    return next((target for target, figures in table().items() if device_name in figures.devices), None)


def target_name(device_name: str) -> str:
    """Return a GPU's target in the table, or one derived from the driver's name (`rtx-5090`)."""
    return target_of(device_name) or re.sub(r"[^a-z0-9]+", "-", device_name.lower().removeprefix("nvidia ")).strip("-")


@cache
def table() -> dict[str, Hardware]:
    """Return every GPU target of hardware.yaml.

    Raises:
        ConfigurationError: the file does not follow its format.
    """
    where = "harness/sol/hardware.yaml"
    value = load_yaml((files("harness.sol") / "hardware.yaml").read_text(), where=where, max_bytes=DOCUMENT_BYTES)
    if value.get("format") != _FORMAT:
        raise ConfigurationError(f"format {value.get('format')!r}; expected {_FORMAT}", where=where)
    try:
        return {name: Hardware(target=name, **figures) for name, figures in value["targets"].items()}
    except ValidationError as error:
        raise ConfigurationError(str(error), where=where) from error
