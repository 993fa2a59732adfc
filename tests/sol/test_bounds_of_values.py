"""Bounds of references whose control flow depends on values, and of inputs that are too large to be made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.sol.roofline import NoBoundError, bounds
from harness.sol.targets import hardware
from tests.safetensors import write_safetensors
from tests.sol.cases import BF16, GBS, Case, check, for_each_case, problem_of

pytestmark = pytest.mark.xdist_group("bounds")  # torch loads its operators without values once

CASES = [
    # 131,072 x 262,144 weights of 2 B are 68.7 GB, which no machine here could make; one row of activations.
    # 2 x 131,072 x 262,144 operations, and 68,719,476,736 + 524,288 + 262,144 B / 4.8e12 = 14,316.7 us.
    Case(
        "custom inputs of 69 GB",
        {"x": "1 262144 bfloat16", "w": "131072 262144 bfloat16"},
        {"y": "1 131072 bfloat16"},
        "return F.linear(x, w)",
        bytes=68_719_476_736 + 524_288 + 262_144,
        products={(BF16, BF16): 68_719_476_736},
        us={"h200": 68_720_263_168 / GBS["h200"] / 1e3},
        make="""
w = torch.randn(131072, 262144, device=device).to(torch.bfloat16) / 512
return {"x": torch.ones(1, 262144, device=device, dtype=torch.bfloat16), "w": w}
""",
    ),
    # Lengths 3, 5 and 8 of 16 rows each: 16 rows of 64 x 4 B are read, and all 48 written (zeros elsewhere).
    Case(
        "lengths decide slices",
        {"x": "3 16 64 float32", "lengths": "3 int32"},
        {"y": "3 16 64 float32"},
        """
y = torch.zeros_like(x)
for sequence in range(3):
    length = int(lengths[sequence])
    y[sequence, :length] = x[sequence, :length] * 2
return y
""",
        bytes=16 * 256 + 48 * 256 + 12,
        elementwise=16 * 64,
        make="""
lengths = torch.tensor([3, 5, 8], dtype=torch.int32, device=device)
return {"x": torch.randn(3, 16, 64, device=device), "lengths": lengths}
""",
    ),
    # Pages 4, 0 and 7 of eight are read: 3 x 16 x 32 x 2 B; query and result of 64 B each; 3 x 8 B of page numbers.
    # Scores and values: 2 x 2 x 48 x 32 operations.
    Case(
        "a page table decides which pages are read",
        {"q": "32 bfloat16", "cache": "8 16 32 bfloat16", "pages": "3 int64"},
        {"y": "32 bfloat16"},
        """
rows = cache[pages].flatten(0, 1).float()
return ((rows @ q.float()).softmax(-1) @ rows).to(torch.bfloat16)
""",
        bytes=3 * 1_024 + 64 + 64 + 24,
        products={(BF16, BF16): 2 * 2 * 48 * 32},
        make="""
return {"q": torch.randn(32, device=device).to(torch.bfloat16),
        "cache": torch.randn(8, 16, 32, device=device).to(torch.bfloat16),
        "pages": torch.tensor([4, 0, 7], device=device)}
""",
    ),
    # The values of the random counts are unknown and taken for zeros: 8 B are read, nothing is copied, 4,096 B written.
    Case(
        "random counts do the least work",
        {"x": "16 64 float32", "counts": "1 int64"},
        {"y": "16 64 float32"},
        "y = torch.zeros_like(x)\nn = int(counts.sum())\ny[:n] = x[:n]\nreturn y",
        bytes=8 + 4_096,
        elementwise=0,
    ),
    # Group sizes 4, 0 and 12 choose the weights of 32 x 32 x 2 B: two of three are read. 2 x 16 x 32 x 32 operations.
    Case(
        "an empty group needs no weights",
        {"x": "16 32 bfloat16", "w": "3 32 32 bfloat16", "ends": "3 int64"},
        {"y": "16 32 bfloat16"},
        """
y, begin = torch.empty_like(x), 0
for group in range(3):
    end = int(ends[group])
    y[begin:end] = x[begin:end] @ w[group]
    begin = end
return y
""",
        bytes=2 * 1_024 + 2 * 2_048 + 24,
        products={(BF16, BF16): 2 * 16 * 32 * 32},
        make="""
return {"x": torch.randn(16, 32, device=device).to(torch.bfloat16),
        "w": torch.randn(3, 32, 32, device=device).to(torch.bfloat16),
        "ends": torch.tensor([4, 4, 16], device=device)}
""",
    ),
    # The same by one operator: two of three groups have rows. Their weights are 2 x 32 x 32 x 2 B.
    Case(
        "an empty group of a grouped product",
        {"x": "16 32 bfloat16", "w": "3 32 32 bfloat16", "ends": "3 int32"},
        {"y": "16 32 bfloat16"},
        "return torch._grouped_mm(x, w, offs=ends)",
        bytes=2 * 1_024 + 2 * 2_048 + 12,
        products={(BF16, BF16): 2 * 16 * 32 * 32},
        make="""
return {"x": torch.randn(16, 32, device=device).to(torch.bfloat16),
        "w": torch.randn(3, 32, 32, device=device).to(torch.bfloat16),
        "ends": torch.tensor([4, 4, 16], device=device, dtype=torch.int32)}
""",
    ),
    # numpy needs real values, so the input is made and the reference runs: 2 x 4,096 B and one operation an element.
    Case(
        "custom inputs by numpy",
        {"x": "1024 float32"},
        {"y": "1024 float32"},
        "return x * 2",
        bytes=2 * 4_096,
        elementwise=1024,
        make="""
import numpy
noise = torch.randn(1 << 21, device=device)[:1024].numpy()
return {"x": torch.from_numpy(noise + numpy.float32(1))}
""",
    ),
    # How many are positive is unknown without values; with ones, all are. Read once, written once.
    Case(
        "a reference that runs only on values",
        {"x": "1024 float32"},
        {"y": "1024 float32"},
        "return x.clone().index_put_((torch.nonzero(x > 0)[:, 0],), x[x > 0] * 2)",
        bytes=2 * 4_096,
    ),
]


@for_each_case(CASES)
def test_only_values_that_decide_shapes_are_made(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_of_files_only_integers_are_read(tmp_path: Path) -> None:
    """The file of `x`, 4 GB, ends after its header, so that a read fails. 5 of its 2^20 rows of 4,096 B are needed."""
    case = Case(
        "files",
        {"x": "1048576 1024 float32", "lengths": "1 int32"},
        {"y": "1048576 1024 float32"},
        "y = torch.zeros_like(x)\nn = int(lengths[0])\ny[:n] = x[:n]\nreturn y",
        bytes=0,
    )
    problem = problem_of(case, tmp_path)
    data = tmp_path / "data"
    write_safetensors(data / "x", "t", "F32", [2**20, 1024], b"")
    write_safetensors(data / "lengths", "t", "I32", [1], (5).to_bytes(4, "little"))
    inputs = {name: {"type": "safetensors", "path": name, "tensor_key": "t"} for name in ("x", "lengths")}
    line = json.dumps({"uuid": "w", "axes": {"one": 1}, "inputs": inputs})
    (problem.directory / "workload.jsonl").write_text(line)
    problem = load_problem(problem.directory, data_root=data)
    assert bounds(problem, problem.workloads[0], hardware("h200")).bytes == 5 * 4096 + 2**20 * 4096 + 4
    (data / "lengths").write_bytes((data / "lengths").read_bytes()[:-1])
    with pytest.raises(NoBoundError, match="lengths ends within tensor `t`"):
        bounds(problem, problem.workloads[0], hardware("h200"))


ENDLESS = "for _ in range(10**9):\n    x = x + 1\nreturn x"
LARGE = "y = x[x > 0]\nreturn (y[:, None] + y[None, :])[0].clone()"
SLOW = "n = x[x > 0].numel()\nw = torch.ones(n, n)\nreturn (w @ w)[0].clone()"


@pytest.mark.parametrize(
    ("run", "rows", "reason"),
    [
        (ENDLESS, 8, "its analysis takes more than 1 s"),
        (LARGE, 65_536, "its analysis takes more than 2 GB"),
        (SLOW, 4_096, "its analysis takes more than 4e\\+09 operations on values"),
    ],
    ids=["too many operators", "too much memory", "too many operations on values"],
)
def test_an_analysis_that_takes_too_much_is_given_up(tmp_path: Path, run: str, rows: int, reason: str) -> None:
    problem = problem_of(Case("limits", {"x": f"{rows} float32"}, {"y": f"{rows} float32"}, run, bytes=0), tmp_path)
    with pytest.raises(NoBoundError, match=reason) as caught:
        bounds(problem, problem.workloads[0], hardware("h200"))
    assert problem.workloads[0].uuid in str(caught.value)
