"""Peak figures of one pinned thread of this host's CPU, measured once and stored.

Bounds use the figures, which therefore must not be too low. Each figure is the fastest of many short repetitions in a
separate process (cpu_probe.cpp), so that other load on the host has an effect only if it never pauses.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from harness.errors import ConfigurationError, FormatError
from harness.formats.bounded import load_json, load_json_file
from harness.sol.hardware import CPU, Hardware, Peaks
from harness.workspace.files import atomic_write

CACHE_MARGIN = 1.5
"""Factor on the measured cache bandwidth, for a possible gain of better instructions or of a lower cache level."""
_FIGURES = (
    "read_gbs", "copy_gbs", "stream_gbs", "cached_read_gbs", "cached_copy_gbs", "float32_gflops", "float64_gflops",
)  # fmt: skip
_SECONDS = 2.0
_DEADLINE_S = 120.0
_ISA_PRODUCTS = (
    # flag of /proc/cpuinfo, dtype, rate relative to float32 multiply-adds of the same core
    ("amx_bf16", "bfloat16", 16.0),
    ("avx512_bf16", "bfloat16", 2.0),
    ("amx_fp16", "float16", 16.0),
    ("avx512_fp16", "float16", 2.0),
    ("amx_int8", "int8", 32.0),
    ("avx512_vnni", "int8", 4.0),
    ("avx_vnni", "int8", 4.0),
    ("bf16", "bfloat16", 4.0),
    ("asimdhp", "float16", 2.0),
    ("i8mm", "int8", 8.0),
)
"""Products that a core computes faster in a narrow dtype: operations of its instruction at the rate of multiply-adds.

Source: Intel's and Arm's instruction set references. AMX computes 16 x 16 x 32 bfloat16 products in 16 cycles, and two
AVX-512 units compute 32 float32 products per cycle.
"""


def measured_cpu(cache_dir: Path, *, remeasure: bool = False) -> Hardware:
    """Return bandwidths and peaks of one thread, from `cache_dir` or measured now (about three seconds).

    `bandwidth_gbs` is the best rate of reading, of copying, and of copying without the caches, for far more memory than
    the caches have. `cached_gbs` is the rate within the L2 cache with a margin, because inputs may be cached.

    Args:
        cache_dir: directory of the stored measurement.
        remeasure: measure also if there is a stored measurement. Each figure is the largest so far, because other load
            on the host may have reduced earlier ones.

    Raises:
        ConfigurationError: there is no C++ compiler, or the measurement fails.
    """
    flags, model = cpu_information()
    with as_file(files("harness.sol") / "cpu_probe.cpp") as source:
        text = source.read_bytes()
        key = hashlib.sha256(b"\n".join([text, model.encode(), str(sorted(flags)).encode()])).hexdigest()[:16]
        stored_file = cache_dir / "sol" / f"cpu-{key}.json"
        try:
            figures = _checked(load_json_file(stored_file))
        except (OSError, FormatError, ValueError, TypeError):  # missing, or in another format
            figures = {}
        if remeasure or not figures:
            measured = _measure(source)
            figures = {name: max(measured[name], figures.get(name, 0.0)) for name in _FIGURES}
            atomic_write(stored_file, json.dumps({"cpu": model, **figures}, indent=2) + "\n")
    return _hardware(model, flags, figures)


def _hardware(model: str, flags: frozenset[str], figures: dict[str, float]) -> Hardware:
    single = figures["float32_gflops"] / 1e3
    products: dict[str, float] = {}
    for flag, dtype, ratio in _ISA_PRODUCTS:
        if flag in flags:
            products[dtype] = max(products.get(dtype, 0.0), ratio * single)
    half = 2 * single if flags & {"avx512_fp16", "asimdhp"} else single
    measured = "measured on this host, one pinned thread, the fastest of many repetitions"
    return Hardware(
        target=CPU,
        name=model,
        is_measured=True,
        bandwidth_gbs=max(figures["read_gbs"], figures["copy_gbs"], figures["stream_gbs"]),
        cached_gbs=CACHE_MARGIN * max(figures["cached_read_gbs"], figures["cached_copy_gbs"]),
        tflops=Peaks(
            tensor=products, vector={"float32": single, "float64": figures["float64_gflops"] / 1e3, "float16": half}
        ),
        source={"bandwidth_gbs": measured, "cached_gbs": f"{measured}, times {CACHE_MARGIN}", "tflops": measured},
    )


def _checked(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        raise TypeError("not a mapping")
    figures = {name: float(value.get(name, 0.0)) for name in _FIGURES}
    if min(figures.values()) <= 0:
        raise ValueError("a figure is missing")
    return figures


def _measure(source: Path) -> dict[str, float]:
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        raise ConfigurationError(
            "the bounds of the target `cpu` are measured by a small C++ program, and there is no C++ compiler",
            remedy="sudo apt-get install g++",
        )
    with tempfile.TemporaryDirectory(prefix="harness-sol-") as scratch:
        program = str(Path(scratch) / "cpu_probe")
        _run([compiler, "-std=c++17", "-O3", "-march=native", str(source), "-o", program])
        answer = _run([program, str(_probe_bytes()), str(_SECONDS)])
    try:
        return _checked(load_json(answer, where="the measurement of the CPU"))
    except (FormatError, ValueError, TypeError) as error:
        raise ConfigurationError(f"the measurement of the CPU printed {answer[:200]!r}") from error


def _run(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        printed = error.stderr.strip()[-500:] if isinstance(error, subprocess.CalledProcessError) else ""
        raise ConfigurationError(f"the measurement of the CPU failed: {printed or error}", where=command[0]) from error


def _probe_bytes() -> int:
    """Return the bytes of the measurement: five times the last-level cache, 256 MiB to a quarter of the memory."""
    largest = 0
    for size in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = size.read_text().strip()
        largest = max(largest, int(text.rstrip("KM")) * {"K": 2**10, "M": 2**20}.get(text[-1:], 1))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(256 * 2**20, 5 * largest), memory // 4)


def cpu_information() -> tuple[frozenset[str], str]:
    """Return instruction-set flags and the model's name, from /proc/cpuinfo if it exists."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset(), platform.processor() or platform.machine()
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines) if value}
    flags = frozenset((fields.get("flags") or fields.get("Features") or "").split())
    model = fields.get("model name") or f"{platform.machine()} {fields.get('CPU part', '')}".strip()
    return flags, model
