"""A naive judge, as public ones are: candidate, reference and clock in one Python process.

It has the usual precautions: seeded inputs, three rounds against the reference, the matched ratio of SOL-ExecBench,
several input sets, the median of many timed calls, both sides timed alike. The server process forks one child
per request, because a candidate can change the judge: `python -m tests.judge.attacks.naive`, one JSON object per line.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_SETS, _ROUNDS, _CALLS = 3, 3, 40
_RECENT = 64
"""Number of recent calls whose memory is kept, so that a thread that writes late does not write to another call's."""
_END = b"END\n"
Judge = Callable[[Mapping[str, str], int], None]
"""Function that judges the solution of a request and writes a line for each workload to a descriptor."""


def is_close(out: torch.Tensor, expected: torch.Tensor, atol: float) -> bool:
    """Return true by SOL-ExecBench's rule: 99 % of the elements are within atol + 1e-2 * |expected|."""
    matched = torch.isclose(out.float(), expected, atol=atol, rtol=1e-2).float().mean()
    return bool(matched >= 0.99)


def judge(request: Mapping[str, str], answers: int) -> None:
    """Judge every workload and write a line for each."""
    problem, solution = Path(request["problem"]), Path(request["solution"])
    definition = json.loads((problem / "definition.json").read_text())
    namespace: dict[str, Any] = {}
    exec(definition["reference"], namespace)
    reference = namespace["run"]
    candidate = load(definition, solution)
    for number, line in enumerate((problem / "workload.jsonl").read_text().splitlines()):
        workload = json.loads(line)
        sizes = {name: axis.get("value") for name, axis in definition["axes"].items()} | workload["axes"]
        torch.manual_seed(number)
        sets = [make_inputs(definition, sizes) for _ in range(_SETS)]
        correct = check(candidate, reference, sets[0], workload["tolerance"]["max_atol"])
        latency = measure(candidate, sets)
        baseline = measure(reference, sets)
        answer = {"correct": correct, "speedup": baseline / latency}
        os.write(answers, (json.dumps(answer) + "\n").encode())


def check(
    candidate: Callable[..., Any], reference: Callable[..., Any], inputs: list[torch.Tensor], atol: float
) -> bool:
    """Return true if the candidate matches the reference in three rounds."""
    for _ in range(_ROUNDS):
        expected = reference(*inputs)
        out = candidate(*inputs)
        if not is_close(out, expected, atol):
            return False
    return True


def measure(run: Callable[..., Any], sets: list[list[torch.Tensor]]) -> float:
    """Return the median seconds per call."""
    statistics = importlib.import_module("statistics")
    times = []
    for call in range(_CALLS):
        inputs = sets[call % len(sets)]
        begin = time.perf_counter()
        run(*inputs)
        times.append(time.perf_counter() - begin)
    return max(1e-9, float(statistics.median(times)))


def make_inputs(definition: dict[str, Any], sizes: dict[str, int], device: str = "cpu") -> list[torch.Tensor]:
    """Return standard normal inputs; weights are scaled by their fan-in."""
    inputs = []
    for name, spec in definition["inputs"].items():
        value = torch.randn([sizes[axis] for axis in spec["shape"]], device=device)
        inputs.append(value / sizes["K"] ** 0.5 if name == "weight" else value)
    return inputs


def load(definition: dict[str, Any], solution: Path) -> Callable[..., Any]:
    """Load the candidate as a function that returns its output."""
    import yaml

    spec = yaml.safe_load((solution / "solution.yaml").read_text())
    width = [definition["axes"][axis].get("value") for axis in next(iter(definition["outputs"].values()))["shape"][1:]]
    if spec["language"] == "cpp":
        call = load_cpp(definition, solution, spec)
    else:
        sys.path.insert(0, str(solution))
        call = importlib.import_module("kernel").run
        if not spec["destination_passing"]:
            return call  # type: ignore[no-any-return]

    recent: deque[object] = deque(maxlen=_RECENT)

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        out = torch.empty([inputs[0].shape[0], *width])
        recent.append((inputs, out))
        call(*inputs, out)
        return out

    return run


def load_cpp(definition: dict[str, Any], solution: Path, spec: dict[str, Any]) -> Callable[..., Any]:
    """Compile without a sandbox, and return a function that calls through ctypes."""
    library = solution / "kernel.so"
    constants = [f"-DAXIS_{name}={axis['value']}" for name, axis in definition["axes"].items() if "value" in axis]
    flags = ["-std=c++17", "-O2", "-march=native", "-fPIC", "-shared", *spec.get("compile", {}).get("flags", [])]
    command = ["c++", *flags, *constants, "-I", str(solution), "-o", str(library), str(solution / "kernel.cpp")]
    subprocess.run(command, check=True, timeout=240, cwd=solution)
    function = ctypes.CDLL(str(library)).run

    def call(*tensors: torch.Tensor) -> None:
        function(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.c_int64(tensors[0].shape[0]))

    return call


def serve(judge_request: Judge, timeout_s: float) -> None:
    """Answer requests until stdin ends; a request without a result after `timeout_s` counts as hung."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(_serve_one(json.loads(line), judge_request, timeout_s)) + "\n")
        sys.stdout.flush()


def _serve_one(request: dict[str, str], judge_request: Judge, timeout_s: float) -> dict[str, Any]:
    """Fork, judge, and return the result."""
    read, write = os.pipe()
    with tempfile.TemporaryFile() as output_file:
        child = os.fork()
        if child == 0:
            _judge_in_child(request, judge_request, write, output_file.fileno())
        os.close(write)
        lines, hung = _collect(read, timeout_s)
        alive = _end(child)
        os.close(read)
        size = os.fstat(output_file.fileno()).st_size
        output_file.seek(max(0, size - 2000))
        tail = output_file.read().decode(errors="replace")
    answers = [json.loads(line) for line in lines]
    return {
        "passed": bool(answers) and all(answer["correct"] for answer in answers) and not hung,
        "speedup": min((answer["speedup"] for answer in answers), default=0.0),
        "workloads": len(answers),
        "hung": hung,
        "output_bytes": size,
        "output_tail": tail,
        "left_alive": alive,
    }


def _judge_in_child(request: dict[str, str], judge_request: Judge, answers: int, output_descriptor: int) -> None:
    os.setpgid(0, 0)
    os.dup2(output_descriptor, 1)
    os.dup2(output_descriptor, 2)
    code = 1
    try:
        judge_request(request, answers)
        os.write(answers, _END)
        code = 0
    except BaseException:  # noqa: BLE001 - what is judged may raise anything
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _collect(read: int, timeout_s: float) -> tuple[list[str], bool]:
    """Return the lines until END or the end of the file, and true if neither arrived in time."""
    text, deadline = b"", time.monotonic() + timeout_s
    while not text.endswith(_END):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([read], [], [], left)[0]:
            return text.decode().splitlines(), True
        chunk = os.read(read, 65536)
        if not chunk:
            break
        text += chunk
    return text.removesuffix(_END).decode().splitlines(), False


def _end(child: int) -> bool:
    """Kill the child and its remaining processes; return true if there were any."""
    left = False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        os.killpg(child, signal.SIGKILL)
        left = True
    except ProcessLookupError:
        pass
    return left


def main() -> None:
    """Serve on one thread."""
    torch.set_num_threads(1)
    torch.randn(8, 8) @ torch.randn(8, 8)
    serve(judge, timeout_s=5.0)


if __name__ == "__main__":
    main()
