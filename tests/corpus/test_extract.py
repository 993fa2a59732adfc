"""`harness problems extract` with a user's own module factories."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.formats.problems import load_problem
from tests.command_line import call_harness

pytestmark = pytest.mark.xdist_group("corpus")
ROOT = Path(__file__).parents[2]
BLOCK = "tests.corpus.small_modules:gated_block"


def extract(*arguments: str, into: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    completed = call_harness("problems", "extract", *arguments, "--into", str(into), cwd=ROOT)
    assert completed.returncode == code, completed.stdout + completed.stderr
    return completed


def files(directory: Path) -> dict[str, bytes]:
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*.json*")}


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    into = tmp_path_factory.mktemp("extracted")
    return into, extract(BLOCK, into=into)


def test_a_module_of_a_user_becomes_problems(extracted: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    into, completed = extracted
    assert sorted(path.name for path in (into / "custom").iterdir()) == [
        "gated_block",
        "gated_block_backward",
        "gated_block_backward_saved",
        "gated_block_scaled_norm",
        "gated_block_scaled_norm_backward",
        "gated_block_scaled_norm_backward_saved",
    ]
    backward = load_problem(into / "custom/gated_block_backward_saved").definition
    described = "Gradients of: Layer of gated_block (GatedBlock) at the sizes of the default configuration, "
    assert backward.description == described + "from what the forward pass saved, float32: 30 operations."
    problem = load_problem(into / "custom/gated_block")
    assert problem.warnings == ()
    extra: dict[str, Any] = problem.definition.model_extra or {}
    assert extra["tags"] == ["custom", "layer", "forward", "float32"]
    assert extra["x_provenance"]["file"] == "tests/corpus/small_modules.py"
    assert extra["x_provenance"]["licence"] == "of the user"
    assert len(problem.workloads) == 10
    assert {workload.tolerance.max_atol for workload in problem.workloads} == {0.0001}
    assert "6 problems with 60 workloads from 1 architecture " in completed.stdout
    assert f"running the code of {BLOCK} without a sandbox" in completed.stderr


def test_the_same_versions_give_the_same_files(
    extracted: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    into, _ = extracted
    forward = ("--direction", "forward", BLOCK)
    expected = {name: text for name, text in files(into).items() if "backward" not in name}
    extract(*forward, into=tmp_path)
    assert files(tmp_path) == expected != {}
    (tmp_path / "custom/gated_block/workload.jsonl").write_text("")
    assert "gated_block (exists, not replaced)" in extract(*forward, into=tmp_path).stderr
    assert files(tmp_path) != expected
    extract(*forward, "--only", "gated_block", "--replace", into=tmp_path)
    assert files(tmp_path) == expected


def test_an_existing_graph_is_skipped(
    extracted: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    into, _ = extracted
    before = files(into)
    options = ("--only", "x", "--direction", "forward")
    completed = extract("tests.corpus.small_modules:whole_model", *options, into=into, code=1)
    assert "the same graph as custom/gated_block: whole_model GatedBlock (blocks.0)" in completed.stdout
    assert "the same code as custom/gated_block: whole_model GatedBlock (blocks.1)" in completed.stdout
    assert files(into) == before


def test_only_and_dry_run(tmp_path: Path) -> None:
    completed = extract(BLOCK, "--only", "*norm", "--direction", "forward", "--dry-run", "--json", into=tmp_path)
    report = json.loads(completed.stdout)
    assert [row["problem"] for row in report["problems"]] == ["custom/gated_block_scaled_norm"]
    assert list(tmp_path.iterdir()) == []


def test_a_module_without_a_problem_is_reported_with_its_reason(tmp_path: Path) -> None:
    completed = extract("tests.corpus.small_modules:only_one_length", into=tmp_path, code=1)
    assert "to 39 only: only_one_length OnlyOneLength ()" in completed.stdout
    wrong = extract("tests.corpus.small_modules:no_pair", into=tmp_path, code=2)
    assert "returned GatedBlock" in wrong.stderr
    assert "let `function(batch, sequence)` return (module, {parameter of forward: tensor})" in wrong.stderr
    missing = extract("tests.corpus.small_modules:nothing", into=tmp_path, code=2)
    assert "cannot be imported" in missing.stderr
