"""Bounds of workloads: the counted operations and bytes."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import FormatError
from harness.formats.problems import load_problem
from harness.model.problem import Problem
from harness.sol.hardware import Hardware, Peaks
from harness.sol.roofline import Bounds, bounds
from harness.sol.targets import hardware

# 1 TFLOP/s and 1 GB/s: a million operations take 1 us, and so do a thousand bytes.
UNIT = Hardware(
    name="unit",
    bandwidth_gbs=1.0,
    l2_mib=0,
    tflops=Peaks(tensor={"bfloat16": 4.0}, vector={"float32": 1.0, "float64": 0.5}),
    source={},
)
# UNIT with arithmetic so slow that it is the limit.
SLOW = UNIT.model_copy(update={"tflops": Peaks(tensor={"bfloat16": 4e-6}, vector={"float32": 1e-6, "float64": 1e-6})})

Spec = tuple[Sequence[str] | None, str]


def make(
    directory: Path,
    run: str,
    inputs: Mapping[str, Spec],
    outputs: Mapping[str, Spec],
    axes: Mapping[str, int],
    scalars: Mapping[str, Any] | None = None,
) -> Problem:
    """Write a problem with one workload, from the body of its reference."""
    arguments = ", ".join(inputs)
    body = "".join(f"    {line}\n" for line in run.splitlines())
    definition = {
        "name": "made",
        "axes": {name: {"type": "var"} for name in axes},
        "inputs": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in inputs.items()},
        "outputs": {name: {"shape": shape, "dtype": dtype} for name, (shape, dtype) in outputs.items()},
        "reference": f"import torch\nimport torch.nn.functional as F\n\n\ndef run({arguments}):\n{body}",
    }
    workload_inputs = {name: {"type": "random"} for name in inputs} | {
        name: {"type": "scalar", "value": value} for name, value in (scalars or {}).items()
    }
    target = directory / "suite" / "made"
    target.mkdir(parents=True)
    (target / "definition.json").write_text(json.dumps(definition))
    (target / "workload.jsonl").write_text(
        json.dumps({"uuid": str(uuid.uuid4()), "axes": axes, "inputs": workload_inputs})
    )
    return load_problem(target)


def bound(problem: Problem, machine: Hardware = UNIT) -> Bounds:
    return bounds(problem, problem.workloads[0], machine)


def square(size: int, dtype: str = "float32") -> dict[str, Any]:
    return {"axes": {"n": size}, "outputs": {"y": (["n", "n"], dtype)}}


def test_each_byte_once_and_intermediates_are_free(tmp_path: Path) -> None:
    problem = make(tmp_path, "z = x + x\nreturn z * z + x", {"x": (["n", "n"], "float32")}, **square(100))
    result = bound(problem)
    assert result.bytes == 2 * 4 * 100 * 100
    assert result.flops == 3 * 100 * 100
    assert result.limited_by == "memory"
    assert result.sol_us == pytest.approx(80.0)
    assert result.floor_us == pytest.approx(80.0)
    slow = bound(problem, SLOW)
    assert slow.limited_by == "elementwise"
    assert slow.sol_us == pytest.approx(3 * 100 * 100)


@pytest.mark.parametrize(
    ("run", "flops"),
    [
        ("return a @ b", 2 * 64**3),
        ("return torch.mm(a, b)", 2 * 64**3),
        ("return F.linear(a, b)", 2 * 64**3),
        ("return torch.addmm(a, a, b)", 2 * 64**3),
        ("return torch.einsum('ij,jk->ik', a, b)", 2 * 64**3),
        ("return torch.mv(a, b[0]).expand(64, 64).contiguous()", 2 * 64**2),
        ("return torch.addmv(b[0], a, b[1]).expand(64, 64).contiguous()", 2 * 64**2),
        ("return torch.dot(a[0], b[0]).expand(64, 64).contiguous()", 2 * 64),
        ("return F.scaled_dot_product_attention(a[None, None], a[None, None], b[None, None])[0, 0]", 4 * 64**3),
    ],
)
def test_products_count_two_operations_an_element(tmp_path: Path, run: str, flops: int) -> None:
    operands: dict[str, Spec] = {"a": (["n", "n"], "bfloat16"), "b": (["n", "n"], "bfloat16")}
    problem = make(tmp_path, run, operands, **square(64, "bfloat16"))
    machine = SLOW.model_copy(update={"tflops": Peaks(tensor={"bfloat16": 4e-6}, vector={"float32": 1e-6})})
    result = bound(problem, machine)
    assert flops <= result.flops <= flops * 1.1
    assert result.limited_by == "products"
    assert result.sol_us == pytest.approx(flops / 4)


def test_a_product_of_cast_values_uses_the_unit_of_their_stored_dtype(tmp_path: Path) -> None:
    operands: dict[str, Spec] = {"a": (["n", "n"], "bfloat16"), "b": (["n", "n"], "bfloat16")}
    cast = make(tmp_path / "cast", "return (a.float() @ b.float().t()).bfloat16()", operands, **square(64, "bfloat16"))
    assert bound(cast, SLOW).sol_us == pytest.approx(2 * 64**3 / 4)
    changed = make(
        tmp_path / "one", "return (a.float() @ (b.float() + 1)).bfloat16()", operands, **square(64, "bfloat16")
    )
    assert bound(changed, SLOW).sol_us == pytest.approx(2 * 64**3 / 4)


def test_a_large_product_is_limited_by_the_matrix_units(tmp_path: Path) -> None:
    operands: dict[str, Spec] = {"a": (["n", "n"], "bfloat16"), "b": (["n", "n"], "bfloat16")}
    result = bound(make(tmp_path, "return a @ b", operands, **square(8192, "bfloat16")), hardware("h200"))
    assert result.limited_by == "products"
    assert result.sol_us == pytest.approx(2 * 8192**3 / 989.5e12 * 1e6)
    assert result.attainable_us == pytest.approx(2 * 8192**3 / 800e12 * 1e6)
    # Operations prove nothing. Only necessary reads count, and outputs beyond the capacity of the L2 cache.
    assert result.floor_bytes == 3 * 2 * 8192**2 - 60 * 2**20


@pytest.mark.parametrize(
    ("run", "read", "proved"),
    [
        ("return x * 2", 10_000, 10_000),
        ("return x[:10].sum() + torch.zeros(100, 100, device=x.device)", 1_000, 1_000),
        ("a, b = x.chunk(2)\nreturn torch.cat((b, a))", 10_000, 10_000),
        ("a, b = x.chunk(2)\nreturn torch.cat((a, a))", 5_000, 5_000),
        ("return x.t().contiguous()", 10_000, 10_000),
        ("return x[0].expand(100, 100) + 1", 100, 100),
        ("y = (x + 1)[:50]\nreturn torch.cat((y, y))", 5_000, 0),
        ("return torch.where(x > 0, x, -x)", 10_000, 0),
        ("return torch.tril(x)", 5_050, 0),
        ("return x.masked_fill(x > 1, 0)", 10_000, 0),
        ("y = x.clone()\ny.add_(1)\nreturn y[:1].expand(100, 100).contiguous()", 100, 0),
    ],
)
def test_read_and_proved_elements(tmp_path: Path, run: str, read: int, proved: int) -> None:
    result = bound(make(tmp_path, run, {"x": (["n", "n"], "float32")}, **square(100)))
    assert result.bytes == 4 * (10_000 + read)
    assert result.floor_bytes == 4 * (10_000 + proved)


def test_only_selected_rows_of_a_table_are_counted(tmp_path: Path) -> None:
    inputs: dict[str, Spec] = {"table": (["rows", "width"], "float32"), "ids": (["count"], "int64")}
    outputs: dict[str, Spec] = {"y": (["count", "width"], "float32")}
    axes = {"rows": 10_000, "width": 64, "count": 8}
    for number, run in enumerate(("return table[ids]", "return F.embedding(ids, table)")):
        result = bound(make(tmp_path / str(number), run, inputs, outputs, axes))
        # 8 ids drawn from 10,000 take 10,000 (1 - (1 - 1/10,000)^8) = 7.997 different rows of 256 bytes: 2,047.
        assert result.bytes == 4 * 8 * 64 + 2047 + 8 * 8
        assert result.floor_bytes == 4 * 8 * 64 + 8 * 8


@pytest.mark.parametrize(
    "run",
    [
        "n = int(counts.sum().item())\nreturn x * (n + 1)",
        "return x * 2 if counts.tolist() else x",
        "if (x > 0).any():\n    return x + 1\nreturn x",
    ],
)
def test_references_whose_control_flow_depends_on_values_have_bounds(tmp_path: Path, run: str) -> None:
    inputs: dict[str, Spec] = {"x": (["n", "n"], "float32"), "counts": (["n"], "int32")}
    result = bound(make(tmp_path, run, inputs, **square(100)))
    assert result.bytes >= 2 * 4 * 100 * 100
    assert result.sol_us >= result.floor_us > 0


def test_scalars_have_no_bytes(tmp_path: Path) -> None:
    inputs: dict[str, Spec] = {"x": (["n", "n"], "float32"), "factor": (None, "float32")}
    result = bound(make(tmp_path, "return x * factor", inputs, scalars={"factor": 0.5}, **square(100)))
    assert result.bytes == 2 * 4 * 100 * 100


@pytest.mark.parametrize(
    ("run", "message"), [("return x.nothing()", "no attribute"), ("return x @ x[:3]", "RuntimeError")]
)
def test_a_reference_that_does_not_run_is_named(tmp_path: Path, run: str, message: str) -> None:
    problem = make(tmp_path, run, {"x": (["n", "n"], "float32")}, **square(10))
    with pytest.raises(FormatError, match=message) as caught:
        bound(problem)
    assert problem.workloads[0].uuid in str(caught.value)
    assert str(problem.directory / "definition.json") in str(caught.value)


def test_the_floor_of_a_cpu_allows_for_inputs_in_its_caches(tmp_path: Path) -> None:
    problem = make(tmp_path, "return x * 2", {"x": (["n", "n"], "float32")}, **square(100))
    cached = UNIT.model_copy(update={"cached_gbs": 5.0})
    assert bound(problem, cached).sol_us == pytest.approx(80.0)
    assert bound(problem, cached).floor_us == pytest.approx(16.0)


@pytest.mark.parametrize(
    "body", ["cache[5] = row", "cache[ids] = row.view(1, -1)", "cache.index_copy_(0, ids, row[None])"]
)
def test_an_update_in_place_counts_its_rows_and_proves_nothing(tmp_path: Path, body: str) -> None:
    cache: Spec = (["N", "D"], "float32")
    problem = make(
        tmp_path,
        body,
        {"cache": cache, "row": (["D"], "float32"), "ids": (["1"], "int64")},
        {"out": cache},
        {"N": 1000, "D": 64},
    )
    updated = problem.definition.outputs["out"].model_copy(update={"x_updates": "cache"})
    problem = problem.model_copy(
        update={"definition": problem.definition.model_copy(update={"outputs": {"out": updated}})}
    )
    result = bounds(problem, problem.workloads[0], UNIT)
    assert 2 * 64 * 4 <= result.bytes <= 2 * 64 * 4 + 8
    assert result.floor_bytes <= 64 * 4 + 8
