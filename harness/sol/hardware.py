"""What hardware can do at best, by target: a table for GPUs, a measurement for the CPU of this host.

Imports no torch: people ask for these figures on machines that judge nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import ConfigurationError
from harness.formats.bounded import DOCUMENT_BYTES, load_yaml

CPU = "cpu"
_FORMAT = 1


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
    """What the driver calls it."""
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

    def product_tflops(self, dtype: str) -> float:
        """The best rate of matrix products with operands of `dtype`, at the accuracy of that dtype.

        float32 products are those of the vector unit or, where faster, three TF32 products of split operands, which
        together are as accurate (Ootomo and Yokota, 2022). A dtype the device has no unit for runs at its float32 rate.
        """
        vector, tensor = self.tflops.vector, self.tflops.tensor
        if dtype == "float32":
            return max(vector["float32"], tensor.get("tf32", 0.0) / 3)
        return max(tensor.get(dtype, 0.0), self.vector_tflops(dtype))

    def vector_tflops(self, dtype: str) -> float:
        """The best rate of everything but matrix products; a narrow dtype is never slower than float32."""
        vector = self.tflops.vector
        return vector[dtype] if dtype == "float64" else max(vector["float32"], vector.get(dtype, 0.0))


def target_of(device_name: str) -> str | None:
    """The target a GPU belongs to, by the name its driver gives it; None where the table lacks it."""
    for target, figures in table().items():
        if device_name in figures.devices:
            return target
    return None


def target_name(device_name: str) -> str:
    """The name of a GPU's target: the table's, or for a GPU that it lacks one made of the driver's (`rtx-5090`)."""
    return target_of(device_name) or device_name.lower().removeprefix("nvidia ").replace(" ", "-")


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
