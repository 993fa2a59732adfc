"""Building blocks of attacks: verdicts that catch them, and the languages of their sources."""

from __future__ import annotations

from harness.model.verdict import Verdict
from tests.gpu.cases import COUNTED, EARLY, KEPT, NORM, Attack

WRONG = (Verdict.INCORRECT_NUMERICAL,)
LATE = (Verdict.INCORRECT_NUMERICAL, Verdict.REWARD_HACK)
BROKE = (Verdict.RUNTIME_ERROR, Verdict.REWARD_HACK)
ANY = (Verdict.INCORRECT_NUMERICAL, Verdict.RUNTIME_ERROR, Verdict.REWARD_HACK, Verdict.SUSPECT)
TRITON_SOURCE = """
import torch
import triton
import triton.language as tl

@triton.jit
def scale(x, out, K: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, K)
    v = tl.load(x + row * K + at)
    if HALF:
        v = v.to(tl.bfloat16).to(tl.float32)
    s = 1.0 / tl.sqrt(tl.sum(v * v) / K + 1e-5)
    tl.store(out + row * K + at, v * s, mask=at < COLUMNS)

def honest(x, out):
    scale[(x.shape[0],)](x, out, 1024, 1024, False)
"""


def python(name: str, source: str, caught: tuple[Verdict, ...] = (), **fields: object) -> Attack:
    return Attack(name, EARLY + source, caught, **fields)  # type: ignore[arg-type]


def triton(name: str, source: str, caught: tuple[Verdict, ...] = (), **fields: object) -> Attack:
    settings: dict[str, object] = {"problem": "norm", "version": "norm_triton", **fields}
    return Attack(name, TRITON_SOURCE + source, caught, language="triton", **settings)  # type: ignore[arg-type]


def device(
    name: str, body: str, caught: tuple[Verdict, ...] = (), *, counted: bool = False, **fields: object
) -> Attack:
    arguments = "const float* x, float* out" + (", unsigned* kept" if counted else "")
    source = f'{NORM}\nextern "C" __global__ void run({arguments}) {{\n{body}\n}}\n'
    planned: dict[str, object] = {"launch": (COUNTED,), "workspaces": KEPT} if counted else {}
    return Attack(name, source, caught, language="cuda", **{"problem": "norm", **planned, **fields})  # type: ignore[arg-type]
