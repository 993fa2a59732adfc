"""`harness submit` from inside a worktree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from harness.model.entry import Entry
from tests.site import KERNEL, Site, git


@pytest.fixture
def worktree(site: Site) -> Path:
    with Repo(site.workspace) as repo:
        return worktrees.add(repo, Place("w05", "t/one"), "agents/main/w05/t/one", repo.tip("main"))


def inside(site: Site, worktree: Path) -> Site:
    """Return the site with the solution's directory as its working directory; the original site ends its processes."""
    return Site(worktree / "problems/t/one/solutions/cpu", site.scratch, processes=site.processes)


def write(worktree: Path, text: str) -> None:
    (worktree / "problems/t/one/solutions/cpu/kernel.cpp").write_text(f"{KERNEL}// {text}\n")


def test_a_passing_solution_is_committed_judged_and_reported(site: Site, worktree: Path) -> None:
    site.start("daemon")
    write(worktree, "stub: speedup=1.25")
    completed = inside(site, worktree).call("submit", "-m", "Try less work")
    assert completed.returncode == 0, completed.stdout
    assert "agents/main/w05/t/one" in completed.stdout
    assert "PASSED" in completed.stdout
    assert "1.25" in completed.stdout
    message = git(site.root, "log", "-1", "--format=%B", "agents/main/w05/t/one")
    assert message.startswith("Try less work\n\n")
    assert "Worker: w05" in message
    assert "Agent: person" in message
    assert git(worktree, "status", "--porcelain") == ""
    repeated = inside(site, worktree).call("submit", "--json")
    assert Entry.model_validate_json(repeated.stdout).verdict == "PASSED", (
        "a known verdict: reported again, not judged again"
    )
    assert sum(request["kind"] == "evaluation" for request in site.requests()) == 1


def test_a_failing_solution_gives_exit_code_1(site: Site, worktree: Path) -> None:
    site.start("daemon")
    write(worktree, "stub: verdict=INCORRECT_NUMERICAL")
    completed = inside(site, worktree).call("submit")
    assert completed.returncode == 1, completed.stdout
    assert "INCORRECT_NUMERICAL" in completed.stdout


def test_without_waiting_the_commit_is_printed(site: Site, worktree: Path) -> None:
    write(worktree, "anything")
    completed = inside(site, worktree).call("submit", "--no-wait", "--json")
    assert completed.returncode == 0, completed.stdout
    document = json.loads(completed.stdout)
    assert document["commit"] == git(site.root, "rev-parse", "agents/main/w05/t/one")
    assert document["tree"] == git(site.root, "rev-parse", f"{document['commit']}:problems/t/one/solutions/cpu")


def test_the_starting_solution_is_a_candidate_too(site: Site, worktree: Path) -> None:
    before = git(site.root, "rev-parse", "main")
    completed = inside(site, worktree).call("submit", "--no-wait", "--json")
    commit = json.loads(completed.stdout)["commit"]
    assert commit != before
    assert git(site.root, "rev-parse", f"{commit}^") == before


def test_a_missing_daemon_is_reported_after_the_deadline(site: Site, worktree: Path) -> None:
    write(worktree, "anything")
    completed = inside(site, worktree).call("submit", "--deadline", "0.3")
    assert completed.returncode == 1
    assert "harness daemon` running?" in completed.stdout


def test_only_the_solution_may_have_changed(site: Site, worktree: Path) -> None:
    (worktree / "problems/t/one/definition.json").write_text("{}")
    completed = inside(site, worktree).call("submit", "--no-wait")
    assert completed.returncode == 2
    assert "problems/t/one/definition.json" in completed.stdout
    assert "--" not in git(site.root, "log", "--format=%s", "main..agents/main/w05/t/one")


def test_a_broken_solution_is_named_by_file_and_line(site: Site, worktree: Path) -> None:
    (worktree / "problems/t/one/solutions/cpu/solution.yaml").write_text("language: cpp\nentry: gone.cpp::f\n")
    completed = inside(site, worktree).call("submit", "--no-wait")
    assert completed.returncode == 2
    assert "solution.yaml:2" in completed.stdout
    assert "gone.cpp" in completed.stdout


def test_a_language_that_the_run_does_not_allow_is_refused(site: Site, worktree: Path) -> None:
    config = site.root / "harness.yaml"
    config.write_text(config.read_text() + "\nlanguages: [triton]\n")
    write(worktree, "anything")
    completed = inside(site, worktree).call("submit", "--no-wait")
    assert completed.returncode == 2, completed.stdout
    assert "`language` is cpp; this run allows triton" in completed.stdout


def test_outside_a_worktree_it_names_the_place_of_worktrees(site: Site) -> None:
    completed = site.call("submit")
    assert completed.returncode == 2
    assert "workspaces/<worker>/<suite>/<name>/" in completed.stdout
