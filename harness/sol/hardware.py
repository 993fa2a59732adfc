"""What hardware can do at best, by target: a table for GPUs, a measurement for the CPU of this host.

Imports no torch: people ask for these figures on machines that judge nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ConfigurationError
from harness.formats.bounded import DOCUMENT_BYTES, load_yaml

CPU = "cpu"
_FORMAT = 1


_NARROW = ("bfloat16", "float16")
_WIDTHS = {
    "float4_e2m1fn_x2": 4, "int8": 8, "float8_e4m3fn": 8, "float8_e5m2": 8, "bfloat16": 16, "float16": 16,
    "float32": 32, "float64": 64,
}  # fmt: skip
"""Bits of a value, by dtype; what is not here is a constant of the reference, which any dtype may hold."""
_UNITS = {
    "float4_e2m1fn_x2": ("float4_e2m1fn_x2", "float8_e4m3fn", "float8_e5m2", "int8", *_NARROW),
    "int8": ("int8", *_NARROW),
    "float8_e4m3fn": ("float8_e4m3fn", *_NARROW),
    "float8_e5m2": ("float8_e5m2", *_NARROW),
    "bfloat16": _NARROW,
    "float16": _NARROW,
    "float64": ("float64",),
}
"""Matrix units that hold a dtype's values, up to a factor that scales them all."""
_SPLIT_BOTH, _SPLIT_ONE = 3, 2
"""Products of 16-bit parts that make up one of float32 operands, both of them or one."""


def widest(dtypes: Iterable[str]) -> str | None:
    """Return the widest of some dtypes, the first of equals; None of none."""
    return max(dtypes, key=lambda dtype: _WIDTHS.get(dtype, 0), default=None)


class _Figures(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Peaks(_Figures):
    """Dense rates in TFLOP/s by dtype; `tf32` stands for float32 operands cut down to it."""

    tensor: Mapping[str, float] = Field(default_factory=dict)
    """Matrix units. A device without them (the CPU) has its products on the vector units."""
    vector: Mapping[str, float]


class Attainable(_Figures):
    """The best that was measured, below what the datasheet promises."""

    bandwidth_gbs: float
    tensor: Mapping[str, float] = Field(default_factory=dict)


class Hardware(_Figures):
    """One kind of device: datasheet figures of a GPU, measured ones of one CPU core."""

    target: str = ""
    name: str
    devices: tuple[str, ...] = ()
    """Name by the driver."""
    is_measured: bool = False
    """The rates were measured on this host; otherwise they are the vendor's."""
    multiprocessors: int = 1
    clock_mhz: float | None = None
    memory_gb: float | None = None
    bandwidth_gbs: float = Field(gt=0)
    """Of device memory, reads and writes together."""
    cached_gbs: float | None = None
    """Where inputs may be in a cache and nothing forbids it, the rate at which they come from there."""
    l2_mib: float | None = None
    tflops: Peaks
    attainable: Attainable | None = None
    source: Mapping[str, str]

    @property
    def floor_gbs(self) -> float:
        """The highest rate at which bytes can reach the arithmetic, wherever they are."""
        return max(self.bandwidth_gbs, self.cached_gbs or 0.0)

    def with_attained_products(self) -> Hardware:
        """These figures with the rates of products that were measured, where they were."""
        measured = dict(self.attainable.tensor) if self.attainable else {}
        both = max((measured[unit] for unit in _NARROW if unit in measured), default=None)
        if both is not None:  # where one 16-bit format was measured, it stands for both: they share a unit
            measured |= {unit: measured.get(unit, both) for unit in _NARROW}
        return self.model_copy(
            update={"tflops": self.tflops.model_copy(update={"tensor": {**self.tflops.tensor, **measured}})}
        )

    def product_tflops(self, dtype: str, other: str | None = None) -> float:
        """The best rate of matrix products with operands of these dtypes, at the accuracy of the wider one.

        A narrow dtype may run on the unit of any dtype that holds its values. A float32 operand is two 16-bit ones
        whose sum is as accurate: a product of two such operands takes three products of parts, with a narrow operand
        two (Ootomo and Yokota, "Recovering single precision accuracy from Tensor Cores", 2022). A dtype the device has
        no unit for runs at its vector rate.
        """
        first, second = sorted((dtype, other or dtype), key=lambda one: _WIDTHS.get(one, 0))
        if _WIDTHS.get(first, 0) == _WIDTHS.get(second, 0):
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
        """The best rate of everything but matrix products; a narrow dtype is never slower than float32."""
        vector = self.tflops.vector
        if dtype == "float64":
            return vector[dtype]
        narrower = _NARROW if _WIDTHS.get(dtype, 32) < _WIDTHS["bfloat16"] else (dtype,)
        return max([vector["float32"], *(vector.get(one, 0.0) for one in narrower)])


def target_of(device_name: str) -> str | None:
    """The target a GPU belongs to, by the name its driver gives it; None where the table lacks it."""
    for target, figures in table().items():
        if device_name in figures.devices:
            return target
    return None


def target_name(device_name: str) -> str:
    """The name of a GPU's target: the table's, or for a GPU that it lacks one made of the driver's (`rtx-5090`)."""
    return target_of(device_name) or re.sub(r"[^a-z0-9]+", "-", device_name.lower().removeprefix("nvidia ")).strip("-")


@cache
def table() -> dict[str, Hardware]:
    """Every GPU target of hardware.yaml.

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
