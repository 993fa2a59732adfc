"""Print bounds of a problem's workloads and figures of the device as JSON: `python -m harness.sol.describe REQUEST`.

It is a separate process because bounds need torch, which the process that prepares a prompt does not import. The
request is a JSON object with `problem_dir`, `problem`, `data_root`, `target` and `cache`; the answer is a
`DeviceDescription`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from harness.errors import HarnessError
from harness.formats.problems import load_problem
from harness.model.base_models import StrictModel
from harness.model.device_description import BoundDescription, DeviceDescription
from harness.sol.cpu import cpu_information
from harness.sol.hardware import CPU, Hardware
from harness.sol.roofline import NoBoundError, bounds
from harness.sol.targets import hardware
from harness.workspace import timing_lock

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_VECTOR_FLAGS = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "avx512_vnni", "amx_bf16",
                 "amx_int8", "asimd", "sve", "bf16", "i8mm")  # fmt: skip
_PER_MULTIPROCESSOR = (
    "65,536 registers of 32 bits (255 a thread at most), 228 KiB shared memory (227 KiB a block at most), "
    "2,048 threads, 32 blocks, 4 schedulers"
)
"""Limits of compute capabilities 9.0 and 10.0. Source: CUDA C++ Programming Guide, technical specifications."""
_LISTED = {"h100", "h200", "b200"}
"""Targets of these compute capabilities."""


class DescribeRequest(StrictModel):
    """A request for a problem's bounds and the device's figures."""

    problem_dir: Path
    problem: str
    data_root: Path | None
    target: str
    cache: Path
    """Directory of the CPU's measured figures."""


def describe(request: DescribeRequest) -> DeviceDescription:
    """Return the bounds of every workload and the device's figures in words.

    Raises:
        HarnessError: the target has no figures, or the problem cannot be read.
    """
    machine = hardware(request.target, cache_dir=request.cache)
    problem = load_problem(request.problem_dir, key=request.problem, data_root=request.data_root)
    described: dict[str, BoundDescription] = {}
    for workload in problem.workloads:
        try:
            bound = bounds(problem, workload, machine)
            described[workload.uuid] = BoundDescription.model_validate(bound, from_attributes=True)
        except NoBoundError as error:
            described[workload.uuid] = BoundDescription(reason=error.message)
    lines = _cpu_lines(machine) if machine.target == CPU else _gpu_lines(machine)
    return DeviceDescription(target=request.target, device=tuple(lines), bounds=described)


def _gpu_lines(machine: Hardware) -> list[str]:
    measured = machine.attainable
    copy = f" (a plain copy reaches {measured.bandwidth_gbs:,.0f})" if measured else ""
    clock = f" at up to {machine.clock_mhz:,.0f} MHz" if machine.clock_mhz else ""
    cache = f", L2 cache {machine.l2_mib:,.0f} MiB" if machine.l2_mib else ""
    memory = f"{machine.memory_gb:,.0f} GB of memory at" if machine.memory_gb else "memory at"
    lines = [
        f"{machine.name}: {machine.multiprocessors} multiprocessors{clock}",
        f"{memory} {machine.bandwidth_gbs:,.0f} GB/s{copy}{cache}",
    ]
    if machine.target in _LISTED:
        lines.append(f"per multiprocessor: {_PER_MULTIPROCESSOR}")
    library = dict(measured.tensor) if measured else {}
    tensor = ", ".join(
        f"{name} {rate:,.0f}" + (f" (a large library product reaches {library[name]:,.0f})" if name in library else "")
        for name, rate in machine.tflops.tensor.items()
    )
    if tensor:
        lines.append(f"tensor cores, dense TFLOP/s: {tensor}")
    lines.append(f"other arithmetic, TFLOP/s: {_rates(machine)}")
    return lines


def _cpu_lines(machine: Hardware) -> list[str]:
    lines = [f"{machine.name}, one pinned thread; inputs are not in the cache when a call begins"]
    cached = f", {machine.cached_gbs:,.0f} GB/s within the L2 cache" if machine.cached_gbs else ""
    lines.append(f"measured with one thread: {machine.bandwidth_gbs:,.1f} GB/s of memory{cached}")
    lines.append(f"arithmetic of one thread, GFLOP/s: {_rates(machine, scale=1e3)}")
    sizes = sorted(_CACHES.glob("index*/size"))  # a virtual machine may not know the size of a cache
    data_caches = [size.parent for size in sizes if _text(size.with_name("type")) != "Instruction"]
    caches = [f"L{_text(cache / 'level')} {_text(cache / 'size')}" for cache in data_caches]
    if caches:
        lines.append(f"caches: {', '.join(caches)}")
    flags, _ = cpu_information()
    present = [flag for flag in _VECTOR_FLAGS if flag in flags]
    if present:
        lines.append(f"instruction sets: {', '.join(present)}")
    return lines


def _rates(machine: Hardware, scale: float = 1.0) -> str:
    return ", ".join(f"{name} {rate * scale:,.0f}" for name, rate in machine.tflops.vector.items())


def _text(file: Path) -> str:
    return file.read_text().strip()


def main(text: str) -> int:
    """Print the description; without one, print the reason to stderr and return exit code 1."""
    try:
        with timing_lock.working():
            described = describe(DescribeRequest.model_validate_json(text))
    except HarnessError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    sys.stdout.write(described.model_dump_json() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
