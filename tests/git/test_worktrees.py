"""Worktrees are made, completed after a kill, repaired and removed without loss of a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import RepositoryError
from harness.git import private_index, worktrees
from harness.git.repo import Repo
from harness.git.solution_commits import commit_solution
from harness.git.worktree_places import Place, is_being_made, is_linked, locate
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import git, make_workspace
from tests.rarely import rarely

PROBLEM = "s/p"
BRANCH = "agents/main/w01/s/p"
OTHER_BRANCH = "agents/night/w01/s/p"
PLACE = Place("w01", PROBLEM)
SOLUTION = "problems/s/p/solutions/cpu/kernel.cpp"
FILES = {
    "COORDINATION.md": "mission\n",
    "workspaces/README.md": "whose directories these are\n",
    "problems/s/p/definition.json": "{}\n",
    SOLUTION: "start\n",
    "problems/s/p2/definition.json": "{}\n",
    "problems/t/p/definition.json": "{}\n",
}
PLACES = [
    "registered", "linked", "files_written",
    *rarely("branch_made", "marked", "sparse_set", "directory_made", "index_written"),
]  # fmt: skip
CALL = """
import sys
from pathlib import Path
from harness.git import worktrees
from harness.git.repo import Repo
from harness.git.worktree_places import Place
from harness.workspace.directories import Workspace
with Repo(Workspace(Path(sys.argv[1]))) as repo:
    {}
"""
ADD = CALL.format('worktrees.add(repo, Place("w01", "s/p"), "agents/main/w01/s/p", repo.tip("main"))')
REPLACE = CALL.format('worktrees.add(repo, Place("w01", "s/p"), "agents/night/w01/s/p", repo.tip("main"))')


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(
        tmp_path / "wörk späce", {**FILES, ".gitignore": "/.harness/\n/workspaces/*\n!/workspaces/README.md\n*.o\n"}
    )
    git(workspace.root, "config", "user.name", "p")
    git(workspace.root, "config", "user.email", "p@x")
    return workspace


def add(repo: Repo) -> Path:
    return worktrees.add(repo, PLACE, BRANCH, repo.tip("main"))


def replace(repo: Repo) -> Path:
    return worktrees.add(repo, PLACE, OTHER_BRANCH, repo.tip("main"))


def saved_solutions(repo: Repo) -> list[bytes | None]:
    return [repo.read(commit, SOLUTION) for commit in repo.refs(worktrees.SAVED, "w01/s/p/").values()]


def is_complete(repo: Repo) -> bool:
    tree = locate(repo.workspace, PLACE)
    return tree.branch() is not None and is_linked(tree) and not is_being_made(tree)


def submit(repo: Repo, text: str) -> str:
    path = add(repo)
    (path / SOLUTION).write_text(text)
    return commit_solution(repo, path, PROBLEM, "cpu", text, {}).commit


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and file.name != ".git")


def assert_healthy(repo: Repo, path: Path, branch: str = BRANCH) -> None:
    assert git(path, "rev-parse", "--show-toplevel") == str(path)
    assert git(path, "symbolic-ref", "HEAD") == f"refs/heads/{branch}"
    assert [line for line in git(path, "status", "--porcelain").splitlines() if not line.endswith(SOLUTION)] == []
    assert path == repo.workspace.worktree("w01", PROBLEM)
    assert is_complete(repo)
    assert git(repo.workspace.root, "status", "--porcelain") == ""
    assert "prunable" not in git(repo.workspace.root, "worktree", "list", "--porcelain")


def test_a_worktree_holds_its_problem_and_nothing_else(repo: Repo) -> None:
    path = add(repo)
    assert path == repo.workspace.root / "workspaces/w01/s/p"
    assert files(path) == ["problems/s/p/definition.json", SOLUTION]
    assert_healthy(repo, path)
    assert repo.branches("agents/") == {BRANCH: repo.tip("main")}
    assert git(path, "sparse-checkout", "list") == "/problems/s/p/"
    assert git(repo.workspace.root, "config", "--get", "--default", "unset", "core.sparseCheckout") == "unset"
    git(repo.workspace.root, "fsck", "--strict")


def test_a_worktree_is_used_again_with_what_stands_in_it(repo: Repo) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("edited\n")
    (path / "problems/s/p/definition.json").unlink()
    index = git(path, "ls-files", "--stage")
    assert add(repo) == path
    assert (path / SOLUTION).read_text() == "edited\n"
    assert not (path / "problems/s/p/definition.json").exists()
    assert git(path, "ls-files", "--stage") == index


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_making_is_completed(repo: Repo, place: str) -> None:
    root = repo.workspace.root
    environment = {**os.environ, "HARNESS_FAILPOINT": f"worktree.{place}"}
    completed = subprocess.run([sys.executable, "-c", ADD, str(root)], env=environment, timeout=240, check=False)
    assert completed.returncode == -9
    git(root, "worktree", "prune")
    assert files(add(repo)) == ["problems/s/p/definition.json", SOLUTION]
    assert_healthy(repo, add(repo))


@pytest.mark.parametrize("place", ["saved", "moved_away"])
def test_a_killed_removal_loses_nothing_and_can_be_finished(repo: Repo, place: str) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    environment = {**os.environ, "HARNESS_FAILPOINT": f"worktree.{place}"}
    command = [sys.executable, "-c", REPLACE, str(repo.workspace.root)]
    assert subprocess.run(command, env=environment, timeout=240, check=False).returncode == -9
    replace(repo)
    assert worktrees.retire(repo, PLACE)
    assert not (repo.workspace.root / "workspaces" / "w01" / "s" / "p").exists()
    assert (repo.workspace.root / "workspaces/README.md").is_file()
    assert set(saved_solutions(repo)) == {b"unsaved\n"}
    assert (add(repo) / SOLUTION).read_text() == "start\n"
    assert_healthy(repo, path)


def break_pointer(path: Path, admin: Path) -> None:
    del admin
    (path / ".git").unlink()


def break_registration(path: Path, admin: Path) -> None:
    del path
    shutil.rmtree(admin)


def break_index(path: Path, admin: Path) -> None:
    del path
    (admin / "index").write_bytes(b"DIRC rubbish")


def lock_index(path: Path, admin: Path) -> None:
    del path
    lock = admin / "index.lock"
    lock.write_bytes(b"")
    os.utime(lock, (time.time() - 3600,) * 2)


def break_head(path: Path, admin: Path) -> None:
    del path
    (admin / "HEAD").write_text("")


def break_sparse(path: Path, admin: Path) -> None:
    del path
    (admin / "info" / "sparse-checkout").unlink()
    (admin / "config.worktree").unlink()


@pytest.mark.parametrize(
    "damage", [break_pointer, break_registration, break_index, lock_index, break_head, break_sparse]
)
def test_a_broken_worktree_is_repaired_and_keeps_unsaved_work(repo: Repo, damage: object) -> None:
    path = add(repo)
    admin = Path(git(path, "rev-parse", "--absolute-git-dir"))
    (path / SOLUTION).write_text("unsaved\n")
    (path / SOLUTION).with_name("new file.h").write_text("new\n")
    assert callable(damage)
    damage(path, admin)
    assert add(repo) == path
    assert (path / SOLUTION).read_text() == "unsaved\n"
    assert (path / SOLUTION).with_name("new file.h").read_text() == "new\n"
    assert git(path, "status", "--porcelain").splitlines() == [
        f"M {SOLUTION}",
        f'?? "{Path(SOLUTION).parent}/new file.h"',
    ]
    assert not (admin / "index.lock").exists()
    assert is_complete(repo)


def test_a_repair_does_not_restore_deleted_files(repo: Repo) -> None:
    path = add(repo)
    break_index(path, Path(git(path, "rev-parse", "--absolute-git-dir")))
    (path / SOLUTION).unlink()
    assert not (add(repo) / SOLUTION).exists()
    assert not worktrees.retire(repo, PLACE)


def test_a_removed_directory_is_made_again(repo: Repo) -> None:
    submit(repo, "two\n")
    shutil.rmtree(repo.workspace.worktrees / "w01")
    assert not is_complete(repo)
    assert (add(repo) / SOLUTION).read_text() == "two\n"
    assert_healthy(repo, add(repo))


def test_a_moved_workspace_repairs_its_worktrees(repo: Repo, tmp_path: Path) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    moved = repo.workspace.root.rename(tmp_path / "elsewhere")
    with Repo(Workspace(moved)) as after:
        assert (add(after) / SOLUTION).read_text() == "unsaved\n"
        assert_healthy(after, moved / "workspaces/w01/s/p")


def test_a_deleted_branch_is_made_again_and_the_files_stay(repo: Repo) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    git(repo.workspace.root, "update-ref", "-d", f"refs/heads/{BRANCH}")
    assert (add(repo) / SOLUTION).read_text() == "unsaved\n"
    assert_healthy(repo, path)


def test_another_runs_worktree_is_replaced_and_its_unsaved_work_is_kept(repo: Repo) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    assert replace(repo) == path
    assert (path / SOLUTION).read_text() == "start\n"
    assert_healthy(repo, path, OTHER_BRANCH)
    assert saved_solutions(repo) == [b"unsaved\n"]
    assert BRANCH in repo.branches()


@pytest.mark.parametrize("kind", ["repository", "link", "file"])
def test_paths_of_others_stay_unchanged(repo: Repo, tmp_path: Path, kind: str) -> None:
    path = repo.workspace.worktree("w01", PROBLEM)
    path.parent.mkdir(parents=True)
    other_root = make_workspace(tmp_path / "other", {"a": "theirs"}).root
    if kind == "repository":
        other_root.rename(path)
    elif kind == "link":
        path.symlink_to(other_root)
    else:
        path.write_text("theirs")
    with pytest.raises(RepositoryError, match="holds something that is not a worktree of the harness") as caught:
        add(repo)
    assert caught.value.where == str(path)
    with pytest.raises(RepositoryError, match="holds something that is not a worktree of the harness"):
        worktrees.retire(repo, PLACE)
    assert path.exists()


def test_a_branch_that_a_person_has_checked_out_is_left_alone(repo: Repo) -> None:
    git(repo.workspace.root, "checkout", "-q", "-b", BRANCH)
    with pytest.raises(RepositoryError, match=f"{BRANCH} is checked out elsewhere"):
        add(repo)


@pytest.mark.parametrize(
    ("worker", "problem"),
    [("w 1", "s/p"), ("../w", "s/p"), ("w", "p"), ("w", "s/p/q"), ("w", "s/.."), ("w", "s/x.lock"), ("-w", "s/p")],
)
def test_names_that_git_or_a_path_would_misread_are_refused(worker: str, problem: str) -> None:
    with pytest.raises(RepositoryError, match="names are of letters, digits"):
        Place(worker, problem)


def test_an_idle_worktree_is_removed_only_when_its_branch_holds_its_work(repo: Repo) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    assert not worktrees.retire(repo, PLACE)
    assert (path / SOLUTION).read_text() == "unsaved\n"
    commit = submit(repo, "two\n")
    (path / "problems/s/p/new file").write_text("not added\n")
    assert not worktrees.retire(repo, PLACE)
    (path / "problems/s/p/new file").unlink()
    assert worktrees.retire(repo, PLACE)
    assert not path.exists()
    assert repo.tip(BRANCH) == commit
    assert saved_solutions(repo) == []
    assert (add(repo) / SOLUTION).read_text() == "two\n"


@pytest.mark.parametrize("damage", [break_registration, break_head])
def test_a_forgotten_worktree_is_not_removed(repo: Repo, damage: object) -> None:
    path = add(repo)
    admin = Path(git(path, "rev-parse", "--absolute-git-dir"))
    (path / SOLUTION).write_text("unsaved\n")
    assert callable(damage)
    damage(path, admin)
    assert not worktrees.retire(repo, PLACE)
    assert (path / SOLUTION).read_text() == "unsaved\n"


def test_a_worktree_of_a_deleted_branch_is_replaced_only_after_its_files_are_kept(repo: Repo) -> None:
    path = add(repo)
    (path / SOLUTION).write_text("unsaved\n")
    git(repo.workspace.root, "update-ref", "-d", f"refs/heads/{BRANCH}")
    assert not worktrees.retire(repo, PLACE)
    assert (replace(repo) / SOLUTION).read_text() == "start\n"
    assert saved_solutions(repo) == [b"unsaved\n"]
    git(repo.workspace.root, "gc", "-q", "--prune=now")
    assert saved_solutions(repo) == [b"unsaved\n"]


def test_a_half_made_worktree_is_no_unsaved_work(repo: Repo) -> None:
    environment = {**os.environ, "HARNESS_FAILPOINT": "worktree.linked"}
    command = [sys.executable, "-c", ADD, str(repo.workspace.root)]
    assert subprocess.run(command, env=environment, timeout=240, check=False).returncode == -9
    assert worktrees.retire(repo, PLACE)
    assert not repo.workspace.worktree("w01", PROBLEM).exists()
    assert saved_solutions(repo) == []


def test_worktrees_outlive_gc_packing_pruning_and_a_person_at_work(repo: Repo) -> None:
    root = repo.workspace.root
    commit = submit(repo, "two\n")
    (repo.workspace.worktree("w01", PROBLEM) / SOLUTION).write_text("unsaved\n")
    (root / "COORDINATION.md").write_text("mine\n")
    git(root, "stash")
    git(root, "checkout", "-q", "-b", "feature")
    git(root, "pack-refs", "--all", "--prune")
    git(root, "reflog", "expire", "--expire=now", "--all")
    git(root, "worktree", "prune", "--expire=now")
    git(root, "gc", "-q", "--prune=now")
    assert (add(repo) / SOLUTION).read_text() == "unsaved\n"
    assert_healthy(repo, add(repo))
    assert submit(repo, "three\n") == repo.tip(BRANCH)
    assert [new_commit.id for new_commit in repo.new_commits(repo.tip(BRANCH), repo.tip("main"))] == [
        commit,
        repo.tip(BRANCH),
    ]


def test_odd_configuration_and_failing_hooks_do_not_matter(repo: Repo) -> None:
    root = repo.workspace.root
    for key, value in {
        "commit.gpgSign": "true", "gpg.program": "/bin/false", "core.fsmonitor": "/bin/false",
        "core.autocrlf": "true", "diff.external": "/bin/false", "core.bigFileThreshold": "1",
        "checkout.defaultRemote": "x", "worktree.guessRemote": "true", "status.relativePaths": "true",
    }.items():  # fmt: skip
        git(root, "config", key, value)
    for name in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        hook = root / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch '{root}/hook ran'\nexit 1\n")
        hook.chmod(0o755)
    commit = submit(repo, "two\n")
    assert repo.read(commit, SOLUTION) == b"two\n"
    assert (add(repo) / "problems/s/p/definition.json").read_bytes() == b"{}\n"
    assert worktrees.retire(repo, PLACE)
    assert not (root / "hook ran").exists()


def test_two_at_once_make_one_worktree(repo: Repo) -> None:
    command = [sys.executable, "-c", ADD, str(repo.workspace.root)]
    with subprocess.Popen(command) as first, subprocess.Popen(command) as two:
        assert (first.wait(60), two.wait(60)) == (0, 0)
    assert_healthy(repo, add(repo))


def test_a_person_holding_the_index_is_distinguished_from_a_stale_lock(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = add(repo)
    admin = Path(git(path, "rev-parse", "--absolute-git-dir"))
    (admin / "index.lock").touch()
    (path / ".git").unlink()
    monkeypatch.setattr("harness.git.checkout.LOCK_WAIT_S", 0.02)
    with pytest.raises(RepositoryError, match="its index is locked by another git command"):
        add(repo)
    assert (admin / "index.lock").exists()
    monkeypatch.setattr(private_index, "_STALE_LOCK_S", -1.0)
    assert_healthy(repo, add(repo))
