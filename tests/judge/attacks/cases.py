"""Two small problems for the attacks, honest solutions of them, and the class of an attack."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from harness.model.verdict import Verdict

N = K = 256
LONG = 1 << 16
_TOLERANCES = {
    "linear": {"max_atol": 1e-2},
    "linear_twice": {"max_atol": 1e-2},
    "mean": {"max_atol": 3e-2},
    "norm": {"max_atol": 1e-3, "max_rtol": 0.016},
}
_SUITE = "attacked"

_LINEAR = {
    "name": "linear",
    "axes": {
        "M": {"type": "var"},
        "N": {"type": "const", "value": N},
        "K": {"type": "const", "value": K},
    },
    "inputs": {
        "x": {"shape": ["M", "K"], "dtype": "float32"},
        "weight": {"shape": ["N", "K"], "dtype": "float32"},
    },
    "outputs": {"out": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "def run(x, weight):\n    return x @ weight.T\n",
}
_MEAN = {
    "name": "mean",
    "axes": {"M": {"type": "var"}, "K": {"type": "const", "value": LONG}},
    "inputs": {"x": {"shape": ["M", "K"], "dtype": "float32"}},
    "outputs": {"out": {"shape": ["M"], "dtype": "float32"}},
    "reference": "def run(x):\n    return x.mean(-1)\n",
}
_NORM = {
    **_MEAN,
    "name": "norm",
    "inputs": {"x": {"shape": ["M", "K"], "dtype": "bfloat16"}},
    "outputs": {"out": {"shape": ["M"], "dtype": "bfloat16"}},
    "reference": "def run(x):\n    return x.float().norm(dim=-1).to(x.dtype)\n",
}
_DEFINITIONS = {"linear": _LINEAR, "linear_twice": _LINEAR, "mean": _MEAN, "norm": _NORM}
_ROWS = {"linear": (96,), "linear_twice": (96, 160), "mean": (8,), "norm": (8,)}
PROBLEMS = ("linear", "linear_twice", "mean", "norm")
"""A constant is within the tolerance of `mean`: its outputs have a standard deviation of 0.004. Outputs of `norm` have
so few bits that a part of a random row gives the same."""


def write_problem(directory: Path, name: str) -> Path:
    """Write the problem directory `directory/attacked/NAME` and return it."""
    root = directory / _SUITE / name
    root.mkdir(parents=True)
    definition: dict[str, Any] = _DEFINITIONS[name]
    (root / "definition.json").write_text(json.dumps(definition))
    inputs = {input_name: {"type": "random"} for input_name in definition["inputs"]}
    lines = [
        json.dumps({"uuid": f"{name}-{rows}", "axes": {"M": rows}, "inputs": inputs, "tolerance": _TOLERANCES[name]})
        for rows in _ROWS[name]
    ]
    (root / "workload.jsonl").write_text("\n".join(lines) + "\n")
    return root


@dataclass(frozen=True)
class Attack:
    """A solution that cheats, or an honest one.

    `source` may contain `@SECRET@` and `@PLANT@`, paths outside the solution: a secret file, and a file that no
    candidate may create. It may also contain `@PORT@`, the port of a listening socket on 127.0.0.1.
    """

    name: str
    source: str
    caught: tuple[Verdict, ...] = ()
    """Verdicts that reject it; empty if it passes with an honest number."""
    fools: Literal["speed", "wrong", "plant", "hang", "litter", "flood"] = "speed"
    """Effect on the naive judge: a false speed-up, a wrong answer that passes, a new file, no answer, remaining
    processes, or a log of 50 MB and more."""
    language: Literal["pytorch", "cpp"] = "pytorch"
    problem: str = "linear"
    destination_passing: bool = True
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    reason_part: str = ""
    """Part of the judge's reason."""
    off: tuple[str, ...] = ()
    """Defences (tests.judge.attacks.undefended) without which it gains, if the naive judge lacks the attacked part."""
    gains: bool = True
    """False if no test shows a gain in another judge, so that only the honest number is tested."""

    def write(self, directory: Path, words: Mapping[str, str]) -> Path:
        """Write the solution to a directory and return it."""
        directory.mkdir(parents=True)
        main = "kernel.cpp" if self.language == "cpp" else "kernel.py"
        spec: dict[str, object] = {
            "language": self.language,
            "entry": f"{main}::run",
            "destination_passing": self.destination_passing,
        }
        if self.flags:
            spec["compile"] = {"flags": [_filled(flag, words) for flag in self.flags]}
        (directory / "solution.yaml").write_text(yaml.safe_dump(spec))
        source = self.prelude + textwrap.dedent(self.source)
        for name, text in {main: source, **self.files}.items():
            (directory / name).write_text(_filled(textwrap.dedent(text), words))
        return directory


def _filled(text: str, words: Mapping[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


EARLY = """
import torch
from collections import Counter

seen = Counter()

def early(x):
    seen[x.shape[0]] += 1
    return seen[x.shape[0]] <= 5

def honest(x, weight, out):
    torch.mm(x, weight.t(), out=out)
"""
"""Start of attacks that are honest in the first calls of each shape, which are all that a naive judge checks."""
HONEST = Attack(
    "honest",
    """
    import torch

    def run(x, weight, out):
        torch.mm(x, weight.t(), out=out)
    """,
)
CPP = """
#include <cstdint>

static void compute(const float* x, const float* weight, float* out, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        for (int n = 0; n < AXIS_N; n++) {
            float sums[16] = {};
            for (int k = 0; k < AXIS_K; k += 16)
                for (int lane = 0; lane < 16; lane++)
                    sums[lane] += x[i * AXIS_K + k + lane] * weight[n * AXIS_K + k + lane];
            float sum = 0;
            for (int lane = 0; lane < 16; lane++) sum += sums[lane];
            out[i * AXIS_N + n] = sum;
        }
}
"""
"""An honest computation, with which attacks in C++ begin."""
HONEST_CPP = Attack(
    "honest_cpp",
    CPP
    + """
extern "C" void run(const float* x, const float* weight, float* out, int64_t rows) { compute(x, weight, out, rows); }
""",
    language="cpp",
)
MEAN_CPP = """
#include <cstdint>

static void compute(const float* x, float* out, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        float sums[32] = {};
        for (int k = 0; k < AXIS_K; k += 32)
            for (int lane = 0; lane < 32; lane++) sums[lane] += x[i * AXIS_K + k + lane];
        float sum = 0;
        for (int lane = 0; lane < 32; lane++) sum += sums[lane];
        out[i] = sum / AXIS_K;
    }
}
"""
"""The same for the problem `mean`."""
HONEST_MEAN_CPP = Attack(
    "honest_mean_cpp",
    MEAN_CPP + 'extern "C" void run(const float* x, float* out, int64_t rows) { compute(x, out, rows); }\n',
    language="cpp",
    problem="mean",
)
NORM_CPP = """
#include <cmath>
#include <cstdint>
#include <cstring>

static float squares(const uint16_t* x, int count) {
    float sums[32] = {};
    for (int k = 0; k < count; k += 32)
        for (int lane = 0; lane < 32; lane++) {
            const uint32_t bits = uint32_t(x[k + lane]) << 16;
            float value;
            std::memcpy(&value, &bits, 4);
            sums[lane] += value * value;
        }
    float sum = 0;
    for (int lane = 0; lane < 32; lane++) sum += sums[lane];
    return sum;
}

static uint16_t rounded(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
"""
"""Parts of a solution of the problem `norm`."""
HONEST_NORM_CPP = Attack(
    "honest_norm_cpp",
    NORM_CPP
    + """
extern "C" void run(const uint16_t* x, uint16_t* out, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) out[i] = rounded(std::sqrt(squares(x + i * AXIS_K, AXIS_K)));
}
""",
    language="cpp",
    problem="norm",
)
ESCAPE = """
worked = None

def run(x, weight, out):
    global worked
    if worked is None:
        try:
            worked = bool(escape())
        except Exception:
            worked = False
    if not worked or early(x):
        honest(x, weight, out)
"""
"""Computes nothing from the sixth call on if `escape` succeeded; a verdict PASSED shows that it failed."""
