"""Measure a GPU with torch: bandwidth, and the rates of products in each supported dtype.

Each figure is the fastest of many repetitions by device events. Operands are zeros, which need the least power, so that
the clock remains at its maximum. `harness.sol.measured_gpu` stores the figures and derives those of bounds.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable

import torch

from harness.errors import ConfigurationError
from harness.sol.hardware import target_name
from harness.sol.measured_gpu import GpuRates

logger = logging.getLogger(__name__)

_REPETITIONS = 20
_SIZE = 8192
"""Rows and columns of a product of 1.1e12 operations."""
_SMALL_SIZE = 2048
"""Rows and columns in float64, in which most GPUs are slow."""
_COPIED_BYTES = 4 * 2**30


def measure_gpu(ordinal: int) -> GpuRates:
    """Return the rates of a GPU of this host (some seconds, and up to 5 GB of its memory).

    Args:
        ordinal: torch's number of the device.

    Raises:
        ConfigurationError: torch finds no such device.
    """
    _check_presence(ordinal)
    with torch.cuda.device(ordinal), torch.no_grad():
        properties = torch.cuda.get_device_properties(ordinal)
        clock_khz = getattr(properties, "clock_rate", None)
        return GpuRates(
            target=target_name(properties.name),
            name=properties.name,
            id=gpu_id(ordinal),
            measured_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            torch=torch.__version__,
            capability=(properties.major, properties.minor),
            multiprocessors=properties.multi_processor_count,
            memory_gb=round(properties.total_memory / 1e9, 1),
            l2_mib=properties.L2_cache_size / 2**20,
            clock_mhz=clock_khz / 1e3 if clock_khz else None,
            bandwidth_gbs=_bandwidth_gbs(),
            tensor_tflops=_tensor_tflops(),
            float32_tflops=_float_tflops(torch.float32, tf32=False),
            float64_tflops=_float_tflops(torch.float64, tf32=False),
        )


def gpu_id(ordinal: int) -> str:
    """Return the identity of a GPU as its driver prints it.

    Raises:
        ConfigurationError: torch finds no such device.
    """
    _check_presence(ordinal)
    return f"GPU-{torch.cuda.get_device_properties(ordinal).uuid}"


def _check_presence(ordinal: int) -> None:
    if not torch.cuda.is_available() or ordinal >= torch.cuda.device_count():
        raise ConfigurationError(
            f"torch finds no GPU cuda:{ordinal}",
            where="--device",
            remedy="install a driver and a CUDA build of torch; `harness doctor` lists what is installed",
        )


def _fastest_us(call: Callable[[], object]) -> float:
    """Return the microseconds of the fastest of many calls, by events around each."""
    call()
    events = [(_event(), _event()) for _ in range(_REPETITIONS)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return float(min(begin.elapsed_time(end) for begin, end in events)) * 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _bandwidth_gbs() -> float:
    """Return the best rate of reading, writing and copying far more than the capacity of the caches."""
    free, _ = torch.cuda.mem_get_info()
    source = torch.zeros(min(_COPIED_BYTES, free // 3) // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    nbytes = source.numel() * source.element_size()
    copy_rate = 2 * nbytes / _fastest_us(lambda: target.copy_(source))
    write_rate = nbytes / _fastest_us(lambda: target.fill_(1.0))
    read_rate = nbytes / _fastest_us(source.sum)
    return max(copy_rate, write_rate, read_rate) / 1e3


def _tensor_tflops() -> dict[str, float]:
    rates = {
        "float16": _float_tflops(torch.float16, tf32=False),
        "bfloat16": _float_tflops(torch.bfloat16, tf32=False),
        "tf32": _float_tflops(torch.float32, tf32=True),
    }
    for name, measure in (("float8_e4m3fn", _float8_tflops), ("int8", _int8_tflops)):
        try:
            rates[name] = measure()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:  # torch has no such product for this device
            logger.warning("%s products are not measured: %s", name, error)
    if "float8_e4m3fn" in rates:
        rates["float8_e5m2"] = rates["float8_e4m3fn"]  # the same unit
    return rates


def _float_tflops(dtype: torch.dtype, *, tf32: bool) -> float:
    size = _SMALL_SIZE if dtype is torch.float64 else _SIZE
    operand = torch.zeros(size, size, dtype=dtype, device="cuda")
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        return 2 * size**3 / _fastest_us(lambda: operand @ operand) / 1e6
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def _float8_tflops() -> float:
    operand = torch.zeros(_SIZE, _SIZE, dtype=torch.float32, device="cuda").to(torch.float8_e4m3fn)
    scale = torch.ones((), device="cuda")

    def product() -> object:
        return torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
            operand, operand.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return 2 * _SIZE**3 / _fastest_us(product) / 1e6


def _int8_tflops() -> float:
    operand = torch.zeros(_SIZE, _SIZE, dtype=torch.int8, device="cuda")
    return 2 * _SIZE**3 / _fastest_us(lambda: torch._int_mm(operand, operand.t())) / 1e6  # noqa: SLF001 - as above
