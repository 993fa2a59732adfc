"""A naive judge of GPU code, as public ones are: candidate, reference and clock in one Python process.

It has the usual precautions: seeded inputs, three rounds against the reference, several input sets, CUDA events, the
median of many timed calls, both sides timed alike. Each request has a forked child: `python -m tests.gpu.naive`.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.judge.attacks.naive import check, is_close, make_inputs, serve

__all__ = ["is_close"]  # an attack looks it up in the judge's module

_SETS, _CALLS, _OVERHEADS = 3, 40, 21


def judge(request: Mapping[str, str], answers: int) -> None:
    """Judge every workload and write a line for each."""
    problem, solution, clock = Path(request["problem"]), Path(request["solution"]), request["clock"]
    definition = json.loads((problem / "definition.json").read_text())
    namespace: dict[str, Any] = {}
    exec(definition["reference"], namespace)
    reference = namespace["run"]
    sizes = {name: axis.get("value") for name, axis in definition["axes"].items()}
    candidate: Callable[..., Any] | None = None
    for number, line in enumerate((problem / "workload.jsonl").read_text().splitlines()):
        workload = json.loads(line)
        sizes |= workload["axes"]
        torch.manual_seed(number)
        sets = [make_inputs(definition, sizes, "cuda") for _ in range(_SETS)]
        candidate = candidate or load(definition, solution, sizes)
        correct = check(candidate, reference, sets[0], workload["tolerance"]["max_atol"])
        latency = measure(candidate, sets, clock)
        baseline = measure(reference, sets, clock)
        os.write(answers, (json.dumps({"correct": correct, "speedup": baseline / latency}) + "\n").encode())


def measure(run: Callable[..., Any], sets: list[list[torch.Tensor]], clock: str) -> float:
    """Return the milliseconds per call by CUDA events.

    Args:
        run: the timed function.
        sets: inputs, which are used in turn.
        clock: `each`: the median of single calls. `together`: all calls between one pair of events, as version 1 of the
            judge did. `calibrated`: as `each`, less the reading of events around an empty operation just before, as in
            a judge that calibrates its clock in the candidate's process.
    """
    median = importlib.import_module("statistics").median
    if clock == "together":
        return max(1e-6, _timed(lambda: [run(*sets[call % len(sets)]) for call in range(_CALLS)]) / _CALLS)
    nothing = torch.zeros(1, device="cuda")
    overhead = median(_timed(nothing.zero_) for _ in range(_OVERHEADS)) if clock == "calibrated" else 0.0
    torch.cuda.synchronize()
    times = [_timed(partial(run, *sets[call % len(sets)])) for call in range(_CALLS)]
    return max(1e-6, float(median(times) - overhead))


def _timed(work: Callable[[], object]) -> float:
    """Return the milliseconds by events around the operations that `work` enqueues on the current stream."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    stop.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(stop))


def load(definition: dict[str, Any], solution: Path, sizes: dict[str, int]) -> Callable[..., Any]:
    """Load the candidate as a function that returns its output."""
    import yaml

    spec = yaml.safe_load((solution / "solution.yaml").read_text())
    axes = next(iter(definition["outputs"].values()))["shape"]
    if spec["language"] == "cuda":
        call = load_cuda(solution, spec, sizes)
    else:
        sys.path.insert(0, str(solution))
        call = importlib.import_module("kernel").run
        if not spec["destination_passing"]:
            return call  # type: ignore[no-any-return]

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty([inputs[0].shape[0], *(sizes[axis] for axis in axes[1:])], device="cuda")
        call(*inputs, out)
        return out

    return run


def load_cuda(solution: Path, spec: dict[str, Any], sizes: dict[str, int]) -> Callable[..., Any]:
    """Compile and launch in this process: one kernel, one block per row, an optional workspace."""
    from harness.judge.build.toolkit import find_toolkit
    from harness.runner import driver, nvrtc

    toolkit, (plan,) = find_toolkit(), spec["launch"]
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as scratch:
        request = {
            "library": str(toolkit.library), "includes": [str(path) for path in toolkit.includes],
            "source": str(solution / "kernel.cu"), "architecture": f"sm_{major}{minor}a",
            "options": ["-std=c++17", "-default-device"], "kernels": [plan["kernel"]],
        }  # fmt: skip
        (Path(scratch) / "request.json").write_text(json.dumps(request))
        subprocess.run([sys.executable, nvrtc.__file__, f"{scratch}/request.json", scratch], check=True, timeout=60)
        module = driver.load((Path(scratch) / "kernel.cubin").read_bytes())
        symbol = json.loads((Path(scratch) / "names.json").read_text())["symbols"][plan["kernel"]]
    function = driver.kernel(module, symbol)
    workspace = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda") if spec["workspaces"] else None

    def call(x: torch.Tensor, out: torch.Tensor) -> None:
        pointers = [x.data_ptr(), out.data_ptr(), *([workspace.data_ptr()] if workspace is not None else [])]
        launch = {
            "grid": (x.shape[0], 1, 1), "block": (*plan["block"], 1, 1)[:3], "shared_bytes": 0, "cluster": None,
            "cooperative": False, "args": [{"kind": "value", "format": "Q", "value": at} for at in pointers],
        }  # fmt: skip
        driver.PreparedLaunch(function, launch, {}).run()

    del sizes
    return call


def main() -> None:
    """Serve requests until stdin ends; only the children use CUDA."""
    assert statistics.median([1.0]) == 1.0
    serve(judge, timeout_s=25.0)  # the creation of a GPU context takes seconds


if __name__ == "__main__":
    main()
