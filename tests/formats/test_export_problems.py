from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import FormatError
from harness.formats.problem_exchange import export_problem, import_problems
from harness.formats.problems import list_problems, load_problem
from tests.formats.problem_files import write_problem, write_solution

PROBLEMS = Path(__file__).parents[2] / "problems"
KEYS = list_problems(PROBLEMS)
HAND = ("attention/gqa_paged_decode", "moe/nvfp4_linear_gated", "starter/rope_gqa")


def _round_trip(keys: list[str], tmp_path: Path) -> None:
    out, back = tmp_path / "exported", tmp_path / "problems"
    for key in keys:
        target = export_problem(load_problem(PROBLEMS / key, key=key), out)
        assert {"definition.json", "workload.jsonl"} <= {path.name for path in target.iterdir()}
    imported = import_problems(out, back)
    assert sorted(item.key for item in imported) == sorted(keys)
    assert [item.errors for item in imported if not item.usable] == []
    for key in keys:
        before, after = load_problem(PROBLEMS / key, key=key), load_problem(back / key, key=key)
        assert after.digest == before.digest
        assert after.definition == before.definition
        assert after.workloads == before.workloads


def test_exported_problems_are_imported_again_identically(tmp_path: Path) -> None:
    _round_trip(sorted({*HAND, *KEYS[::40]}), tmp_path)


@pytest.mark.slow
def test_all_shipped_problems_are_exported_and_imported_again_identically(tmp_path: Path) -> None:
    assert len(KEYS) > 100
    _round_trip(KEYS, tmp_path)


def test_solutions_and_notes_stay_behind_and_data_come_along(tmp_path: Path) -> None:
    source = write_problem(tmp_path / "problems/L1/p")
    write_solution(source / "solutions/cpu")
    (source / "notes.md").write_text("x")
    (source / "data").mkdir()
    (source / "data/blob.bin").write_bytes(b"\0")
    target = export_problem(load_problem(source), tmp_path / "out")
    files = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    assert files == ["data/blob.bin", "definition.json", "workload.jsonl"]


def test_existing_files_are_kept_unless_replaced(tmp_path: Path) -> None:
    problem = load_problem(write_problem(tmp_path / "problems/L1/p"))
    target = export_problem(problem, tmp_path / "out")
    (target / "old.bin").write_bytes(b"\0")
    with pytest.raises(FormatError, match="is there already"):
        export_problem(problem, tmp_path / "out")
    export_problem(problem, tmp_path / "out", replace=True)
    assert not (target / "old.bin").exists()
