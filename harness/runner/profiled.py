"""Make one call of a replayed solution in a process under Nsight Compute.

Run as `python -c "... from runner.profiled import main; main(REQUEST)"`. The request is JSON of the judge: directories
of cubins, `ResolvedPlan` as plain data, and a file with the inputs. No host code of a candidate runs here. Torch is not
imported, because its libraries take seconds to load under a profiler.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda

from . import driver

_WORD = 4
_ALIGNMENT = 256
_OUTPUT_PATTERN = 0xFFFFFFFF
"""Word of the outputs before the call: NaN in every float format, as in the judge."""


def _allocate(size: int) -> int:
    return int(driver.call(cuda.cuMemAlloc, max(-(-size // _ALIGNMENT) * _ALIGNMENT, _ALIGNMENT)))


def _fill(address: int, size: int, word: int) -> None:
    driver.call(cuda.cuMemsetD32, address, word, -(-size // _WORD))


def _upload(path: Path, address: int) -> None:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    view = ctypes.c_char.from_buffer(content)
    driver.call(cuda.cuMemcpyHtoD, address, ctypes.addressof(view), len(content))
    del view
    content.close()


def _functions(directories: Sequence[str]) -> dict[str, cuda.CUfunction]:
    functions: dict[str, cuda.CUfunction] = {}
    for directory in map(Path, directories):
        module = driver.load((directory / "kernel.cubin").read_bytes())
        symbols: dict[str, str] = json.loads((directory / "names.json").read_text())["symbols"]
        functions |= {name: driver.kernel(module, symbol) for name, symbol in symbols.items()}
    return functions


def _buffers(request: Mapping[str, Any]) -> dict[str, int]:
    """Allocate and initialise each buffer of the plan, and return their device addresses by name."""
    inputs, outputs = _allocate(request["input_bytes"]), _allocate(request["output_bytes"])
    _upload(Path(request["data"]), inputs)
    _fill(outputs, request["output_bytes"], _OUTPUT_PATTERN)
    addresses = {f"input:{name}": inputs + offset for name, offset in request["inputs"].items()}
    addresses |= {f"output:{name}": outputs + offset for name, offset in request["outputs"].items()}
    for source, target, size in request["updates"]:
        driver.call(cuda.cuMemcpyDtoD, outputs + target, inputs + source, size)
    for name, (size, init) in request["plan"]["workspaces"].items():
        addresses[f"workspace:{name}"] = _allocate(size)
        _fill(addresses[f"workspace:{name}"], size, driver.fill_word(init))
    return addresses


def main(path: str) -> None:
    """Make the call that a request describes; the profiler's range contains only its launches."""
    request = json.loads(Path(path).read_text())
    driver.call(cuda.cuInit, 0)
    device = driver.call(cuda.cuDeviceGet, 0)
    driver.call(cuda.cuCtxSetCurrent, driver.call(cuda.cuDevicePrimaryCtxRetain, device))
    functions, addresses = _functions(request["artefacts"]), _buffers(request)
    steps: list[driver.PreparedLaunch | Mapping[str, Any]] = [
        step if step["kind"] == "fill" else driver.PreparedLaunch(functions[step["kernel"]], step, addresses)
        for step in request["plan"]["steps"]
    ]
    driver.call(cuda.cuCtxSynchronize)
    driver.call(cuda.cuProfilerStart)
    for step in steps:
        if isinstance(step, driver.PreparedLaunch):
            step.run()
        else:
            _fill(addresses[step["buffer"]] + step["offset"], step["bytes"], 0)
    driver.call(cuda.cuCtxSynchronize)
    driver.call(cuda.cuProfilerStop)
    sys.stdout.flush()
