"""Import of a whole data set: 235 problems, those usable on this target, and the reason for each other one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.formats.problems import load_problem
from harness.formats.requirements import count_causes, unmet_requirements
from harness.model.problem import Problem
from tests.cli.test_audit import harness
from tests.ledger.ledgers import make_workspace
from tests.site import DEFINITION


def write(directory: Path, *, n: int = 64, **changes: Any) -> None:
    directory.mkdir(parents=True)
    (directory / "definition.json").write_text(json.dumps({**DEFINITION, "name": directory.name, **changes}))
    workload = {"uuid": directory.name, "axes": {"n": n}, "inputs": {"x": {"type": "random"}}}
    (directory / "workload.jsonl").write_text(json.dumps(workload) + "\n")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Write as many problems as SOL-ExecBench has; ten are not usable on this machine, for four reasons."""
    root = tmp_path / "data"
    for number in range(225):
        write(root / f"L{number % 3 + 1}" / f"problem_{number:03d}")
    for number in range(4):
        write(root / "L4" / f"library_{number}", reference="import flashinfer_x\ndef run(x):\n    return x\n")
    for number in range(3):
        write(root / "L4" / f"device_{number}", reference="def run(x):\n    return x.cuda() + 1\n")
    for number in range(2):
        write(root / "L4" / f"broken_{number}", outputs={"y": {"shape": [f"m{number}"], "dtype": "float32"}})
    write(root / "L4" / "huge", n=2**50)
    return root


def test_a_data_set_is_summed_up_in_one_screen(dataset: Path, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    completed = harness(workspace.root, "problems", "import", "--trust", str(dataset))
    assert completed.returncode == 1
    assert "233 of 235 problems imported, 225 usable on cpu" in completed.stdout
    lines = completed.stdout.splitlines()
    assert len(lines) < 24
    (suite,) = [line.split() for line in lines if line.startswith("L4")]
    assert suite == ["L4", "10", "8", "8", "0"]
    library = "its reference imports …, which is not installed here "
    assert f"     4  {library}(L4/library_0, L4/library_1, L4/library_2 and 1 more)" in lines
    assert "     3  its reference asks for a CUDA device by name (L4/device_0, L4/device_1, L4/device_2)" in lines
    assert any(line.startswith("     2  … is …, neither an axis nor digits") for line in lines), lines
    assert any("workloads need up to … GB" in line for line in lines), lines
    assert (workspace.problems / "L4/device_0").is_dir()
    assert not (workspace.problems / "L4/broken_0").exists()


def test_scripts_get_each_problem_and_another_target_has_other_answers(dataset: Path, tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    command = ("problems", "import", "--trust", str(dataset / "L4"), "--suite", "L4", "--target", "h200", "--json")
    rows = json.loads(harness(workspace.root, *command).stdout)
    usable = {row["problem"]: row["usable"] for row in rows}
    assert usable["L4/device_0"]
    assert not usable["L4/library_0"]
    huge = next(row for row in rows if row["problem"] == "L4/huge")
    assert huge["why_not"].endswith("h200 has 141 GB")


def read(directory: Path) -> Problem:
    return load_problem(directory, key="t/one")


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("import torch, math\ndef run(x):\n    return x\n", []),
        ("import torch\ndef run(x):\n    return x.to('cuda:0')\n", ["its reference asks for a CUDA device by name"]),
        (
            "def run(x):\n    from not_here_x.ops import f\n    return f(x)\n",
            ["its reference imports `not_here_x`, which is not installed here"],
        ),
    ],
)
def test_unmet_requirements_of_a_reference(tmp_path: Path, reference: str, expected: list[str]) -> None:
    write(tmp_path / "one", reference=reference)
    assert unmet_requirements(read(tmp_path / "one"), "cpu", memory_bytes=1e9) == expected


def test_reasons_that_differ_in_names_and_numbers_count_together() -> None:
    assert count_causes(["`a` is 3", "`b` is 4.5", "other"]) == [("… is …", 2), ("other", 1)]
