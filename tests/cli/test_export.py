"""A champion exported as solution.json: the file has the values of its params, and an import restores the solution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.errors import FormatError
from harness.formats.solution_json import read_solution_json, solution_document, spec_from
from harness.formats.solutions import load_solution
from tests.cli.test_audit import harness
from tests.ledger.audited_place import Place
from tests.ledger.ledgers import PROBLEM, git

PYTHON = "import torch\n\n\ndef run(x, y, BLOCK=1):\n    y.copy_(x + BLOCK)\n"
GIVEN: dict[str, Any] = {"name": "n", "definition": "d", "author": "a", "description": "w", "target": "h200"}


def solution(directory: Path, language: str, file: str, text: str, **fields: Any) -> Any:
    directory.mkdir(parents=True)
    (directory / file).write_text(text)
    spec = {"language": language, "entry": f"{file}::run", **fields}
    (directory / "solution.yaml").write_text(json.dumps(spec))
    return load_solution(directory)


@pytest.mark.parametrize("language", ["pytorch", "triton", "cute_dsl"])
def test_python_languages_carry_their_constants_in_the_source(tmp_path: Path, language: str) -> None:
    loaded = solution(tmp_path / "s", language, "kernel.py", PYTHON, params={"BLOCK": 7})
    document = solution_document(loaded, **GIVEN, constants={})
    assert document["spec"]["languages"] == [language]
    assert document["spec"]["target_hardware"] == ["H200"]
    names: dict[str, Any] = {}
    exec(document["sources"][0]["content"].replace("import torch\n", ""), names)

    class Output:
        def copy_(self, value: int) -> None:
            self.value = value

    output = Output()
    names["run"](5, output)
    assert output.value == 12


def test_an_extension_carries_them_as_macros(tmp_path: Path) -> None:
    text = "void run() {}\n"
    flags = {"flags": ["-O2"], "cuda_flags": ["--use_fast_math"], "link_flags": ["-lcublas"]}
    loaded = solution(tmp_path / "s", "cuda_cpp", "kernel.cu", text, params={"BLOCK": 7, "FAST": True}, compile=flags)
    document = solution_document(loaded, **GIVEN, constants={"hidden": 4096})
    assert document["spec"]["compile_options"] == {
        "cflags": ["-O2", "-DAXIS_hidden=4096", "-DBLOCK=7", "-DFAST=1"],
        "cuda_cflags": ["--use_fast_math", "-DAXIS_hidden=4096", "-DBLOCK=7", "-DFAST=1"],
        "ld_flags": ["-lcublas"],
    }


@pytest.mark.parametrize(("binding", "means"), [(None, "tvm_ffi"), ("tvm_ffi", "tvm_ffi"), ("torch", "torch")])
def test_an_extension_names_its_binding(tmp_path: Path, binding: str | None, means: str) -> None:
    loaded = solution(
        tmp_path / "s", "cuda_cpp", "kernel.cu", "void run() {}\n", **({"binding": binding} if binding else {})
    )
    document = solution_document(loaded, **GIVEN, constants={})
    assert document["spec"]["binding"] == means
    file = tmp_path / "solution.json"
    file.write_text(json.dumps(document))
    spec = spec_from(read_solution_json(file))
    assert (spec.language, spec.binding, spec.compile) == ("cuda_cpp", means, loaded.spec.compile)


def test_an_exported_solution_is_imported_unchanged(tmp_path: Path) -> None:
    loaded = solution(tmp_path / "s", "triton", "kernel.py", PYTHON, destination_passing=False)
    file = tmp_path / "solution.json"
    file.write_text(json.dumps(solution_document(loaded, **GIVEN, constants={})))
    spec = spec_from(read_solution_json(file))
    assert (spec.language, spec.entry, spec.destination_passing) == ("triton", "kernel.py::run", False)


def test_features_that_the_format_lacks_are_refused(tmp_path: Path) -> None:
    loaded = solution(tmp_path / "s", "cpp", "kernel.cpp", 'extern "C" void run() {}\n')
    with pytest.raises(FormatError, match="language cpp cannot be exported: a C"):
        solution_document(loaded, **GIVEN, constants={})


def test_the_champion_is_exported(tmp_path: Path) -> None:
    place = Place(tmp_path / "w")
    root = place.workspace.root
    git(root, "switch", "-q", f"agents/main/w01/{PROBLEM}")
    directory = root / f"problems/{PROBLEM}/solutions/cpu"
    (directory / "kernel.py").write_text(PYTHON)
    (directory / "solution.yaml").write_text("language: pytorch\nentry: kernel.py::run\nparams: {BLOCK: 3}\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "in PyTorch")
    tree = git(root, "rev-parse", f"HEAD:problems/{PROBLEM}/solutions/cpu")
    candidate: dict[str, Any] = {"commit": git(root, "rev-parse", "HEAD"), "tree": tree}
    git(root, "switch", "-q", "main")
    place.commit({f"problems/{PROBLEM}/definition.json": b'{"name": "rmsnorm"}'})
    from harness.formats.problems import problem_digest

    place.digest = problem_digest(root / "problems" / PROBLEM)
    with place.repo:
        refused = harness(root, "export", PROBLEM)
        assert refused.returncode == 1
        assert "has no evaluation in the ledger" in refused.stderr
        place.enter(
            [
                place.draft("baseline"),
                place.draft(cites=1, **candidate),
                place.draft("confirmation", cites=2, **candidate),
            ]
        )
    completed = harness(root, "export", PROBLEM, "-o", "out.json")
    assert completed.returncode == 0, completed.stderr
    document = json.loads((root / "out.json").read_text())
    assert document["definition"] == "rmsnorm"
    assert document["author"] == "kernel-harness main/w01"
    assert candidate["tree"] in document["description"]
    assert "BLOCK=3" in document["sources"][0]["content"]
    merged = harness(root, "export", PROBLEM, "--merged")
    assert merged.returncode == 1
    assert "main has no solution" in merged.stderr
