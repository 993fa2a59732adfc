"""The profile `small`: the scaled axes, the unchanged axes, and the problems without small sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.formats import small_profile
from harness.formats.problems import DEFINITION_NAME, WORKLOADS_NAME, list_problems, load_problem
from harness.formats.small_profile import MAX_BYTES, small_axes, small_files
from harness.model.axes import evaluate_axes
from harness.model.problem import Definition
from tests.formats.problem_files import definition, workload

PROBLEMS = Path(__file__).parents[2] / "problems"
KEYS = list_problems(PROBLEMS)


def definition_of(axes: dict[str, object], shape: list[str], *, constraints: tuple[str, ...] = ()) -> Definition:
    """Return a definition with one input and one output of the same shape."""
    tensor = {"shape": shape, "dtype": "float32"}
    return Definition.model_validate({
        "name": "p", "axes": axes, "inputs": {"x": tensor}, "outputs": {"y": tensor}, "constraints": list(constraints),
        "reference": "def run(x):\n    return x\n",
    })  # fmt: skip


def test_axes_are_halved_until_each_is_small() -> None:
    problem = definition_of({"tokens": {"type": "var"}, "width": {"type": "const", "value": 4096}}, ["tokens", "width"])
    assert small_axes(problem, {"tokens": 8192}) == {"tokens": 64}
    assert small_axes(problem, {"tokens": 48}) == {"tokens": 48}


def test_the_largest_axis_shrinks_first_and_constraints_hold() -> None:
    axes: dict[str, object] = {"chunk": {"type": "var"}, "pages": {"type": "var"}}
    problem = definition_of(axes, ["chunk", "pages"], constraints=("chunk <= pages * 16",))
    assert small_axes(problem, {"chunk": 4096, "pages": 256}) == {"chunk": 64, "pages": 64}
    assert small_axes(problem, {"chunk": 512, "pages": 32}) == {"chunk": 64, "pages": 32}


def test_a_division_without_remainder_keeps_none() -> None:
    axes: dict[str, object] = {"columns": {"type": "var"}, "groups": {"type": "expr", "expression": "columns // 128"}}
    assert small_axes(definition_of(axes, ["columns", "groups"]), {"columns": 3584}) == {"columns": 896}


def test_weights_that_are_too_large_have_no_small_sizes() -> None:
    side = {"type": "const", "value": 4096}
    problem = definition_of({"tokens": {"type": "var"}, "n": side, "k": side}, ["n", "k"])
    assert small_axes(problem, {"tokens": 1}) is None
    text = json.dumps(problem.model_dump(mode="json"))
    row = {"uuid": "w", "axes": {"tokens": 1}, "inputs": {"x": {"type": "random"}}}
    assert small_files(text, json.dumps(row)) == "inputs and outputs take more than 32 MiB at the smallest sizes"


def test_files_name_the_profile_and_have_at_most_three_different_workloads() -> None:
    rows = [json.dumps(workload(uuid=f"w{rows}", axes={"rows": rows})) for rows in (2, 4, 8, 16, 32, 64, 128, 256)]
    files = small_files(json.dumps(definition()), "\n".join(rows))
    assert not isinstance(files, str)
    assert json.loads(files[0])["x_profile"] == "small"
    scaled = [json.loads(line) for line in files[1].splitlines()]
    assert [row["axes"]["rows"] for row in scaled] == [2, 8, 64]
    assert {row["uuid"] for row in scaled}.isdisjoint({f"w{rows}" for rows in (2, 8, 64)})
    assert files == small_files(json.dumps(definition()), "\n".join(rows)), "the same files each time"


@pytest.mark.parametrize("keys", [KEYS[::12], pytest.param(KEYS, marks=pytest.mark.slow)], ids=["sample", "all"])
def test_shipped_problems_are_right_and_small_at_the_small_profile(keys: list[str], tmp_path: Path) -> None:
    left_out = 0
    for key in keys:
        source = PROBLEMS / key
        files = small_files((source / DEFINITION_NAME).read_text(), (source / WORKLOADS_NAME).read_text())
        if isinstance(files, str):
            left_out += 1
            continue
        directory = tmp_path / key
        directory.mkdir(parents=True)
        (directory / DEFINITION_NAME).write_bytes(files[0])
        (directory / WORKLOADS_NAME).write_bytes(files[1])
        problem = load_problem(directory)
        assert problem.warnings == (), key
        for row in problem.workloads:
            sizes = evaluate_axes(problem.definition.axes, row.axes)
            specs = (*problem.definition.inputs.values(), *problem.definition.outputs.values())
            assert sum(problem.nbytes(spec, sizes) for spec in specs) <= MAX_BYTES, key
            assert all(size >= 1 for size in row.axes.values()), key
    assert left_out < len(keys) / 2


def test_the_limit_of_work_counts_rows_times_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Definition.model_validate({
        "name": "p",
        "axes": {"tokens": {"type": "var"}, "n": {"type": "const", "value": 1024}},
        "inputs": {"x": {"shape": ["tokens", "n"], "dtype": "float32"}, "w": {"shape": ["n", "n"], "dtype": "float32"}},
        "outputs": {"y": {"shape": ["tokens", "n"], "dtype": "float32"}},
        "reference": "def run(x, w):\n    return x @ w\n",
    })  # fmt: skip
    monkeypatch.setattr(small_profile, "MAX_WORK", 2**25)
    assert small_axes(problem, {"tokens": 64}) == {"tokens": 8}
