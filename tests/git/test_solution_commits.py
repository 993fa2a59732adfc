"""Submissions commit only the solution directory, on the worktree's own branch, also in a damaged worktree."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import RepositoryError
from harness.git import solution_commits as submissions
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from tests.ledger.ledgers import git, make_workspace
from tests.rarely import rarely

PROBLEM = "s/p"
BRANCH = "agents/main/w01/s/p"
HERE = "problems/s/p/solutions/cpu"
FILES = {
    "COORDINATION.md": "mission\n",
    "problems/s/p/definition.json": "{}\n",
    f"{HERE}/kernel.cpp": "start\n",
    "problems/s/q/definition.json": "{}\n",
    ".gitignore": "/.harness/\n/workspaces/\n*.o\n",
}
PLACES = ["commit_written", "branch_moved", *rarely("tree_written", "index_followed")]
SUBMIT = """
import sys
from pathlib import Path
from harness.git.repo import Repo
from harness.git.solution_commits import commit_solution
from harness.workspace.directories import Workspace
workspace = Workspace(Path(sys.argv[1]))
with Repo(workspace) as repo:
    commit_solution(repo, workspace.worktree("w01", "s/p"), "s/p", "cpu", "try", {"Run": "main"})
"""


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repo]:
    workspace = make_workspace(tmp_path / "wörk späce", FILES)
    git(workspace.root, "config", "user.name", "p")
    git(workspace.root, "config", "user.email", "p@x")
    with Repo(workspace) as opened:
        yield opened


@pytest.fixture
def worktree(repo: Repo) -> Path:
    return worktrees.add(repo, Place("w01", PROBLEM), BRANCH, repo.tip("main"))


def submit(repo: Repo, worktree: Path) -> submissions.Submission:
    return submissions.commit_solution(repo, worktree, PROBLEM, "cpu", "try", {"Run": "main"})


def test_a_submission_is_a_commit_with_trailers_on_the_worktrees_branch(repo: Repo, worktree: Path) -> None:
    before = repo.tip("main")
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    (worktree / HERE / "sub dir").mkdir()
    (worktree / HERE / "sub dir" / "größe.h").write_text("h\n")
    trailers = {"Run": "main", "Worker": "w01", "Model": "a\nForged: yes", "Cost-USD": "0.25"}
    submission = submissions.commit_solution(
        repo, worktree, PROBLEM, "cpu", "Use tiles\n\nThey fit the cache.", trailers
    )
    (commit,) = repo.new_commits(repo.tip(BRANCH), before)
    assert (commit.id, commit.parents, commit.subject) == (submission.commit, (before,), "Use tiles")
    assert commit.trailers == {**trailers, "Model": "a Forged: yes"}
    assert (submission.branch, submission.unchanged) == (BRANCH, False)
    assert submission.tree == repo.tree_of(submission.commit, HERE)
    assert set(repo.files(submission.commit)) == {*FILES, "harness.yaml", f"{HERE}/sub dir/größe.h"}
    assert git(worktree, "status", "--porcelain") == ""
    assert repo.tip("main") == before
    assert git(repo.workspace.root, "status", "--porcelain") == ""


def test_a_solution_where_none_was_and_one_that_loses_a_file(repo: Repo, worktree: Path) -> None:
    new = worktree / "problems/s/p/solutions/h200"
    new.mkdir()
    (new / "kernel.cu").write_text("x\n")
    submission = submissions.commit_solution(repo, worktree, PROBLEM, "h200", "", {})
    assert repo.files(submission.commit, "problems/s/p/solutions/h200") == ["problems/s/p/solutions/h200/kernel.cu"]
    (worktree / HERE / "kernel.cpp").unlink()
    (worktree / HERE / "other.cpp").write_text("y\n")
    submission = submit(repo, worktree)
    assert repo.files(submission.commit, HERE) == [f"{HERE}/other.cpp"]


def test_the_same_tree_again_is_no_commit_unless_asked_for(repo: Repo, worktree: Path) -> None:
    first = submit(repo, worktree)
    assert (first.unchanged, first.commit) == (True, repo.tip("main"))
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    second = submit(repo, worktree)
    second_submission = submit(repo, worktree)
    assert (second_submission.unchanged, second_submission.commit, second_submission.tree) == (
        True,
        second.commit,
        second.tree,
    )
    forced_submission = submissions.commit_solution(
        repo, worktree, PROBLEM, "cpu", "once more", {}, even_if_unchanged=True
    )
    assert forced_submission.commit != second.commit
    assert forced_submission.tree == second.tree


@pytest.mark.parametrize(
    "path", ["problems/s/p/definition.json", "problems/s/p/solutions/h200/k.cu", "stray.txt", "problems/s/q/x"]
)
def test_a_change_elsewhere_is_named_and_nothing_is_committed(repo: Repo, worktree: Path, path: str) -> None:
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    (worktree / path).parent.mkdir(parents=True, exist_ok=True)
    (worktree / path).write_text("changed")
    with pytest.raises(RepositoryError, match=f"files outside {HERE}/ changed: {path}"):
        submit(repo, worktree)
    assert repo.tip(BRANCH) == repo.tip("main")


def test_a_deletion_elsewhere_is_named_too(repo: Repo, worktree: Path) -> None:
    (worktree / "problems/s/p/definition.json").unlink()
    with pytest.raises(RepositoryError, match=r"changed: problems/s/p/definition\.json"):
        submit(repo, worktree)


def test_many_changes_elsewhere_are_counted(repo: Repo, worktree: Path) -> None:
    for number in range(12):
        (worktree / f"stray{number:02d}").write_text("x")
    with pytest.raises(RepositoryError, match=r"stray07 and 4 more"):
        submit(repo, worktree)


def test_caches_of_python_and_ignored_files_are_no_part_of_it(repo: Repo, worktree: Path) -> None:
    for name in ("__pycache__/k.pyc", f"{HERE}/__pycache__/k.pyc", f"{HERE}/kernel.o"):
        (worktree / name).parent.mkdir(exist_ok=True)
        (worktree / name).write_text("cache")
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    assert repo.files(submit(repo, worktree).commit, HERE) == [f"{HERE}/kernel.cpp"]


def test_what_cannot_be_judged_is_refused(repo: Repo, worktree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (worktree / HERE / "link.h").symlink_to("kernel.cpp")
    with pytest.raises(RepositoryError, match=r"link\.h is no plain file"):
        submit(repo, worktree)
    (worktree / HERE / "link.h").unlink()
    nested = worktree / HERE / "sub"
    nested.mkdir()
    git(nested, "init", "-q")
    (nested / "f").write_text("x")
    git(nested, "add", "f")
    git(nested, "commit", "-q", "-m", "nested")
    with pytest.raises(RepositoryError, match=r"sub is no plain file: links and repositories"):
        submit(repo, worktree)
    subprocess.run(["rm", "-rf", str(nested)], check=True, timeout=240)
    monkeypatch.setattr(submissions, "MAX_SOLUTION_BYTES", 100)
    (worktree / HERE / "big").write_bytes(b"x" * 101)
    with pytest.raises(RepositoryError, match=r"the solution has 0\.0 MB; expected at most"):
        submit(repo, worktree)
    for file in (worktree / HERE).iterdir():
        file.unlink()
    with pytest.raises(RepositoryError, match="the solution is empty"):
        submit(repo, worktree)
    (worktree / HERE).rmdir()
    with pytest.raises(RepositoryError, match="there is no solution"):
        submit(repo, worktree)
    assert repo.tip(BRANCH) == repo.tip("main")


def test_without_its_git_file_a_worktree_never_falls_through_to_the_repository_around_it(
    repo: Repo, worktree: Path
) -> None:
    (worktree / ".git").unlink()
    assert git(worktree, "rev-parse", "--show-toplevel") == str(repo.workspace.root)  # plain git uses this one
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    before = repo.tip("main")
    submission = submit(repo, worktree)
    assert (repo.tip(BRANCH), repo.tip("main")) == (submission.commit, before)
    assert repo.read(submission.commit, f"{HERE}/kernel.cpp") == b"two\n"
    assert git(repo.workspace.root, "status", "--porcelain") == ""


def test_a_git_file_that_leads_elsewhere_is_refused(repo: Repo, worktree: Path, tmp_path: Path) -> None:
    other_root = make_workspace(tmp_path / "other").root
    (worktree / ".git").write_text(f"gitdir: {other_root}/.git\n")
    with pytest.raises(RepositoryError, match="holds something that is not a worktree of the harness"):
        submit(repo, worktree)


def test_only_worktrees_of_the_harness_submit(repo: Repo, worktree: Path) -> None:
    with pytest.raises(RepositoryError, match="not a worktree of the harness"):
        submit(repo, repo.workspace.root)
    with pytest.raises(RepositoryError, match="this is the worktree of s/p, not of s/q"):
        submissions.commit_solution(repo, worktree, "s/q", "cpu", "x", {})
    (repo.workspace.worktrees / "w01/s/q").mkdir()
    with pytest.raises(RepositoryError, match="git has no record of this worktree"):
        submissions.commit_solution(repo, repo.workspace.worktrees / "w01/s/q", "s/q", "cpu", "x", {})


def test_a_worktree_that_a_person_switched_is_not_committed_to(repo: Repo, worktree: Path) -> None:
    git(worktree, "checkout", "-q", "--detach")
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    with pytest.raises(RepositoryError, match="this worktree is on no branch"):
        submit(repo, worktree)


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_submission_can_be_made_again_and_is_made_once(repo: Repo, worktree: Path, place: str) -> None:
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    command = [sys.executable, "-c", SUBMIT, str(repo.workspace.root)]
    environment = {**os.environ, "HARNESS_FAILPOINT": f"worktree.{place}"}
    assert subprocess.run(command, env=environment, timeout=240, check=False).returncode == -9
    assert (worktree / HERE / "kernel.cpp").read_text() == "two\n"
    subprocess.run(command, timeout=240, check=True)
    (commit,) = repo.new_commits(repo.tip(BRANCH), repo.tip("main"))
    assert repo.read(commit.id, f"{HERE}/kernel.cpp") == b"two\n"
    assert git(worktree, "status", "--porcelain") == ""


def test_a_locked_index_does_not_keep_a_submission_back(
    repo: Repo, worktree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.git.checkout.LOCK_WAIT_S", 0.02)
    lock = Path(git(worktree, "rev-parse", "--absolute-git-dir")) / "index.lock"
    lock.touch()
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    submission = submit(repo, worktree)
    assert repo.tip(BRANCH) == submission.commit != repo.tip("main")
    lock.unlink()
    submit(repo, worktree)
    assert git(worktree, "status", "--porcelain") == ""


def test_a_branch_that_moves_meanwhile_is_not_put_back(
    repo: Repo, worktree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    person = git(repo.workspace.root, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "a person's")

    def interfere(place: str) -> None:
        if place == "worktree.commit_written":
            git(repo.workspace.root, "update-ref", f"refs/heads/{BRANCH}", person)

    monkeypatch.setattr(submissions, "failpoint", interfere)
    (worktree / HERE / "kernel.cpp").write_text("two\n")
    with pytest.raises(RepositoryError, match=f"{BRANCH} moved during the submission"):
        submit(repo, worktree)
    assert repo.tip(BRANCH) == person
    assert repo.new_commits(submit(repo, worktree).commit, person)


def test_failed_attempts_stay_reachable(repo: Repo, worktree: Path) -> None:
    attempts = []
    for number in range(3):
        (worktree / HERE / "kernel.cpp").write_text(f"{number}\n")
        attempts.append(submit(repo, worktree))
    git(repo.workspace.root, "reflog", "expire", "--expire=now", "--all")
    git(repo.workspace.root, "gc", "-q", "--prune=now")
    assert [repo.read(attempt.commit, f"{HERE}/kernel.cpp") for attempt in attempts] == [b"0\n", b"1\n", b"2\n"]
    assert all(repo.has_object(attempt.tree) for attempt in attempts)
