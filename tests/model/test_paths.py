"""Repository paths and names: each path is parsed to the values that it was made from."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import LedgerError
from harness.model import paths

PARTS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True).filter(paths.is_name)
RUNS = PARTS.filter(paths.is_run)
WORKERS = PARTS.filter(paths.is_worker)
PROBLEMS = st.tuples(PARTS, PARTS).map("/".join).filter(paths.is_problem)
TARGETS = PARTS.filter(paths.is_target)
INSIDE = st.lists(PARTS, max_size=3).map("/".join)


@given(PROBLEMS, TARGETS, INSIDE)
def test_paths_of_problems_and_solutions_are_read_back(problem: str, target: str, inside: str) -> None:
    directory, solution = paths.problem_path(problem), paths.solution_path(problem, target)
    assert paths.parse_problem_path(f"{directory}/{inside}") == (problem, inside)
    assert paths.parse_solution_path(f"{solution}/{inside}") == (problem, target, inside)
    assert paths.parse_problem_path(directory) == (problem, "")
    assert paths.parse_solution_path(solution) == (problem, target, "")
    assert paths.parse_solution_path(directory) is None


@given(RUNS, WORKERS, PROBLEMS, TARGETS)
def test_branches_are_read_back(run: str, worker: str, problem: str, target: str) -> None:
    branch = paths.agent_branch(run, worker, problem)
    assert paths.parse_agent_branch(branch) == (run, worker, problem)
    assert branch.startswith(paths.run_branches(run))
    assert paths.parse_merge_branch(branch) is None
    for of in (None, target):
        merge = paths.merge_branch(run, problem, of)
        assert paths.parse_merge_branch(merge) == (run, problem, of)
        assert merge.startswith(paths.run_merge_branches(run))
        assert paths.parse_agent_branch(merge) is None


@given(WORKERS, PROBLEMS)
def test_worktrees_and_ledger_files_are_read_back(worker: str, problem: str) -> None:
    assert paths.parse_worktree_path(paths.worktree_path(worker, problem)) == (worker, problem)
    file, lessons = paths.ledger_file(problem), paths.lessons_file(problem)
    assert paths.parse_ledger_file(file) == problem
    assert not paths.is_planner_file(file)
    assert paths.parse_ledger_file(lessons) is None
    assert paths.is_lessons_file(lessons)
    assert paths.is_planner_file(lessons)


@pytest.mark.parametrize("file", [paths.HEADS, paths.DECISIONS, paths.ACCOUNTS, "ledger", "other/s/p.yaml", "s/p"])
def test_other_files_of_the_ledger_belong_to_no_problem(file: str) -> None:
    assert paths.parse_ledger_file(file) is None
    assert paths.is_planner_file(file) == (file in {paths.DECISIONS, paths.ACCOUNTS})


@pytest.mark.parametrize(
    "key", ["../x/y", "a", "a/b/c", "lessons/x", "a b/c", "", "a/", "/b", "a/b.", "a/b..c", "_a/b"]
)
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    assert not paths.is_problem(key)
    with pytest.raises(LedgerError, match="cannot have a ledger file"):
        paths.ledger_file(key)
    assert paths.parse_ledger_file(f"ledger/{key}.yaml") is None


@pytest.mark.parametrize(
    "branch", ["main", "agents/r/w/p", "agents/r/w/s/p/q", "agents/r//s/p", "win/r/p", "win/r/s/@cpu", "win/r/s/p@"]
)
def test_branches_of_other_forms_are_not_the_harness_s(branch: str) -> None:
    assert paths.parse_agent_branch(branch) is None
    assert paths.parse_merge_branch(branch) is None


@pytest.mark.parametrize("file", ["ledger/lessons/../x.yaml", "ledger/lessons/.yaml", "ledger/lessons/s/p.txt"])
def test_a_path_out_of_the_lessons_is_refused(file: str) -> None:
    assert not paths.is_planner_file(file)


@pytest.mark.parametrize(
    "name",
    ["a", "0", "a.b", "a..b", "a.", ".a", "a.lock", "a.lock.b", "-a", "a-", "_a", "a/b", "a b", "a@{b", "a~", "é"],
)
def test_every_name_is_a_component_of_a_git_ref(name: str) -> None:
    ref = subprocess.run(["git", "check-ref-format", f"refs/heads/{name}/x"], check=False).returncode == 0
    assert ref or not paths.is_name(name)


def test_names_have_a_length() -> None:
    assert paths.is_name("a" * 100)
    assert paths.is_run("a" * 64)
    assert paths.is_worker("a" * 32)
    assert not paths.is_name("a" * 101)
    assert not paths.is_run("a" * 65)
    assert not paths.is_worker("a" * 33)


@given(st.text(max_size=30))
def test_any_text_becomes_a_name(text: str) -> None:
    assert paths.is_name(paths.name_from(text))
