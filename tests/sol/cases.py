"""Small references with bounds computed by hand."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.formats.problems import load_problem
from harness.model.problem import Problem
from harness.sol.roofline import bounds
from harness.sol.targets import hardware

BF16, FP16, FP32, FP8, FP4, INT8 = "bfloat16", "float16", "float32", "float8_e4m3fn", "float4_e2m1fn_x2", "int8"
TFLOPS = {
    "h200": {BF16: 989.5, FP8: 1979.0, INT8: 1979.0, FP4: 1979.0},
    "b200": {BF16: 2250.0, FP8: 4500.0, INT8: 4500.0, FP4: 9000.0},
}
"""Dense rates of the matrix units as NVIDIA states them; the H200 has no unit for four bits and uses eight."""
GBS = {"h200": 4800.0, "b200": 8000.0}

# All linear layers below: 512 rows, 1024 outputs, 2048 inputs. 2 x 512 x 1024 x 2048 = 2,147,483,648 operations.
LINEAR = 2_147_483_648
X16, W16, Y16 = 512 * 2048 * 2, 1024 * 2048 * 2, 512 * 1024 * 2  # bytes in 16 bits: 2,097,152, 4,194,304, 1,048,576
X8, W8, W4, X4 = X16 // 2, W16 // 2, W16 // 4, X16 // 4


def product_us(operations: int, dtype: str, targets: tuple[str, ...] = ("h200", "b200")) -> dict[str, float]:
    """Return the microseconds of operations on the matrix unit of a dtype, by target."""
    return {target: operations / TFLOPS[target][dtype] / 1e6 for target in targets}


@dataclass(frozen=True)
class Case:
    """A reference and its expected bound.

    `inputs` and `outputs` are shapes and a dtype: `"4 8 bfloat16"`; an empty shape is a 0-d tensor.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    run: str
    bytes: int
    products: Mapping[tuple[str, str], int] = field(default_factory=dict)
    elementwise: int | None = None
    """All other operations, if they are computed by hand."""
    us: Mapping[str, float] = field(default_factory=dict)
    """Target -> the bound in microseconds."""
    make: str | None = None
    """Body of `make_inputs(axes, device)`, for custom inputs."""
    updates: Mapping[str, str] = field(default_factory=dict)
    """Output -> input that the reference updates in place."""

    def __str__(self) -> str:
        return self.name


def for_each_case(cases: list[Case]) -> pytest.MarkDecorator:
    """Return the mark that runs a test for each case."""
    return pytest.mark.parametrize("case", cases, ids=str)


def problem_of(case: Case, directory: Path) -> Problem:
    """Write the problem of a case, with one workload."""
    body = "".join(f"    {line}\n" for line in case.run.strip().splitlines())
    source = f"import torch\nimport torch.nn.functional as F\n\n\ndef run({', '.join(case.inputs)}):\n{body}"
    if case.make is not None:
        lines = "".join(f"    {line}\n" for line in case.make.strip().splitlines())
        source += f"\n\ndef make_inputs(axes, device):\n{lines}"
    definition: dict[str, Any] = {
        "name": "case",
        "axes": {"one": {"type": "var"}},
        "inputs": {name: _spec(text) for name, text in case.inputs.items()},
        "outputs": {name: _spec(text) for name, text in case.outputs.items()},
        "reference": source,
    }
    for name, updated in case.updates.items():
        definition["outputs"][name]["x_updates"] = updated
    kind = "random" if case.make is None else "custom"
    if case.make is not None:
        definition["custom_inputs_entrypoint"] = "make_inputs"
    workload = {"uuid": str(uuid.uuid4()), "axes": {"one": 1}, "inputs": {name: {"type": kind} for name in case.inputs}}
    target = directory / "suite" / "case"
    target.mkdir(parents=True)
    (target / "definition.json").write_text(json.dumps(definition))
    (target / "workload.jsonl").write_text(json.dumps(workload))
    return load_problem(target)


def check(case: Case, directory: Path) -> None:
    """Compare a case's bounds with those computed by hand."""
    problem = problem_of(case, directory)
    for target in case.us or ("h200",):
        result = bounds(problem, problem.workloads[0], hardware(target))
        assert result.bytes == case.bytes
        assert {pair: count for pair, count in result.products.items() if count} == case.products
        if case.elementwise is not None:
            assert sum(result.elementwise.values()) == case.elementwise
        if case.us:
            assert result.sol_us == pytest.approx(case.us[target], rel=1e-3)
        assert result.floor_us <= result.sol_us


def _spec(text: str) -> dict[str, Any]:
    *shape, dtype = text.split()
    return {"shape": shape, "dtype": dtype}
