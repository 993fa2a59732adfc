"""Launches that a direct run of Nsight Compute profiles: `python -m tests.gpu.direct_counters REPLAY WORKLOAD`.

It makes the launches of a replay on new inputs in torch's memory, without the judge's profiled launcher. With a Triton
source in place of REPLAY it calls its `run` on a matrix of `WORKLOAD` rows as a user would.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.runner import driver

_ELEMENTS = 1 << 28
"""Elements of each buffer: 512 MB, more than any input has."""


def replay(directory: Path, workload: str) -> None:
    content = json.loads((directory / "replay.json").read_text())
    plan = content["plans"][workload]
    functions: dict[str, Any] = {}
    torch.zeros(1, device="cuda")
    for name in content["artefacts"]:
        module = driver.load((directory / name / "kernel.cubin").read_bytes())
        symbols = json.loads((directory / name / "names.json").read_text())["symbols"]
        functions |= {kernel: driver.kernel(module, symbol) for kernel, symbol in symbols.items()}
    buffers: dict[str, torch.Tensor] = {}
    addresses: dict[str, int] = {}
    for step in plan["steps"]:
        for argument in step["args"]:
            name = argument.get("buffer")
            if name and name not in buffers:
                buffers[name] = torch.randn(_ELEMENTS, device="cuda").mul_(0.1).bfloat16()
                addresses[name] = buffers[name].data_ptr()
    launches = [driver.PreparedLaunch(functions[step["kernel"]], step, addresses) for step in plan["steps"]]
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    for launch in launches:
        launch.run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def triton(source: Path, rows: int) -> None:
    spec = importlib.util.spec_from_file_location("solution", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(rows, 1024, device="cuda")
    out = torch.empty_like(x)
    module.run(x, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    module.run(x, out)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    path, workload_or_rows = sys.argv[1:]
    if path.endswith(".py"):
        triton(Path(path), int(workload_or_rows))
    else:
        replay(Path(path), workload_or_rows)
