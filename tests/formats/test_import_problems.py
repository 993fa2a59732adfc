from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigurationError, FormatError
from harness.formats.problem_exchange import import_problems, problem_named
from harness.formats.problems import list_problems, load_problem
from harness.formats.solution_json import solution_from_json
from harness.formats.solutions import load_solution
from harness.workspace.shipped_files import STARTER, shipped_problems
from tests.formats.problem_files import (
    DEFINITION,
    WORKLOAD,
    definition,
    workload,
    write_problem,
    write_safetensors,
    write_solution,
)


@pytest.fixture
def workspace_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def left_behind(problems: Path) -> list[str]:
    return [str(path) for path in problems.rglob(".import-*")]


def test_a_problem_is_imported_unchanged(workspace_dir: Path) -> None:
    source = write_problem(workspace_dir / "bench/L1/scaled_rows")
    (source / "reference.py").write_text("x")
    (source / "solution_triton.json").write_text("{}")
    results = import_problems(source, workspace_dir / "problems")
    assert [(result.key, result.usable, result.workloads) for result in results] == [("L1/scaled_rows", True, 1)]
    problem = load_problem(workspace_dir / "problems/L1/scaled_rows")
    assert problem.key == "L1/scaled_rows"
    target = workspace_dir / "problems/L1/scaled_rows"
    assert (target / "definition.json").read_bytes() == (source / "definition.json").read_bytes()
    assert sorted(path.name for path in target.iterdir()) == ["definition.json", "reference.py", "workload.jsonl"]
    assert left_behind(workspace_dir) == []


def test_of_a_workspace_only_its_problems_are_imported(workspace_dir: Path) -> None:
    write_problem(workspace_dir / "kernels/problems/L1/scaled_rows")
    write_problem(workspace_dir / "kernels/workspaces/w01/L1/scaled_rows/problems/L1/scaled_rows")
    write_problem(workspace_dir / "kernels/.harness/snapshots/0123")
    results = import_problems(workspace_dir / "kernels", workspace_dir / "problems")
    assert [result.key for result in results] == ["L1/scaled_rows"]


def test_problems_with_errors_are_reported_and_the_others_imported(workspace_dir: Path) -> None:
    write_problem(workspace_dir / "bench/L1/good")
    write_problem(workspace_dir / "bench/L2/bad", definition(name=3))
    write_problem(workspace_dir / "bench/L2/climbs", DEFINITION, workload(axes={"rows": 1}))
    results = {result.key: result for result in import_problems(workspace_dir / "bench", workspace_dir / "problems")}
    assert [key for key, result in results.items() if result.usable] == ["L1/good"]
    assert str(results["L2/bad"].errors[0]) == "bench/L2/bad/definition.json:2: `name` is 3; expected a string"
    assert "break the definition's constraint" in results["L2/climbs"].errors[0].message
    assert list_problems(workspace_dir / "problems") == ["L1/good"]
    assert sorted(path.name for path in (workspace_dir / "problems").iterdir()) == ["L1"]


def test_the_suite_can_be_chosen_and_names_are_made_plain(workspace_dir: Path) -> None:
    source = write_problem(workspace_dir / "odd suite" / "01 scaled rows")
    assert [result.key for result in import_problems(source, workspace_dir / "problems")] == [
        "odd_suite/01_scaled_rows"
    ]
    assert [result.key for result in import_problems(source, workspace_dir / "problems", suite="L9")] == [
        "L9/01_scaled_rows"
    ]


def test_an_existing_problem_is_kept_without_replace(workspace_dir: Path) -> None:
    source = write_problem(workspace_dir / "L1/p")
    import_problems(source, workspace_dir / "problems")
    write_solution(workspace_dir / "problems/L1/p/solutions/cpu")
    write_problem(source, definition(description="newer"))
    (refused,) = import_problems(source, workspace_dir / "problems")
    assert [str(error) for error in refused.errors] == [
        "problems/L1/p: `L1/p` is there already\n  overwrite it with --replace"
    ]
    (replaced,) = import_problems(source, workspace_dir / "problems", replace=True)
    assert replaced.usable
    problem = load_problem(workspace_dir / "problems/L1/p")
    assert problem.definition.description == "newer"
    assert load_solution(workspace_dir / "problems/L1/p/solutions/cpu").sources == ("kernel.cpp",)


def test_a_link_is_refused_and_not_followed(workspace_dir: Path) -> None:
    source = write_problem(workspace_dir / "L1/p")
    (workspace_dir / "secret").write_text("secret")
    (source / "data").symlink_to(workspace_dir / "secret")
    (results,) = import_problems(source, workspace_dir / "problems")
    assert [str(error) for error in results.errors] == ["L1/p/data: a symbolic link; expected plain files in a problem"]
    assert not (workspace_dir / "problems/L1").exists()


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_nothing_to_import_is_an_error(name: str, workspace_dir: Path) -> None:
    (workspace_dir / "empty").mkdir()
    with pytest.raises(FormatError, match="expected problems"):
        import_problems(workspace_dir / name, workspace_dir / "problems")


def trace_set(root: Path, operation: str, value: dict[str, Any], *lines: Any) -> Path:
    path = root / "definitions" / operation / f"{value['name']}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    workloads = root / "workloads" / operation / f"{value['name']}.jsonl"
    workloads.parent.mkdir(parents=True, exist_ok=True)
    workloads.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root


def flat() -> dict[str, Any]:
    """Return a definition as in FlashInfer-Bench: no expressions, a parent beside var axes, an older dtype."""
    value = definition(tags=["status:verified"], constraints=None)
    value["axes"] = {"rows": {"type": "var", "parent": None}, "width": {"type": "const", "value": 64}}
    value["inputs"]["index"] = {"shape": ["rows"], "dtype": "float8_e4m3"}
    return value


def test_workloads_of_a_trace_set_are_extracted_from_their_records(workspace_dir: Path) -> None:
    record = {"definition": "scaled_rows", "solution": None, "evaluation": None, "workload": WORKLOAD}
    root = trace_set(workspace_dir / "flashinfer-trace", "elementwise", flat(), record, workload(uuid="w1"))
    (results,) = import_problems(root, workspace_dir / "problems")
    assert (results.key, results.usable, results.workloads) == ("flashinfer-trace/scaled_rows", True, 2)
    problem = load_problem(workspace_dir / "problems" / results.key)
    assert [w.uuid for w in problem.workloads] == ["w0", "w1"]
    assert problem.definition.inputs["index"].dtype == "float8_e4m3fn"
    assert problem.workloads[0].tolerance.max_atol == 0.01


def test_a_trace_sets_tensors_are_found_from_its_root(workspace_dir: Path) -> None:
    inputs = {**WORKLOAD["inputs"], "x": {"type": "safetensors", "path": "./blob/w.safetensors", "tensor_key": "x"}}
    root = trace_set(workspace_dir / "traces", "elementwise", flat(), workload(inputs=inputs))
    write_safetensors(root / "blob/w.safetensors", {"x": ("F32", [8, 64])})
    (results,) = import_problems(root, workspace_dir / "problems")
    assert results.usable
    assert results.warnings[-1] == (
        "its workloads read data from traces: set `data_root` in harness.yaml to keep it in reach"
    )


def test_a_trace_set_without_workloads_names_the_missing_file(workspace_dir: Path) -> None:
    root = trace_set(workspace_dir / "traces", "elementwise", flat(), WORKLOAD)
    (root / "workloads/elementwise/scaled_rows.jsonl").unlink()
    (results,) = import_problems(root, workspace_dir / "problems")
    assert [str(error) for error in results.errors] == ["traces/workloads/elementwise/scaled_rows.jsonl: no such file"]


def record(**changes: Any) -> dict[str, Any]:
    """Return a trace: the workload of one run of one solution, with its result."""
    return {
        "definition": "scaled_rows",
        "solution": "scaled_rows_triton_v1",
        "workload": dict(WORKLOAD),
        "evaluation": {"status": "PASSED", "log": "", "environment": {"hardware": "NVIDIA H100", "libs": {}}},
        **changes,
    }


def test_workloads_in_traces_are_imported_without_repetition(workspace_dir: Path) -> None:
    root = trace_set(workspace_dir / "traces", "elementwise", flat(), WORKLOAD)
    shutil.rmtree(root / "workloads")
    for author, lines in {
        "ann": [record(), record(workload=workload(uuid="w1"))],
        "bob": [record(solution="other")],
    }.items():
        file = root / "traces" / author / "elementwise/scaled_rows.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (results,) = import_problems(root, workspace_dir / "problems")
    assert (results.usable, results.workloads) == (True, 2)
    assert [item.uuid for item in load_problem(workspace_dir / "problems" / results.key).workloads] == ["w0", "w1"]


def test_workloads_of_another_layout_are_found_by_the_name_of_the_definition(workspace_dir: Path) -> None:
    root = trace_set(workspace_dir / "traces", "elementwise", flat(), WORKLOAD)
    (root / "workloads/serving").mkdir()
    (root / "workloads/elementwise/scaled_rows.jsonl").rename(root / "workloads/serving/scaled_rows.jsonl")
    (results,) = import_problems(root, workspace_dir / "problems")
    assert (results.usable, results.workloads) == (True, 1)


def test_a_record_of_another_definition_is_refused(workspace_dir: Path) -> None:
    root = trace_set(workspace_dir / "traces", "elementwise", flat(), record(), record(definition="other"))
    (results,) = import_problems(root, workspace_dir / "problems")
    where = "traces/workloads/elementwise/scaled_rows.jsonl:2"
    message = '`definition` is "other"; expected `scaled_rows`, the file\'s own'
    assert [str(error) for error in results.errors] == [f"{where}: {message}"]


def test_a_definition_is_found_by_its_name(workspace_dir: Path) -> None:
    write_problem(workspace_dir / "L1/a", definition(name="one"))
    write_problem(workspace_dir / "L1/b", definition(name="two"))
    write_problem(workspace_dir / "L2/b", definition(name="two"))
    write_problem(workspace_dir / "L2/broken", "{")
    keys = list_problems(workspace_dir)
    assert problem_named("one", workspace_dir, keys) == "L1/a"
    with pytest.raises(ConfigurationError, match="2 problems have the definition name `two`"):
        problem_named("two", workspace_dir, keys)
    with pytest.raises(ConfigurationError, match="no problem has the definition name `three`"):
        problem_named("three", workspace_dir, keys)


def solution_document(**changes: Any) -> dict[str, Any]:
    spec = {
        "languages": ["triton"],
        "target_hardware": ["B200"],
        "entry_point": "main.py::run",
        "dependencies": [],
        **changes.pop("spec", {}),
    }
    sources = [{"path": "main.py", "content": "def run(x, index, scale, y):\n    pass\n"}]
    return {
        "name": "s",
        "definition": "scaled_rows",
        "author": "a",
        "spec": {key: value for key, value in spec.items() if value is not None},
        "sources": sources,
        **changes,
    }


def write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1))
    return path


def test_a_solution_json_becomes_a_directory(workspace_dir: Path) -> None:
    path = write_json(workspace_dir / "solution.json", solution_document(spec={"destination_passing_style": False}))
    solution = load_solution(solution_from_json(path, workspace_dir / "out/b200"))
    assert solution.spec.language == "triton"
    assert solution.spec.entry == "main.py::run"
    assert not solution.spec.destination_passing
    assert solution.spec.notes == "s by a"
    assert solution.sources == ("main.py",)
    assert left_behind(workspace_dir) == []


def test_a_compiled_solution_keeps_each_compilers_flags(workspace_dir: Path) -> None:
    value = solution_document(
        spec={
            "languages": ["cuda_cpp", "cublas"],
            "entry_point": "k.cu::run",
            "binding": "torch",
            "compile_options": {"cflags": ["-O2"], "cuda_cflags": ["--use_fast_math"], "ld_flags": ["-lcublas"]},
        },
        sources=[{"path": "k.cu", "content": "void run() {}"}],
    )
    spec = load_solution(
        solution_from_json(write_json(workspace_dir / "solution.json", value), workspace_dir / "out")
    ).spec
    assert spec.language == "cuda_cpp"
    assert (spec.compile.flags, spec.compile.cuda_flags) == (("-O2",), ("--use_fast_math",))
    assert spec.compile.link_flags == ("-lcublas",)
    assert spec.binding == "torch"


@pytest.mark.parametrize(
    ("spec_changes", "binding"),
    [
        ({"languages": ["cuda_cpp"]}, "torch"),  # SOL-ExecBench's default
        ({"languages": ["cutlass"], "binding": "tvm_ffi"}, "tvm_ffi"),
        ({"languages": None, "language": "cuda"}, "tvm_ffi"),  # FlashInfer-Bench's
        ({"languages": None, "language": "cuda", "binding": "tvm-ffi"}, "tvm_ffi"),
        ({"languages": None, "language": "cpp", "binding": "torch"}, "torch"),
    ],
)
def test_a_compiled_solution_gets_the_default_binding_of_its_benchmark(
    workspace_dir: Path, spec_changes: Any, binding: str
) -> None:
    source = [{"path": "k.cu", "content": "void run() {}"}]
    value = solution_document(spec={"entry_point": "k.cu::run", **spec_changes}, sources=source)
    solution = load_solution(
        solution_from_json(write_json(workspace_dir / "solution.json", value), workspace_dir / "out")
    )
    assert (solution.spec.language, solution.spec.binding) == ("cuda_cpp", binding)
    assert f"binding: {binding}" in (workspace_dir / "out/solution.yaml").read_text()


def test_missing_flags_have_the_defaults_of_the_benchmark(workspace_dir: Path) -> None:
    spec = {"languages": ["cuda_cpp"], "entry_point": "k.cu::run", "compile_options": {"cflags": ["-O2"]}}
    value = solution_document(spec=spec, sources=[{"path": "k.cu", "content": "void run() {}"}])
    compile_options = load_solution(
        solution_from_json(write_json(workspace_dir / "solution.json", value), workspace_dir / "out")
    ).spec.compile
    assert (compile_options.flags, compile_options.cuda_flags, compile_options.link_flags) == (
        ("-O2",),
        ("-O3", "--use_fast_math"),
        ("-lcuda",),
    )


def test_the_binding_of_a_python_solution_is_ignored(workspace_dir: Path) -> None:
    value = solution_document(spec={"binding": "torch"})
    assert (
        load_solution(
            solution_from_json(write_json(workspace_dir / "s.json", value), workspace_dir / "out")
        ).spec.binding
        is None
    )


def test_the_language_key_of_flashinfer_bench_is_read(workspace_dir: Path) -> None:
    value = solution_document(spec={"languages": None, "language": "python"})
    path = write_json(workspace_dir / "solution.json", value)
    assert load_solution(solution_from_json(path, workspace_dir / "out")).spec.language == "pytorch"


MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "no name": (
        {key: value for key, value in solution_document().items() if key != "name"},
        "solution.json:1: `name` is missing; expected a non-empty string",
    ),
    "no language": (
        solution_document(spec={"languages": None}),
        "solution.json:5: `spec.languages` is missing; expected a list of languages",
    ),
    "a language of neither": (
        solution_document(spec={"languages": ["fortran"]}),
        'solution.json:7: `spec.languages[0]` is "fortran"; expected one of "pytorch", "triton"',
    ),
    "families mixed": (
        solution_document(spec={"languages": ["triton", "cuda_cpp"]}),
        (
            'solution.json:6: `spec.languages` mixes ["triton", "cuda_cpp"]; '
            "expected Python languages or C++ languages, not both"
        ),
    ),
    "a language that is not run": (
        solution_document(spec={"languages": ["cutile"]}),
        "solution.json: language `cutile` is not run here; expected one of cute_dsl, triton, pytorch",
    ),
    "another binding": (
        solution_document(spec={"binding": "nanobind"}),
        'solution.json:14: `spec.binding` is "nanobind"; expected one of "tvm_ffi", "tvm-ffi", "torch"',
    ),
    "a binding that is a list": (
        solution_document(spec={"binding": ["torch"]}),
        'solution.json:14: `spec.binding` is ["torch"]; expected one of "tvm_ffi", "tvm-ffi", "torch"',
    ),
    "flags that are a string": (
        solution_document(spec={"compile_options": {"cuda_cflags": "-O3"}}),
        'solution.json:15: `spec.compile_options.cuda_cflags` is "-O3"; expected a list',
    ),
    "an entry without file": (
        solution_document(spec={"entry_point": "run"}),
        'solution.json:12: `spec.entry_point` is "run"; expected `file::function` with one of the sources as its file',
    ),
    "no hardware": (
        solution_document(spec={"target_hardware": None}),
        "solution.json:5: `spec.target_hardware` is missing; expected a list of names",
    ),
    "no sources": (solution_document(sources=[]), "solution.json:15: `sources` is []; expected at least 1 of them"),
    "a source without content": (
        solution_document(sources=[{"path": "main.py", "content": ""}]),
        'solution.json:18: `sources[0].content` is ""; expected a non-empty string',
    ),
    "a source that climbs": (
        solution_document(sources=[{"path": "../main.py", "content": "x"}]),
        "solution.json:17: `sources[0].path`: the source path `../main.py` is not plain; ",
    ),
    "an absolute source": (
        solution_document(sources=[{"path": "/tmp/main.py", "content": "x"}]),
        "solution.json:17: `sources[0].path`: the source path `/tmp/main.py` is not plain; ",
    ),
    "a source that shadows": (
        solution_document(sources=[{"path": "torch.py", "content": "x"}]),
        "solution.json:17: `sources[0].path`: `torch.py` would shadow the module `torch`",
    ),
    "a source twice": (
        solution_document(sources=[{"path": "main.py", "content": "x"}, {"path": "main.py", "content": "y"}]),
        "solution.json:20: `sources[1].path` `main.py` comes twice; expected each once",
    ),
    "a source below a source": (
        solution_document(sources=[{"path": "main.py", "content": "x"}, {"path": "main.py/y.py", "content": "y"}]),
        "solution.json: its sources cannot be written: ",
    ),
    "an entry that is not there": (
        solution_document(spec={"entry_point": "main.py::go"}),
        "solution.json: `entry` names `go`; expected a top-level function of `main.py`",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_solution_json_is_named_and_nothing_written(name: str, workspace_dir: Path) -> None:
    value, message = MALFORMED[name]
    path = write_json(workspace_dir / "solution.json", value)
    with pytest.raises(FormatError) as caught:
        solution_from_json(path, workspace_dir / "out/b200")
    assert message in str(caught.value)
    assert not (workspace_dir / "out/b200").exists()
    assert left_behind(workspace_dir) == []


def test_an_existing_solution_is_kept_without_replace(workspace_dir: Path) -> None:
    path = write_json(workspace_dir / "solution.json", solution_document())
    write_solution(workspace_dir / "out")
    with pytest.raises(ConfigurationError, match="a solution is there already"):
        solution_from_json(path, workspace_dir / "out")
    assert load_solution(workspace_dir / "out").spec.language == "cpp"
    solution_from_json(path, workspace_dir / "out", replace=True)
    assert load_solution(workspace_dir / "out").spec.language == "triton"
    assert not (workspace_dir / "out/kernel.cpp").exists()


def test_the_starter_problems_ship_and_are_right(workspace_dir: Path) -> None:
    for name, content in shipped_problems([STARTER]).files.items():
        path = workspace_dir / "problems" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    keys = list_problems(workspace_dir / "problems")
    assert len(keys) == 6
    for key in keys:
        problem = load_problem(workspace_dir / "problems" / key, key=key)
        assert problem.warnings == ()
        assert len(problem.workloads) == 6
        load_solution(workspace_dir / "problems" / key / "solutions/cpu")
