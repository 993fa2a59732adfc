from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from harness.cli.problem_commands.importing import ask_for_trust
from harness.cli.problem_commands.problems import problems
from harness.errors import ConfigurationError
from tests.command_line import call_harness
from tests.formats.problem_files import SOLUTION, definition, workload, write_problem, write_solution

PROBLEMS = Path(__file__).parents[2] / "problems"
FLAT_AXES = {"rows": {"type": "var"}, "width": {"type": "const", "value": 64}}
FLAT_INPUTS = {
    "x": {"shape": ["rows", "width"], "dtype": "float32"},
    "index": {"shape": ["rows"], "dtype": "int32"},
    "scale": {"shape": None, "dtype": "float32"},
}
FLAT_WORKLOAD = workload()
"""FlashInfer-Bench's definitions have no expressions."""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make a workspace of a git directory and harness.yaml, which suffice for `harness problems`."""
    (tmp_path / "ws/.git").mkdir(parents=True)
    (tmp_path / "ws/harness.yaml").write_text("run: main\n")
    (tmp_path / "ws/problems").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def harness(root: Path) -> Run:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        completed = call_harness("problems", *arguments, cwd=root)
        assert completed.returncode == code, completed.stdout + completed.stderr
        return completed

    return run


def test_problems_are_listed_with_their_state(root: Path, harness: Run) -> None:
    assert "no problems" in harness("list").stdout
    write_solution(write_problem(root / "problems/L1/good") / "solutions/cpu")
    write_problem(root / "problems/L2/bad", "{")
    lines = harness("list").stdout.splitlines()
    assert lines[2].split() == ["L1/good", "elementwise", "forward", "1", "cpu", "ok"]
    assert lines[3].split() == ["L2/bad", "-", "-", "0", "-", "1", "error"]
    (row,) = json.loads(harness("list", "L1/*", "--json").stdout)
    assert (row["problem"], row["op_type"], row["workloads"], row["errors"]) == ("L1/good", "elementwise", 1, 0)
    assert (row["solutions"], row["direction"], row["tags"]) == (["cpu"], "forward", [])


def test_problems_are_found_by_family_direction_dtype_tag_and_suite(root: Path, harness: Run) -> None:
    write_problem(root / "problems/a/norm", definition(tags=["llm", "norm", "forward", "fused"], x_profile="small"))
    write_problem(root / "problems/a/norm_backward", definition(tags=["llm", "norm", "backward"]))
    write_problem(root / "problems/b/conv", definition(tags=["vision", "conv", "forward", "int4"]))

    def listed(*conditions: str) -> list[str]:
        return [row["problem"] for row in json.loads(harness("list", "--json", *conditions).stdout)]

    assert listed("--family", "llm") == ["a/norm", "a/norm_backward"]
    assert listed("--direction", "backward") == ["a/norm_backward"]
    assert listed("--dtype", "int4") == ["b/conv"]
    assert listed("--dtype", "float32", "--suite", "a") == ["a/norm", "a/norm_backward"]
    assert listed("--tag", "norm", "--tag", "fused") == ["a/norm"]
    assert listed("b/*", "--family", "llm") == []
    assert "no problem meets all conditions" in harness("list", "--tag", "none").stdout
    assert harness("list", "a/norm").stdout.split()[-1] == "small"


def test_suites_have_their_numbers_and_families(root: Path, harness: Run) -> None:
    assert "no problems" in harness("suites").stdout
    write_problem(root / "problems/a/norm", definition(tags=["llm", "norm", "forward"]))
    write_problem(root / "problems/a/norm_backward", definition(tags=["moe", "norm", "backward"]))
    lines = harness("suites").stdout.splitlines()
    assert lines[2].split()[:4] == ["a", "2", "1", "2"]
    assert "llm, moe" in lines[2]


def test_shipped_suites_are_shown_anywhere(tmp_path: Path) -> None:
    completed = call_harness("problems", "suites", "--shipped", "--json", cwd=tmp_path)
    suites = {row["suite"]: row for row in json.loads(completed.stdout)}
    assert suites["starter"]["problems"] == 6
    assert suites["quantised"]["problems"] >= 33
    assert "nvfp4_linear_gated" in {path.name for path in (PROBLEMS / "moe").iterdir()}


def test_show_has_origin_tags_and_notes(root: Path, harness: Run) -> None:
    shutil.copytree(PROBLEMS / "moe/fp8_block_scaled_experts", root / "problems/moe/fp8_block_scaled_experts")
    text = harness("show", "fp8_block*").stdout
    assert "model     deepseek-ai/DeepSeek-V3" in text
    assert "origin    written by hand" in text
    assert "notes     README.md" in text
    assert "gate_up: float8_e4m3fn [local_experts, gate_up_size, hidden]  Gate rows first, then up." in text
    assert all(len(line) <= 100 for line in text[text.index("workload ") :].splitlines()), "no column for each tensor"
    data = json.loads(harness("show", "fp8_block*", "--json").stdout)
    assert data["origin"]["licence"] == "Apache-2.0"
    assert data["tags"][0] == "moe"


def test_a_problem_is_shown_with_concrete_shapes_and_bytes(root: Path, harness: Run) -> None:
    write_problem(root / "problems/L1/p", definition(tags=[], odd=1), workload(), workload(uuid="w1", axes={"rows": 2}))
    text = harness("show", "L1/p").stdout
    assert "width = 64" in text
    assert "cells = rows * width" in text
    assert "x: float32 [rows, width]" in text
    assert "scale: float32 scalar" in text
    assert "rows % 2 == 0" in text
    row = next(line for line in text.splitlines() if line.startswith("w0"))
    assert row.split() == ["w0", "rows=8", "8x64", "512", "0.5", "8x64", "6.14", "kB"]
    assert "warning: problems/L1/p/definition.json: unknown keys are kept and not used: odd" in text
    data = json.loads(harness("show", "p", "--json").stdout)
    assert [w["bytes"] for w in data["workloads"]] == [6144, 1536]
    assert data["axes"]["cells"] == {"type": "expr", "expression": "rows * width"}
    assert data["digest"].startswith("sha256:")


def test_show_of_a_broken_problem_names_it(root: Path, harness: Run) -> None:
    write_problem(root / "problems/L1/p", definition(name=""))
    completed = harness("show", "p", code=2)
    assert completed.stderr == (
        'harness: problems/L1/p/definition.json:2: `name` is ""; expected a non-empty string\n'
        "  see all with `harness problems check L1/p`\n"
    )


def test_check_prints_every_error_and_answers_no(root: Path, harness: Run) -> None:
    write_problem(root / "problems/L1/good")
    assert harness("check").stdout == "ok   L1/good  1 workload\n1 problem, 0 with errors\n"
    write_problem(root / "problems/L1/bad", definition(name=""), "{", workload(axes={"rows": -2}))
    write_solution(write_problem(root / "problems/L1/odd") / "solutions/cpu", SOLUTION.replace("cpp\n", "c++\n", 1))
    out = harness("check", code=1).stdout
    assert out.splitlines() == [
        "BAD  L1/bad  0 workloads",
        '     problems/L1/bad/definition.json:2: `name` is ""; expected a non-empty string',
        (
            "     problems/L1/bad/workload.jsonl:1: not JSON: "
            "expecting property name enclosed in double quotes at column 2"
        ),
        "     problems/L1/bad/workload.jsonl:2: `axes.rows` is -2; expected a number of at least 0",
        "ok   L1/good  1 workload",
        "BAD  L1/odd  1 workload",
        (
            '     problems/L1/odd/solutions/cpu/solution.yaml:1: `language` is "c++"; '
            'expected one of "cuda", "triton", "cute_dsl", "pytorch", "cuda_cpp", "cpp"'
        ),
        "3 problems, 2 with errors",
    ]
    rows: list[dict[str, Any]] = json.loads(harness("check", "L1/*", "--json", code=1).stdout)
    assert [(row["problem"], row["ok"], len(row["errors"])) for row in rows] == [
        ("L1/bad", False, 3), ("L1/good", True, 0), ("L1/odd", False, 1),
    ]  # fmt: skip
    harness("check", "good")
    assert "no problem matches `none*`" in harness("check", "none*", code=1).stderr


def test_check_takes_a_directory_outside_any_workspace(tmp_path: Path) -> None:
    write_problem(tmp_path / "s/p")
    completed = call_harness("problems", "check", "s/p", cwd=tmp_path)
    assert (completed.returncode, completed.stdout) == (0, "ok   s/p  1 workload\n1 problem, 0 with errors\n")


def test_import_reports_usable_problems_and_the_reasons_of_the_others(harness: Run, tmp_path: Path) -> None:
    write_problem(tmp_path / "bench/L1/good")
    write_problem(tmp_path / "bench/L1/bad", "[]")
    out = harness("import", "--trust", str(tmp_path / "bench"), code=1).stdout.splitlines()
    assert out[2].split(maxsplit=3)[:3] == ["L1/bad", "no", "0"]
    assert out[2].endswith("definition.json:1: [] at the top; expected an object")
    assert out[3].split() == ["L1/good", "yes", "1"]
    assert out[-1] == "1 of 2 problems imported, 1 usable on cpu"
    rows = json.loads(harness("import", "--trust", str(tmp_path / "bench/L1/good"), "--suite", "L9", "--json").stdout)
    assert [(row["problem"], row["usable"]) for row in rows] == [("L9/good", True)]
    assert "overwrite it with --replace" in harness("import", "--trust", str(tmp_path / "bench/L1/good"), code=1).stdout
    harness("import", "--trust", str(tmp_path / "bench/L1/good"), "--replace")


def test_nothing_is_imported_whose_code_is_not_trusted(root: Path, harness: Run, tmp_path: Path) -> None:
    write_problem(tmp_path / "bench/L1/good")
    definitions, workloads = tmp_path / "traces/definitions/norm", tmp_path / "traces/workloads/norm"
    definitions.mkdir(parents=True)
    workloads.mkdir(parents=True)
    (definitions / "scaled_rows.json").write_text(json.dumps(definition(axes=FLAT_AXES, inputs=FLAT_INPUTS)))
    record = {"definition": "scaled_rows", "workload": FLAT_WORKLOAD, "solution": None, "evaluation": None}
    (workloads / "scaled_rows.jsonl").write_text(json.dumps(record) + "\n")
    for source in ("bench", "traces"):
        refused = harness("import", str(tmp_path / source), code=2).stderr
        assert "not imported: the judge runs references and input functions of problems with your rights" in refused
        assert "read the references, then import with --trust" in refused
        assert list((root / "problems").iterdir()) == []
    assert "1 of 1 problem imported" in harness("import", "--trust", str(tmp_path / "traces")).stdout
    assert (root / "problems/traces/scaled_rows/workload.jsonl").is_file()


def test_at_a_terminal_the_import_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda text, **_: "without a sandbox. Import the problems of" in text)
    ask_for_trust(tmp_path)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    with pytest.raises(ConfigurationError, match="their code is not trusted"):
        ask_for_trust(tmp_path)


def test_a_solution_json_is_filed_under_its_problem_and_target(root: Path, harness: Run, tmp_path: Path) -> None:
    write_problem(root / "problems/L1/p")
    solution = {
        "name": "s", "definition": "scaled_rows", "author": "a",
        "spec": {
            "languages": ["pytorch"], "target_hardware": ["B200"], "entry_point": "main.py::run",
            "dependencies": ["einops"],
        },
        "sources": [{"path": "main.py", "content": "def run(x, index, scale, y): pass\n"}],
    }  # fmt: skip
    path = tmp_path / "solution.json"
    path.write_text(json.dumps(solution))
    assert "warning: its dependencies are not installed: einops" in harness("import", str(path)).stdout
    assert (root / "problems/L1/p/solutions/b200/main.py").is_file()
    assert "a solution is there already" in harness("import", str(path), code=2).stderr
    (row,) = json.loads(harness("import", str(path), "--target", "h200", "--problem", "L1/p", "--json").stdout)
    assert (row["problem"], row["target"]) == ("L1/p", "h200")
    assert "`../x` is not a target" in harness("import", str(path), "--target", "../x", code=2).stderr


def test_outside_a_workspace_the_way_in_is_named(tmp_path: Path) -> None:
    completed = call_harness("problems", "list", cwd=tmp_path)
    assert completed.returncode == 2
    assert "make one with `harness init DIR`, or change into one" in completed.stderr


def test_bounds_are_printed_for_each_workload(root: Path, harness: Run) -> None:
    write_problem(root / "problems/L1/p", definition(), workload(), workload(uuid="w1", axes={"rows": 2**14}))
    rows = json.loads(harness("sol", "L1/p", "--target", "h200", "--json").stdout)
    assert [row["workload"] for row in rows] == ["w0", "w1"]
    assert rows[0]["sol_us"] < rows[1]["sol_us"]
    assert all(0 < row["floor_us"] <= row["sol_us"] for row in rows)
    assert rows[1]["bytes"] >= 2 * 2**14 * 64 * 4


def test_a_workload_without_a_bound_has_the_reason_in_its_row(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = "def run(x, index, scale):\n    raise ValueError('no way')\n"
    write_problem(root / "problems/L1/p", definition(reference=impossible), workload())
    write_problem(root / "problems/L1/q", definition(), workload())
    monkeypatch.chdir(root)
    completed = CliRunner().invoke(problems, ["sol", "L1/p", "--target", "h200", "--json"], catch_exceptions=False)
    assert completed.exit_code == 0
    (row,) = json.loads(completed.output)
    assert (row["sol_us"], row["floor_us"], row["rates"]) == (None, None, None)
    assert "ValueError: no way" in row["reason"]
    assert "no way" in CliRunner().invoke(problems, ["sol", "L1/p", "--target", "h200"]).output
    (row,) = json.loads(CliRunner().invoke(problems, ["sol", "L1/q", "--target", "h200", "--json"]).output)
    assert (row["reason"], row["rates"], row["limited_by"]) == (None, "listed", "memory")
    assert row["times_us"]["memory"] == row["sol_us"]
    completed = CliRunner().invoke(problems, ["sol", "L1/q", "--target", "gb200"])
    assert isinstance(completed.exception, ConfigurationError)
    assert "harness hardware measure" in str(completed.exception)
