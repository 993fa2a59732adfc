"""Malformed problems, each with its message: the file, the line, the field, what was expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import FormatError
from harness.formats.problems import load_problem
from tests.formats.problem_files import DEFINITION, WORKLOAD, definition, workload, write_problem


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return `s/p` below the current directory, which messages show as `s/p/...`."""
    monkeypatch.chdir(tmp_path)
    return Path("s/p")


def axes(**changes: Any) -> dict[str, Any]:
    return definition(axes={**DEFINITION["axes"], **changes})


def inputs(**changes: Any) -> dict[str, Any]:
    return definition(inputs={**DEFINITION["inputs"], **changes})


def reference(source: str) -> dict[str, Any]:
    return definition(reference=source)


DTYPES = (
    '"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1", '
    '"float4_e2m1fn_x2", "int64", "int32", "int16", "int8", "bool"'
)
ALLOWED = "expected names, integers, + - * / // % **, unary signs and parentheses"

MALFORMED_DEFINITIONS: dict[str, tuple[Any, str]] = {
    "not JSON": ('{"name": "x",\n "axes": }', "s/p/definition.json:2: not JSON: expecting value at column 10"),
    "a trailing comma": ('{"name": "x",}', "s/p/definition.json:1: not JSON: "),
    "a list": ("[]", "s/p/definition.json:1: [] at the top; expected an object"),
    "a key twice": (
        '{\n "name": "x",\n "axes": {"n": {"type": "var"},\n  "n": {"type": "var"}}}',
        "s/p/definition.json:4: `axes.n` is given twice; expected each key once",
    ),
    "NaN": ('{\n "name": NaN}', "s/p/definition.json:2: `name` is NaN; expected a finite number"),
    "infinity by size": ('{\n "x": [0, 1e999]}', "s/p/definition.json:2: `x[1]` is 1e999; expected a finite number"),
    "too many digits": ('{"x": ' + "9" * 5000 + "}", "s/p/definition.json: not JSON: a number has too many digits"),
    "nested too deeply": ("[" * 100000, "s/p/definition.json:1: nested more than 50 levels deep"),
    "nested too deeply to print": (
        '{"x": ' + "[" * 100 + "]" * 100 + "}",
        "s/p/definition.json:1: nested more than 50 levels deep",
    ),
    "half a surrogate": (
        '{"name": "\\ud800"}',
        "s/p/definition.json: '\\ud800' holds half of a surrogate pair; expected text",
    ),
    "no name": (
        {k: v for k, v in DEFINITION.items() if k != "name"},
        "s/p/definition.json:1: `name` is missing; expected a non-empty string",
    ),
    "an empty name": (definition(name=""), 's/p/definition.json:2: `name` is ""; expected a non-empty string'),
    "a number as name": (definition(name=3), "s/p/definition.json:2: `name` is 3; expected a string"),
    "no outputs": (definition(outputs={}), "s/p/definition.json:36: `outputs` is empty; expected at least one output"),
    "an axis without type": (
        axes(width={"value": 3}),
        's/p/definition.json:8: `axes.width.type` is missing; expected one of "const", "var", "expr"',
    ),
    "an axis of another type": (
        axes(width={"type": "constant", "value": 3}),
        's/p/definition.json:9: `axes.width.type` is "constant"; expected one of "const", "var", "expr"',
    ),
    "a constant without value": (
        axes(width={"type": "const"}),
        "s/p/definition.json:8: `axes.width.value` is missing; expected a number",
    ),
    "a negative constant": (
        axes(width={"type": "const", "value": -1}),
        "s/p/definition.json:10: `axes.width.value` is -1; expected a number of at least 0",
    ),
    "a fractional constant": (
        axes(width={"type": "const", "value": 4.0}),
        "s/p/definition.json:10: `axes.width.value` is 4.0; expected an integer",
    ),
    "a constant in quotes": (
        axes(width={"type": "const", "value": "64"}),
        's/p/definition.json:10: `axes.width.value` is "64"; expected an integer',
    ),
    "an axis that is no name": (
        axes(**{"64": {"type": "var"}}),
        "s/p/definition.json:16: axis `64` is not an identifier; expected letters, digits and `_`",
    ),
    "an expression that calls": (
        axes(cells={"type": "expr", "expression": "max(rows, 1)"}),
        f"s/p/definition.json:14: `axes.cells.expression`: `max(rows, 1)` is not allowed; {ALLOWED}",
    ),
    "an expression of a later axis": (
        definition(axes={"a": {"type": "expr", "expression": "rows"}, **DEFINITION["axes"]}),
        "s/p/definition.json:7: `axes.a.expression` uses `rows`, which is not declared before it",
    ),
    "an expression of no axis": (
        axes(cells={"type": "expr", "expression": "rowz * width"}),
        "s/p/definition.json:14: `axes.cells.expression` uses `rowz`, which is no axis; did you mean `rows`?",
    ),
    "a dtype that is none": (
        inputs(x={"shape": ["rows"], "dtype": "float"}),
        f's/p/definition.json:22: `inputs.x.dtype` is "float"; expected one of {DTYPES}',
    ),
    "a shape that is a string": (
        inputs(x={"shape": "rows", "dtype": "float32"}),
        's/p/definition.json:19: `inputs.x.shape` is "rows"; expected a list',
    ),
    "a shape with a number": (
        inputs(x={"shape": ["rows", 64], "dtype": "float32"}),
        "s/p/definition.json:21: `inputs.x.shape[1]` is 64; expected a string",
    ),
    "a shape with an unknown axis": (
        inputs(x={"shape": ["rows", "widht"], "dtype": "float32"}),
        "s/p/definition.json:21: `inputs.x.shape[1]` is `widht`, neither an axis nor digits; did you mean `width`?",
    ),
    "a shape with a foreign digit": (
        inputs(x={"shape": ["²"], "dtype": "float32"}),
        "`inputs.x.shape[0]` is `²`, neither an axis nor digits; expected one of `rows`, `width`, `cells`",
    ),
    "no shape": (
        inputs(x={"dtype": "float32"}),
        "s/p/definition.json:18: `inputs.x.shape` is missing; expected a list of axes, or null for a scalar",
    ),
    "an input named like an axis": (
        definition(inputs={"rows": {"shape": [], "dtype": "int32"}}, reference="def run(rows): pass"),
        "s/p/definition.json:18: input `rows` is also in `axes`; expected a name of its own",
    ),
    "an input named like an output": (
        definition(inputs={"y": {"shape": [], "dtype": "int32"}}, reference="def run(y): pass"),
        "s/p/definition.json:18: input `y` is also in `outputs`; expected a name of its own",
    ),
    "a reference that is no Python": (
        reference("def run(:\n"),
        "s/p/definition.json:45: `reference` is not Python: invalid syntax at its line 1",
    ),
    "a reference without run": (
        reference("def ran(x, index, scale): pass"),
        "s/p/definition.json:45: `reference` has no top-level function `run`",
    ),
    "run below an if": (
        reference("if True:\n    def run(x, index, scale): pass"),
        "s/p/definition.json:45: `reference` has no top-level function `run`",
    ),
    "run with other parameters": (
        reference("def run(index, x, scale): pass"),
        (
            "s/p/definition.json:45: `reference` defines `run(index, x, scale)`; "
            "expected the inputs in order: `run(x, index, scale)`"
        ),
    ),
    "run with a needed keyword": (
        reference("def run(x, index, scale, *, mode): pass"),
        "s/p/definition.json:45: `reference`: `run` needs the keyword `mode`; expected no required keyword arguments",
    ),
    "an entry point that is not there": (
        definition(custom_inputs_entrypoint="make"),
        "s/p/definition.json:49: `custom_inputs_entrypoint` is `make`; expected a top-level function of `reference`",
    ),
    "an entry point of one parameter": (
        definition(custom_inputs_entrypoint="make", reference="def run(x, index, scale): pass\ndef make(axes): pass"),
        "s/p/definition.json:49: `make` takes 1 positional arguments; expected `make(axes_and_scalars, device)`",
    ),
    "a constraint that is no expression": (
        definition(constraints=["rows = 2"]),
        "s/p/definition.json:47: `constraints[0]` is not an expression: ",
    ),
    "a constraint that is a number": (
        definition(constraints=[2]),
        "s/p/definition.json:47: `constraints[0]` is 2; expected a string",
    ),
}


@pytest.mark.parametrize("name", MALFORMED_DEFINITIONS)
def test_a_malformed_definition_is_named_with_its_line_and_field(name: str, directory: Path) -> None:
    content, message = MALFORMED_DEFINITIONS[name]
    write_problem(directory, content)
    with pytest.raises(FormatError) as caught:
        load_problem(directory)
    assert message in str(caught.value)


TENSORS = {"x": {"type": "random"}, "index": {"type": "random"}}
SCALE = {"scale": {"type": "scalar", "value": 0.5}}


def sources(**changes: Any) -> dict[str, Any]:
    return workload(inputs={**WORKLOAD["inputs"], **changes})


MALFORMED_WORKLOADS: dict[str, tuple[tuple[Any, ...], str]] = {
    "an empty file": (("",), "s/p/workload.jsonl: no workload; expected one JSON object a line, at least one"),
    "not JSON": ((WORKLOAD, "{"), "s/p/workload.jsonl:2: not JSON: "),
    "a list": ((WORKLOAD, "", "[1]"), "s/p/workload.jsonl:3: [1] at the top; expected an object"),
    "a key twice": (
        ('{"uuid": "a", "uuid": "b"}',),
        "s/p/workload.jsonl:1: `uuid` is given twice; expected each key once",
    ),
    "no uuid": (({"axes": {}, "inputs": {}},), "s/p/workload.jsonl:1: `uuid` is missing; expected a non-empty string"),
    "a uuid twice": (
        (WORKLOAD, WORKLOAD),
        's/p/workload.jsonl:2: `uuid` "w0" is also that of line 1; expected one of its own',
    ),
    "an axis missing": (
        (workload(axes={}),),
        "s/p/workload.jsonl:1: `axes.rows` is missing; expected the size of every var axis",
    ),
    "a constant axis given": (
        (workload(axes={"rows": 2, "width": 64}),),
        "s/p/workload.jsonl:1: `axes.width` is a const axis; expected sizes of var axes only",
    ),
    "an unknown axis": (
        (workload(axes={"rows": 2, "row": 2}),),
        "s/p/workload.jsonl:1: `axes.row` is no axis of the definition; did you mean `rows`?",
    ),
    "a negative size": (
        (workload(axes={"rows": -2}),),
        "s/p/workload.jsonl:1: `axes.rows` is -2; expected a number of at least 0",
    ),
    "a size that is true": (
        (workload(axes={"rows": True}),),
        "s/p/workload.jsonl:1: `axes.rows` is true; expected an integer",
    ),
    "sizes too large together": (
        (workload(axes={"rows": 2**62}),),
        "s/p/workload.jsonl:1: axis `cells`: `rows * width` is too large; expected at most 9223372036854775807",
    ),
    "a constraint broken": (
        (workload(axes={"rows": 3}),),
        "s/p/workload.jsonl:1: `axes` break the definition's constraint `rows % 2 == 0` (rows=3)",
    ),
    "an input missing": (
        (workload(inputs=TENSORS),),
        "s/p/workload.jsonl:1: `inputs.scale` is missing; expected a source for every input",
    ),
    "an unknown input": (
        (sources(scales={"type": "random"}),),
        "s/p/workload.jsonl:1: `inputs.scales` is no input of the definition; did you mean `scale`?",
    ),
    "an unknown source": (
        (sources(x={"type": "zeros"}),),
        's/p/workload.jsonl:1: `inputs.x.type` is "zeros"; expected one of "random", "scalar", "safetensors", "custom"',
    ),
    "a scalar for a tensor": (
        (sources(x={"type": "scalar", "value": 1}),),
        "s/p/workload.jsonl:1: `inputs.x` is a scalar; expected a tensor's source, as its shape is not null",
    ),
    "a scalar without value": (
        (sources(scale={"type": "scalar"}),),
        "s/p/workload.jsonl:1: `inputs.scale.value` is missing; expected a number",
    ),
    "a scalar in quotes": (
        (sources(scale={"type": "scalar", "value": "1"}),),
        's/p/workload.jsonl:1: `inputs.scale.value` is "1"; expected a number or true or false',
    ),
    "a truth for a float": (
        (sources(scale={"type": "scalar", "value": True}),),
        "s/p/workload.jsonl:1: `inputs.scale.value` is true; expected a number (float32)",
    ),
    "custom for some": (
        (sources(x={"type": "custom"}),),
        "s/p/workload.jsonl:1: `inputs.index` is random while `x` is custom; expected all custom or none",
    ),
    "custom without entry point": (
        (workload(inputs={name: {"type": "custom"} for name in ("x", "index", "scale")}),),
        "s/p/workload.jsonl:1: `inputs.x` is custom; expected `custom_inputs_entrypoint` in the definition",
    ),
    "a file that climbs": (
        (sources(x={"type": "safetensors", "path": "../t.safetensors", "tensor_key": "x"}),),
        (
            "s/p/workload.jsonl:1: `inputs.x`: path `../t.safetensors` leaves its directory; "
            "expected one relative to the problem or the data root"
        ),
    ),
    "an absolute file": (
        (sources(x={"type": "safetensors", "path": "/etc/passwd", "tensor_key": "x"}),),
        "s/p/workload.jsonl:1: `inputs.x`: path `/etc/passwd` leaves its directory; ",
    ),
    "a file that is not there": (
        (sources(x={"type": "safetensors", "path": "t.safetensors", "tensor_key": "x"}),),
        (
            "s/p/workload.jsonl:1: `inputs.x`: no file `t.safetensors` in the problem directory\n"
            "  if the data is in another directory, set `data_root` in harness.yaml"
        ),
    ),
    "a file for a scalar": (
        (sources(scale={"type": "safetensors", "path": "t.safetensors", "tensor_key": "x"}),),
        "s/p/workload.jsonl:1: `inputs.scale` is a tensor's file; expected a scalar, as its shape is null",
    ),
    "a ratio above one": (
        (workload(tolerance={"required_matched_ratio": 1.5}),),
        "s/p/workload.jsonl:1: `tolerance.required_matched_ratio` is 1.5; expected a number of at most 1",
    ),
    "a negative tolerance": (
        (workload(tolerance={"max_atol": -1}),),
        "s/p/workload.jsonl:1: `tolerance.max_atol` is -1; expected a number of at least 0",
    ),
}


@pytest.mark.parametrize("name", MALFORMED_WORKLOADS)
def test_a_malformed_workload_is_named_with_its_line_and_field(name: str, directory: Path) -> None:
    lines, message = MALFORMED_WORKLOADS[name]
    write_problem(directory, DEFINITION, *lines)
    with pytest.raises(FormatError) as caught:
        load_problem(directory)
    assert message in str(caught.value)
