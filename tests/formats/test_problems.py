from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import FormatError
from harness.formats.problems import inspect_problem, list_problems, load_problem, problem_digest
from tests.formats.problem_files import DEFINITION, WORKLOAD, definition, workload, write_problem, write_safetensors


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return `s/p` below the current directory, which messages show as `s/p/...`."""
    monkeypatch.chdir(tmp_path)
    return Path("s/p")


def inputs(**changes: Any) -> dict[str, Any]:
    return definition(inputs={**DEFINITION["inputs"], **changes})


def sources(**changes: Any) -> dict[str, Any]:
    return workload(inputs={**WORKLOAD["inputs"], **changes})


def test_a_good_problem_is_read_whole(directory: Path) -> None:
    problem = load_problem(write_problem(directory, DEFINITION, workload(), workload(uuid="w1", axes={"rows": 0})))
    assert problem.key == "s/p"
    assert problem.warnings == ()
    assert [w.uuid for w in problem.workloads] == ["w0", "w1"]
    sizes = problem.sizes(problem.workloads[0])
    assert sizes == {"rows": 8, "width": 64, "cells": 512}
    assert problem.shape(problem.definition.inputs["x"], sizes) == (8, 64)
    assert problem.nbytes(problem.definition.inputs["x"], sizes) == 2048
    assert problem.nbytes(problem.definition.inputs["scale"], sizes) == 0
    tolerance = problem.workloads[0].tolerance
    assert (tolerance.max_atol, tolerance.max_rtol, tolerance.required_matched_ratio) == (0.01, 0.01, 0.99)


def test_unused_keys_of_other_benchmarks_are_kept_and_reported_once(directory: Path) -> None:
    value = definition(tags=["a"], extra={"deep": 1}, constraints=None, description=None, hf_id=None, op_type=None)
    value["axes"]["rows"] = {"type": "var", "description": None, "parent": "x"}
    value["inputs"]["x"]["x_distribution"] = "bias"  # a key of the harness, which the judge reads
    write_problem(directory, value, workload(note=1), workload(uuid="w1", note=2))
    problem = load_problem(directory)
    assert problem.warnings == (
        "s/p/definition.json: unknown keys are kept and not used: extra, axes.rows.parent",
        "s/p/workload.jsonl: unknown keys are kept and not used: note",
    )
    assert problem.definition.model_extra == {"tags": ["a"], "extra": {"deep": 1}}


def test_packed_four_bit_floats_are_read_under_torchs_name(directory: Path) -> None:
    write_problem(directory, inputs(x={"shape": ["rows", "32"], "dtype": "float4_e2m1"}))
    problem = load_problem(directory)
    assert problem.definition.inputs["x"].dtype == "float4_e2m1fn_x2"
    assert problem.nbytes(problem.definition.inputs["x"], {"rows": 8}) == 256


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ("outputs", {"x_updates": "xx"}, "`outputs.y.x_updates` is `xx`, which is no input; did you mean `x`?"),
        ("outputs", {"x_updates": "scale"}, "expected a tensor of the shape and dtype of the input `scale`"),
        ("outputs", {"x_updates": "x", "dtype": "int8"}, "expected a tensor of the shape and dtype of the input `x`"),
        ("inputs", {"x_updates": "x"}, "`inputs.x.x_updates` is at an input; expected it at the output"),
    ],
)
def test_an_update_in_place_is_of_an_input_of_the_same_kind(
    directory: Path, section: str, changes: dict[str, str], message: str
) -> None:
    value = definition()
    name = "y" if section == "outputs" else "x"
    value["outputs"] = {"y": dict(value["inputs"]["x"])}
    write_problem(directory, {**value, "outputs": {"y": {**value["outputs"]["y"], "x_updates": "x"}}})
    assert load_problem(directory).definition.updates == {"y": "x"}
    value[section][name].update(changes)
    write_problem(directory, value)
    (error,) = inspect_problem(directory).errors
    assert message in error.message
    assert error.where is not None
    assert "definition.json:" in error.where


def test_two_outputs_do_not_update_one_input(directory: Path) -> None:
    value = definition()
    value["outputs"] = {name: {**value["inputs"]["x"], "x_updates": "x"} for name in ("y", "z")}
    write_problem(directory, value)
    with pytest.raises(FormatError, match="the input `x` is updated to `y` already"):
        load_problem(directory)


def test_a_constraint_over_values_is_kept_and_reported(directory: Path) -> None:
    write_problem(directory, definition(constraints=["rows == index[-1].item()", "rows > 1"]))
    problem = load_problem(directory)
    assert problem.definition.constraints == ("rows == index[-1].item()", "rows > 1")
    assert problem.warnings == (
        "s/p/definition.json: `constraints[0]` (`rows == index[-1].item()`) needs more than sizes; kept, not checked",
    )


def test_custom_inputs_are_all_or_none(directory: Path) -> None:
    source = "def make(axes_and_scalars, device):\n    return {}\n\ndef run(x, index, scale):\n    return x\n"
    custom = workload(inputs={name: {"type": "custom"} for name in ("x", "index", "scale")})
    write_problem(directory, definition(custom_inputs_entrypoint="make", reference=source), custom)
    assert load_problem(directory).definition.custom_inputs_entrypoint == "make"


def test_every_error_of_a_problem_is_found(directory: Path) -> None:
    broken = inputs(x={"shape": ["rowz"], "dtype": "float32"})
    broken["reference"] = "def run(): pass"
    write_problem(directory, broken, "{", workload(axes={"rows": -1}))
    findings = inspect_problem(directory)
    assert findings.problem is None
    assert [error.where for error in findings.errors] == [
        "s/p/definition.json:20", "s/p/definition.json:44", "s/p/workload.jsonl:1", "s/p/workload.jsonl:2",
    ]  # fmt: skip
    with pytest.raises(FormatError, match=r"and 3 more: `harness problems check s/p` lists them"):
        load_problem(directory)


def test_several_structural_errors_come_in_the_files_order(directory: Path) -> None:
    write_problem(directory, definition(name=1, reference=2, axes={"a": {"type": "const", "value": "x"}}))
    errors = inspect_problem(directory).errors
    assert [error.message.split("`")[1] for error in errors] == ["name", "axes.a.value", "reference"]


@pytest.mark.parametrize("missing", ["definition.json", "workload.jsonl"])
def test_a_missing_file_is_named(missing: str, directory: Path) -> None:
    (write_problem(directory) / missing).unlink()
    with pytest.raises(FormatError, match=f"^s/p/{missing}: no such file$"):
        load_problem(directory)


def test_a_file_that_is_no_text_is_named_with_its_line(directory: Path) -> None:
    (write_problem(directory) / "workload.jsonl").write_bytes(b"{}\n\xff")
    with pytest.raises(FormatError, match=r"^s/p/workload.jsonl:2: not UTF-8 text at byte 3$"):
        load_problem(directory)


@pytest.mark.parametrize("key", ["p", "s/p/q", "s/..", "s/a b", "-s/p", "s/p.lock"])
def test_a_key_that_is_no_branch_name_is_refused(key: str, directory: Path) -> None:
    with pytest.raises(FormatError, match="is no problem key; expected suite/name"):
        load_problem(write_problem(directory), key=key)


def tensor(path: str, key: str = "x") -> dict[str, Any]:
    return sources(x={"type": "safetensors", "path": path, "tensor_key": key})


def test_a_tensor_file_may_be_in_the_problem_or_the_data_root(directory: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_safetensors(root / "blob/there.safetensors", {"x": ("F32", [8, 64])})
    write_safetensors(directory / "here.safetensors", {"x": ("F32", [8, 64])})
    write_problem(directory, DEFINITION, tensor("here.safetensors"), {**tensor("blob/there.safetensors"), "uuid": "b"})
    assert len(load_problem(directory, data_root=root).workloads) == 2
    with pytest.raises(FormatError, match=r"workload.jsonl:2: .*no file `blob/there.safetensors`"):
        load_problem(directory)


def test_a_data_file_cannot_be_reached_through_a_link(directory: Path, tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_safetensors(tmp_path / "secret.safetensors", {"x": ("F32", [8, 64])})
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    write_problem(directory, DEFINITION, tensor("link/secret.safetensors"))
    with pytest.raises(FormatError, match=r"path `link/secret.safetensors` leads out of data/ through a link"):
        load_problem(directory, data_root=root)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"z": ("F32", [8, 64])}, "t.safetensors holds no tensor `x`; it has `z`"),
        ({"x": ("F16", [8, 64])}, "tensor `x` of t.safetensors is float16; expected float32"),
        ({"x": ("F32", [8, 63])}, "tensor `x` of t.safetensors has shape [8, 63]; expected [8, 64]"),
    ],
)
def test_a_tensor_must_match_the_definition(
    tensors: dict[str, tuple[str, list[int]]], message: str, directory: Path
) -> None:
    write_safetensors(directory / "t.safetensors", tensors)
    write_problem(directory, DEFINITION, tensor("t.safetensors"))
    with pytest.raises(FormatError) as caught:
        load_problem(directory)
    assert caught.value.message == f"`inputs.x`: {message}"


@pytest.mark.parametrize("content", [b"", b"\0" * 20, b"\xff" * 20, (9).to_bytes(8, "little") + b"[1, 2, 3]"])
def test_a_tensor_file_that_is_none_is_named(content: bytes, directory: Path) -> None:
    write_problem(directory, DEFINITION, tensor("t.safetensors"))
    (directory / "t.safetensors").write_bytes(content)
    with pytest.raises(FormatError, match=r"`inputs.x`: t.safetensors is not a safetensors file"):
        load_problem(directory)


def test_the_digest_is_of_what_takes_part_in_judging(directory: Path) -> None:
    write_problem(directory)
    first = problem_digest(directory)
    assert first.startswith("sha256:")
    assert len(first) == len("sha256:") + 64
    (directory / "solutions/cpu").mkdir(parents=True)
    (directory / "solutions/cpu/solution.yaml").write_text("x")
    (directory / "README.md").write_text("for people")
    assert problem_digest(directory) == first
    (directory / "baseline").mkdir()
    (directory / "baseline/main.py").write_text("x")
    second = problem_digest(directory)
    assert second != first
    (directory / "baseline/main.py").rename(directory / "baseline/other.py")
    assert problem_digest(directory) not in {first, second}
    (directory / "baseline/other.py").write_text("y")
    assert load_problem(directory).digest == problem_digest(directory)


@pytest.mark.parametrize("name", ["extra.json", "baseline", "README.md"])
def test_a_link_in_a_problem_is_refused(name: str, directory: Path, tmp_path: Path) -> None:
    (write_problem(directory) / name).symlink_to(tmp_path)
    with pytest.raises(FormatError, match=f"^s/p/{name}: a symbolic link; expected plain files in a problem"):
        load_problem(directory)


def test_a_pipe_in_a_problem_is_refused_and_not_read(directory: Path) -> None:
    os.mkfifo(write_problem(directory) / "pipe")
    with pytest.raises(FormatError, match=r"^s/p/pipe: not a plain file"):
        load_problem(directory)


def test_problems_are_listed_by_key_and_found_by_glob(tmp_path: Path) -> None:
    for key in ("L1/rmsnorm", "L1/gemm", "L2/rmsnorm_b", "L2/.hidden"):
        write_problem(tmp_path / key)
    (tmp_path / "L1/notes").mkdir()
    assert list_problems(tmp_path) == ["L1/gemm", "L1/rmsnorm", "L2/rmsnorm_b"]
    assert list_problems(tmp_path, ["L1/*"]) == ["L1/gemm", "L1/rmsnorm"]
    assert list_problems(tmp_path, ["rmsnorm*"]) == ["L1/rmsnorm", "L2/rmsnorm_b"]
    assert list_problems(tmp_path, ["L1/gemm", "L2/*"]) == ["L1/gemm", "L2/rmsnorm_b"]
    assert list_problems(tmp_path / "none") == []


_STRANGE: list[Any] = [
    None, True, -1, 2**70, 0.5, "", "rows", "9**9**9", "\x00", [], {}, ["rows"], {"type": "expr"}, [[]],
]  # fmt: skip
_PIECES = ['"', "{", "}", "]", ",", "NaN", "\\", "\x00", "1e999", "é", "\n"]


def _mutated(value: Any, chance: random.Random) -> Any:
    """Return the value with one random part replaced, removed, renamed or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        changed = dict(value)
        match chance.randrange(4):
            case 0:
                del changed[key]
            case 1:
                changed[chance.choice(["x", "rows", "type", "", "é"])] = changed.pop(key)
            case _:
                changed[key] = _mutated(value[key], chance)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        return [*value[:index], _mutated(value[index], chance), *value[index + 1 :], *value[:1]]
    return chance.choice(_STRANGE)


@given(seed=st.integers(0, 2**32), edits=st.integers(1, 4))
def test_a_mutated_problem_loads_or_is_a_format_error(seed: int, edits: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    changed: list[Any] = [definition(), workload()]
    for _ in range(edits):
        position = chance.randrange(2)
        changed[position] = _mutated(changed[position], chance)
    write_problem(tmp_path / "s/p", *changed)
    findings = inspect_problem(tmp_path / "s/p")
    assert (findings.problem is None) == bool(findings.errors)
    for error in findings.errors:
        assert error.where
        str(error).encode()


@given(at=st.integers(0, 900), piece=st.sampled_from(_PIECES))
def test_a_mutated_text_loads_or_is_a_format_error(at: int, piece: str, tmp_path: Path) -> None:
    whole = json.dumps(DEFINITION, indent=1)
    write_problem(tmp_path / "s/p", whole[:at] + piece + whole[at + 1 :])
    findings = inspect_problem(tmp_path / "s/p")
    assert (findings.problem is None) == bool(findings.errors)
