"""`baselines/*.py`: baselines that call a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.formats.library_baselines import library_baselines
from harness.formats.problems import inspect_problem, list_problems, load_problem
from harness.model.problem import Problem
from tests.judge.courtroom import write_problem as write_scale

PROBLEMS = Path(__file__).parents[2] / "problems"
RIGHT = "import torch\nfrom liger_kernel.ops import scale\n\ndef run(x, factor):\n    return scale(x, factor)\n"


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """Make a problem whose reference is `run(x, factor)`, with an empty `baselines/`."""
    root = write_scale(tmp_path)
    (root / "baselines").mkdir()
    return root


def test_a_baseline_has_the_name_of_its_file_and_needs_what_it_imports(scale: Path) -> None:
    before = load_problem(scale).digest
    (scale / "baselines" / "liger.py").write_text(RIGHT)
    problem = load_problem(scale)
    (baseline,), errors = library_baselines(scale, problem.definition)
    assert (baseline.variant, baseline.modules, errors) == ("library_liger", ("torch", "liger_kernel"), [])
    assert problem.digest != before


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("liger", "def run(factor, x):\n    return x\n", r"defines `run\(factor, x\)`; .* `run\(x, factor\)`"),
        ("liger", "def compute(x, factor):\n    return x\n", "no top-level function `run`"),
        ("liger", "def run(x, factor:\n", "not Python"),
        ("Liger-Kernel", RIGHT, "`Liger-Kernel` is no name of a baseline"),
    ],
)
def test_a_malformed_baseline_is_an_error_of_the_problem(scale: Path, name: str, source: str, message: str) -> None:
    (scale / "baselines" / f"{name}.py").write_text(source)
    inspection = inspect_problem(scale)
    assert inspection.problem is None
    with pytest.raises(type(inspection.errors[0]), match=message):
        raise inspection.errors[0]


def test_a_link_or_other_text_than_utf8_is_an_error(scale: Path) -> None:
    (scale / "baselines" / "liger.py").symlink_to(scale / "definition.json")
    (scale / "baselines" / "torch_call.py").write_bytes(b"\xff")
    definition = load_problem(PROBLEMS / "starter/rmsnorm_h4096").definition
    baselines, errors = library_baselines(scale, definition)
    assert baselines == []
    assert [error.message for error in errors] == [
        "expected a plain file of at most 1048576 bytes",
        "not UTF-8 text at byte 0",
    ]


def _shipped() -> list[Problem]:
    keys = [key for key in list_problems(PROBLEMS) if (PROBLEMS / key / "baselines").is_dir()]
    return [load_problem(PROBLEMS / key, key=key) for key in keys]


def test_problems_ship_baselines_of_each_library() -> None:
    modules: set[str] = set()
    for problem in _shipped():
        baselines, errors = library_baselines(problem.directory, problem.definition)
        assert baselines
        assert not errors
        modules |= {module for baseline in baselines for module in baseline.modules}
    assert modules >= {"flashinfer", "liger_kernel", "torch"}
    assert "harness" not in modules
