"""Every kernel of the Triton solutions that come with problems compiles for Hopper and Blackwell, without a GPU."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from harness.formats.solutions import load_solution
from tests.agents.test_samples import NEEDS, TRITON, output_of

PROBLEMS = Path(__file__).parents[2] / "problems"
SOLUTIONS = {
    path.parent.relative_to(PROBLEMS).as_posix(): path.parent
    for path in sorted(PROBLEMS.glob("*/*/solutions/*/solution.yaml"))
    if "language: triton\n" in path.read_text()
}
ROW: dict[str, object] = {"HIDDEN": 1152, "BLOCK": 2048}
LAUNCH = re.compile(r"^    (\w+)\[\(", re.MULTILINE)
KERNELS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "attention/gqa_paged_prefill/solutions/h200:attend": (
        {"HEADS": 32, "KV_HEADS": 8, "DIM": 128, "PAGE": 16, "BLOCK_T": 16, "BLOCK_N": 64},
        {"page_table": "*i32", "kv_lengths": "*i32", "chunk": "i32", "max_pages": "i32", "scale": "fp32"},
    ),
    "diffusion/adaln_attention_block/solutions/h200:modulate": (ROW, {"tokens": "i32"}),
    "diffusion/adaln_attention_block/solutions/h200:attend": (
        {"HEADS": 16, "DIM": 72, "REST": 16, "BLOCK_M": 128, "BLOCK_N": 64, "EVEN": True},
        {"tokens": "i32", "scale": "fp32"},
    ),
    "diffusion/adaln_attention_block/solutions/h200:finish": (ROW, {"tokens": "i32"}),
}
"""Solution and kernel -> values of its constants, and the types of the arguments that are no bf16 pointers."""


def test_every_kernel_that_is_launched_is_one_of_these() -> None:
    launched = {
        f"{name}:{kernel}"
        for name, directory in SOLUTIONS.items()
        for kernel in re.findall(
            r"^    (\w+)\[\(", (directory / load_solution(directory).spec.file).read_text(), re.MULTILINE
        )
    }
    assert launched == set(KERNELS)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=NEEDS.format("triton"))
@pytest.mark.parametrize("architecture", ["90", "100"])
@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_it_compiles(kernel: str, architecture: str, tmp_path: Path) -> None:
    solution, _, name = kernel.partition(":")
    file = SOLUTIONS[solution] / load_solution(SOLUTIONS[solution]).spec.file
    constants, types = (json.dumps(part) for part in KERNELS[kernel])
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TRITON_DEFAULT_FP_FUSION": "1"}
    completed = output_of(TRITON, str(file), name, architecture, constants, types, **environment)
    assert completed.returncode == 0, completed.stdout[-2000:] + completed.stderr[-4000:]
    assert re.fullmatch(rf"{name} [1-9]\d{{3,}} bytes of cubin\n", completed.stdout), completed.stdout
