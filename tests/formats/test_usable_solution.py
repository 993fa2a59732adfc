"""Checks of candidates before their build: the daemon and the judge apply the same rule with the same verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.formats.problems import load_problem
from harness.formats.solutions import UnusableSolutionError, usable_solution
from harness.model.paths import problem_path
from harness.model.problem import Definition
from harness.model.verdict import Verdict
from tests.site import KERNEL, SOLUTION, write_problem


@pytest.fixture
def definition(tmp_path: Path) -> Definition:
    write_problem(tmp_path, "t/one")
    return load_problem(tmp_path / problem_path("t/one"), key="t/one").definition


def solution(directory: Path, text: str = SOLUTION) -> Path:
    directory.mkdir()
    (directory / "solution.yaml").write_text(text)
    (directory / "kernel.cpp").write_text(KERNEL)
    return directory


def test_a_valid_solution_is_returned(definition: Definition, tmp_path: Path) -> None:
    checked = usable_solution(solution(tmp_path / "s"), definition, ("cpp",), "this run allows")
    assert checked.spec.language == "cpp"
    assert usable_solution(checked.directory, definition, (), "").spec == checked.spec


@pytest.mark.parametrize(
    ("text", "allowed", "reason", "language"),
    [
        ("language: cpp\n", (), "solution.yaml:1: `entry` is missing", ""),
        (SOLUTION, ("cuda", "triton"), "solution.yaml: `language` is cpp; this run allows cuda, triton", "cpp"),
        (SOLUTION.replace("kernel.cpp", "none.cpp"), (), "solution.yaml:2: ", ""),
    ],
)
def test_a_refusal_names_the_place_and_has_one_verdict(
    text: str, allowed: tuple[str, ...], reason: str, language: str, definition: Definition, tmp_path: Path
) -> None:
    with pytest.raises(UnusableSolutionError) as caught:
        usable_solution(solution(tmp_path / "0a1b", text), definition, allowed, "this run allows")
    assert caught.value.reason.startswith(reason)
    assert caught.value.language == language
    assert caught.value.verdict is Verdict.COMPILE_ERROR
    assert str(tmp_path) not in caught.value.reason
