from __future__ import annotations

import random
from pathlib import Path

import pytest

from harness.agents.tuner import read_space
from harness.errors import FormatError
from harness.formats.solutions import load_solution
from harness.git.tree_ids import tree_files, tree_id
from tests.agents.conftest import write_solution


def test_a_space_names_every_combination_by_the_tree_it_makes(tmp_path: Path) -> None:
    directory = write_solution(tmp_path / "cpu")
    space = read_space(directory)
    assert space.size == 12
    assert space.start == {"WIDTH": 2, "UNROLL": 1}
    named = space.by_tree()
    assert len(named) == 12
    assert space.tree(space.start) == tree_id(tree_files(directory))
    for tree, params in named.items():
        (directory / "solution.yaml").write_text(space.rendered(params))
        assert tree_id(tree_files(directory)) == tree
        assert load_solution(directory).spec.params == params


def test_the_same_values_make_the_same_tree_wherever_the_search_began(tmp_path: Path) -> None:
    first = read_space(write_solution(tmp_path / "a"))
    moved = write_solution(tmp_path / "b", first.rendered({"WIDTH": 8, "UNROLL": 4}))
    assert set(read_space(moved).by_tree()) == set(first.by_tree())
    assert "# people's words survive" in (moved / "solution.yaml").read_text()


def test_draws_avoid_what_was_tried_and_end(tmp_path: Path) -> None:
    space = read_space(write_solution(tmp_path))
    tried: set[str] = set()
    draws = random.Random(1)
    while (params := space.draw(tried, draws)) is not None:
        tree = space.tree(params)
        assert tree not in tried
        tried.add(tree)
    assert len(tried) == 12


def test_a_large_space_is_sampled(tmp_path: Path) -> None:
    values = ", ".join(str(number) for number in range(100))
    text = (
        "language: cpp\nentry: kernel.cpp::run\nparams: {A: 0, B: 0, C: 0}\n"
        f"tune: {{A: [{values}], B: [{values}], C: [{values}]}}\n"
    )
    space = read_space(write_solution(tmp_path, text))
    assert space.size == 10**6
    assert space.by_tree() == {}
    assert space.draw(set(), random.Random(1)) != space.draw(set(), random.Random(2))


def test_nothing_to_vary_is_a_space_of_one(tmp_path: Path) -> None:
    space = read_space(write_solution(tmp_path, "language: cpp\nentry: kernel.cpp::run\n"))
    assert (space.size, space.start) == (1, {})
    assert list(space.by_tree().values()) == [{}]


def test_a_missing_solution_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such directory"):
        read_space(tmp_path / "missing")
