"""Three small problems for attacks on a GPU, honest solutions of them, and the class of an attack."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from harness.model.verdict import Verdict

_REFERENCES = {
    "linear": "def run(x, weight):\n    return x @ weight.T\n",
    "norm": "import torch\n\ndef run(x):\n    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)\n",
    "mean": "def run(x):\n    return x.mean(-1)\n",
}
_SHAPES: dict[str, dict[str, list[str]]] = {
    "linear": {"x": ["M", "K"], "weight": ["N", "K"], "out": ["M", "N"]},
    "norm": {"x": ["M", "K"], "out": ["M", "K"]},
    "mean": {"x": ["M", "K"], "out": ["M"]},
}
_SIZES = {"linear": {"N": 1024, "K": 1024}, "norm": {"K": 1024}, "mean": {"K": 1 << 16}}
_ROWS = {"linear": (2048,), "linear_twice": (1024, 2048), "norm": (8192,), "mean": (64,), "mean_large": (512,)}
_ATOL = {"linear": 1e-2, "norm": 1e-2, "mean": 3e-2}
PROBLEMS = tuple(_ROWS)
"""A constant is within the tolerance of `mean`: its outputs have a standard deviation of 0.004."""


def write_problem(directory: Path, name: str) -> Path:
    """Write the problem directory `directory/attacked/NAME` and return it."""
    root, kind = directory / "attacked" / name, name.partition("_")[0]
    root.mkdir(parents=True)
    tensors = {tensor_name: {"shape": shape, "dtype": "float32"} for tensor_name, shape in _SHAPES[kind].items()}
    axes: dict[str, dict[str, Any]] = {"M": {"type": "var"}}
    axes |= {axis: {"type": "const", "value": size} for axis, size in _SIZES[kind].items()}
    out = tensors.pop("out")
    definition = {
        "name": name, "axes": axes, "inputs": tensors, "outputs": {"out": out}, "reference": _REFERENCES[kind],
    }  # fmt: skip
    (root / "definition.json").write_text(json.dumps(definition))
    inputs = {input_name: {"type": "random"} for input_name in tensors}
    lines = [
        {"uuid": f"{name}-{rows}", "axes": {"M": rows}, "inputs": inputs, "tolerance": {"max_atol": _ATOL[kind]}}
        for rows in _ROWS[name]
    ]
    (root / "workload.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return root


@dataclass(frozen=True)
class Attack:
    """A solution that cheats, or an honest one. `@SECRET@` and `@PLANT@` in its source are paths outside it."""

    name: str
    source: str
    caught: tuple[Verdict, ...] = ()
    """Verdicts that reject it; empty if it passes with an honest number."""
    fools: Literal["speed", "wrong", "plant", "hang", "litter", "flood"] = "speed"
    language: Literal["pytorch", "triton", "cuda", "cuda_cpp"] = "pytorch"
    binding: Literal["tvm_ffi", "torch"] | None = None
    problem: str = "linear"
    destination_passing: bool = True
    files: tuple[tuple[str, str], ...] = ()
    reason_part: str = ""
    reasons: tuple[str, ...] = ()
    """Parts of the judge's reason that name the defence; one of them must be in the reason of a rejected attack."""
    naive_clock: Literal["each", "together", "calibrated"] = "each"
    """Clock of the naive judge (tests.gpu.naive)."""
    off: tuple[str, ...] = ()
    """Defences (tests.gpu.undefended) without which it gains, if the naive judge lacks the attacked part."""
    gains: bool = True
    """False if it gains less than 1.2 times without any defence, so that only the honest number is tested."""
    replay_refused: bool = False
    """True if the judge rejects the replay of its launches, and times the whole call instead."""
    version: str = ""
    """Key of its honest version in `HONEST`; the problem's name by default."""
    workspaces: dict[str, Any] = field(default_factory=dict)
    launch: tuple[dict[str, Any], ...] = ()

    def write(self, directory: Path, words: dict[str, str]) -> Path:
        """Write the solution to a directory and return it."""
        directory.mkdir(parents=True)
        main = "kernel.cu" if self.language in {"cuda", "cuda_cpp"} else "kernel.py"
        spec: dict[str, Any] = {"language": self.language, "entry": f"{main}::run"}
        if self.language == "cuda":
            spec |= {"launch": [dict(launch) for launch in self.launch or (ROWS,)], "workspaces": dict(self.workspaces)}
        else:
            spec["destination_passing"] = self.destination_passing
        if self.binding is not None:
            spec["binding"] = self.binding
        (directory / "solution.yaml").write_text(yaml.safe_dump(spec))
        for name, text in ((main, self.source), *self.files):
            filled = textwrap.dedent(text)
            for word, value in words.items():
                filled = filled.replace(f"@{word}@", value)
            (directory / name).write_text(filled)
        return directory


ROWS: dict[str, Any] = {"kernel": "run", "grid": ["M"], "block": [256], "args": ["x", "out"]}
"""A launch with one block per row of `norm`."""
COUNTED: dict[str, Any] = {**ROWS, "args": ["x", "out", {"workspace": "kept"}]}
KEPT: dict[str, Any] = {"kept": {"bytes": 64 << 20, "init": "none"}}

NORM = """
__device__ void norm(const float* x, float* out, bool rounded = false, int columns = 1024) {
    __shared__ float sums[8];
    const float* row = x + blockIdx.x * 1024ull;
    float mine[4], sum = 0;
    for (int k = 0; k < 4; ++k) {
        mine[k] = row[threadIdx.x + 256 * k];
        if (rounded) mine[k] = __uint_as_float(__float_as_uint(mine[k]) & 0xFFFF0000u);
        sum += mine[k] * mine[k];
    }
    for (int lane = 16; lane; lane >>= 1) sum += __shfl_xor_sync(~0u, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int k = 0; k < 8; ++k) sum += sums[k];
    const float scale = rsqrtf(sum / 1024 + 1e-5f);
    for (int k = 0; k < 4; ++k)
        if (threadIdx.x + 256 * k < columns) out[blockIdx.x * 1024ull + threadIdx.x + 256 * k] = mine[k] * scale;
}
"""
"""An honest device function, with which attacks in device code begin."""
EARLY = """
import torch
from collections import Counter

seen = Counter()

def early(x, calls=5):
    seen[x.shape[0]] += 1
    return seen[x.shape[0]] <= calls

def honest(x, weight, out):
    torch.mm(x, weight.t(), out=out)
"""
"""Start of attacks that are honest in the first calls of each shape, which are all that a naive judge checks."""
HONEST = {
    "linear": Attack("honest", "import torch\ndef run(x, weight, out):\n    torch.mm(x, weight.t(), out=out)\n"),
    "norm": Attack(
        "honest_norm",
        NORM + 'extern "C" __global__ void run(const float* x, float* out) { norm(x, out); }\n',
        language="cuda",
        problem="norm",
    ),
}
HONEST["linear_twice"] = Attack("honest_twice", HONEST["linear"].source, problem="linear_twice")
HONEST["mean"] = Attack(
    "honest_mean", "import torch\ndef run(x, out):\n    torch.mean(x, -1, out=out)\n", problem="mean"
)
HONEST["mean_large"] = Attack("honest_mean_large", HONEST["mean"].source, problem="mean_large")
