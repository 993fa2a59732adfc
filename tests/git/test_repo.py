"""Reading refs and objects of a real repository while people and git change it."""

from __future__ import annotations

import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import RepositoryError
from harness.git.environment import Git
from harness.git.objects import Commit, trailers_of
from harness.git.repo import Repo, UnfitTreeError, requirements
from harness.workspace.directories import Workspace
from tests.ledger.ledgers import git, make_workspace
from tests.waiting import wait_until

TREE = {
    "problems/s/p/definition.json": "{}\n",
    "problems/s/p/solutions/cpu/grüße mit leerzeichen.cpp": "int main() {}\n",
    "problems/s/q/run.sh": "#!/bin/sh\n",
    "ledger/s/p.yaml": "# ledger\n",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    workspace = make_workspace(tmp_path / "work space", TREE)
    git(workspace.root, "config", "user.name", "p")
    git(workspace.root, "config", "user.email", "p@x")
    return workspace


def commit_by_hand(root: Path, message: str, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", message)
    return git(root, "rev-parse", "HEAD")


def test_branches_are_read_loose_and_packed(repo: Repo) -> None:
    root, tip = repo.workspace.root, repo.tip("main")
    git(root, "branch", "agents/main/w01/s/p")
    git(root, "pack-refs", "--all", "--prune")
    git(root, "branch", "agents/main/w02/s/p")
    git(root, "branch", "agents/maintenance")
    assert repo.branches("agents/main/") == {"agents/main/w01/s/p": tip, "agents/main/w02/s/p": tip}
    assert set(repo.branches("agents/main")) == {"agents/main/w01/s/p", "agents/main/w02/s/p", "agents/maintenance"}
    assert repo.branches("agents/other/") == {}
    with pytest.raises(RepositoryError, match="there is no branch agents/other"):
        repo.tip("agents/other")


def test_a_tag_of_the_same_name_is_not_the_branch(repo: Repo) -> None:
    root, first = repo.workspace.root, repo.tip("main")
    git(root, "tag", "main")
    second = commit_by_hand(root, "two", {"a": "b"})
    assert repo.tip("main") == second != first


def test_files_and_trees_are_read_from_commits_not_from_the_checkout(repo: Repo) -> None:
    root, tip = repo.workspace.root, repo.tip("main")
    odd = "problems/s/p/solutions/cpu/grüße mit leerzeichen.cpp"
    (root / odd).write_text("changed")
    assert repo.read(tip, odd) == TREE[odd].encode()
    assert repo.read(tip, "problems/s/p") is None
    assert repo.read(tip, "nothing missing") is None
    assert repo.tree_of(tip, "problems/s/") == git(root, "rev-parse", f"{tip}:problems/s")
    assert repo.tree_of(tip) == git(root, "rev-parse", f"{tip}^{{tree}}")
    assert repo.files(tip, "problems/s/p") == ["problems/s/p/definition.json", odd]
    assert repo.files(tip, "problems/s/p/def") == []
    assert repo.read_many(tip, [odd, "no", "ledger/s/p.yaml"]).keys() == {odd, "ledger/s/p.yaml"}
    assert repo.has_object(tip)
    assert not repo.has_object("1" * 40)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a//b", "a\nb", ".git/config", "a/./b"])
def test_a_path_that_leaves_the_repository_is_refused(repo: Repo, path: str) -> None:
    with pytest.raises(RepositoryError, match="not a path inside the repository"):
        repo.read(repo.tip("main"), path)


def test_commits_are_listed_oldest_first_with_their_trailers(repo: Repo) -> None:
    root, base = repo.workspace.root, repo.tip("main")
    git(root, "checkout", "-q", "-b", "agents/main/w01/s/p")
    commit_id = commit_by_hand(root, "First\n\nRun: fake\n\nmore text: yes\n\nRun: main\nCost-USD: 0.25", {"a": "1"})
    two = commit_by_hand(root, "Zweiter ü\n\nno trailers here", {"a": "2"})
    commits = repo.new_commits(two, base)
    assert [commit.id for commit in commits] == [commit_id, two]
    assert commits[0].trailers == {"Run": "main", "Cost-USD": "0.25"}
    assert (commits[1].trailers, commits[1].subject) == ({}, "Zweiter ü")
    assert commits[1].parents == (commit_id,)
    assert commits[1].tree == repo.tree_of(two)
    assert repo.commit(commit_id) == commits[0]
    assert repo.new_commits(base, two) == []
    with pytest.raises(RepositoryError, match="there is no commit"):
        repo.commit("1" * 40)


def test_reading_survives_gc_and_packed_refs_with_the_reader_running(repo: Repo) -> None:
    root = repo.workspace.root
    tip = repo.tip("main")
    assert repo.read(tip, "ledger/s/p.yaml")
    new = commit_by_hand(root, "two", {"new": "x"})
    git(root, "pack-refs", "--all", "--prune")
    git(root, "gc", "-q", "--prune=now")
    assert repo.read(repo.tip("main"), "new") == b"x"
    assert repo.read(tip, "ledger/s/p.yaml") == b"# ledger\n"
    assert repo.tip("main") == new


def cat_files() -> list[int]:
    """Return the running `git cat-file` children of this process."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if b"cat-file" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_reader_that_died_is_replaced(repo: Repo) -> None:
    tip = repo.tip("main")
    assert repo.read(tip, "ledger/s/p.yaml")
    readers = cat_files()
    assert readers
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
    wait_until(lambda: not cat_files(), event="end of the readers")
    assert repo.tip("main") == tip
    assert repo.read(tip, "ledger/s/p.yaml") == b"# ledger\n"


def test_many_threads_may_read_at_once(repo: Repo) -> None:
    tip = repo.tip("main")
    with ThreadPoolExecutor(8) as pool:
        names = list(TREE) * 40
        assert list(pool.map(lambda name: repo.read(tip, name), names)) == [TREE[name].encode() for name in names]


def test_variables_of_a_surrounding_git_do_not_lead_elsewhere(
    repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_workspace = make_workspace(tmp_path / "other", {"harness.yaml": "run: other\n"})
    for name, value in {
        "GIT_DIR": str(other_workspace.root / ".git"),
        "GIT_WORK_TREE": str(other_workspace.root),
        "GIT_INDEX_FILE": str(tmp_path / "nowhere"),
        "GIT_OBJECT_DIRECTORY": str(other_workspace.root / ".git/objects"),
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.bare",
        "GIT_CONFIG_VALUE_0": "true",
        "GIT_NAMESPACE": "odd",
    }.items():
        monkeypatch.setenv(name, value)
    tip = repo.tip("main")
    assert repo.read(tip, "harness.yaml") == b"run: main\n"
    new_commit = repo.commit_files("main", {"ledger/x": b"1"}, "x")
    assert repo.read(new_commit, "ledger/x") == b"1"


def test_export_writes_a_subtree_whole_with_modes_and_links_that_stay_inside(repo: Repo, tmp_path: Path) -> None:
    root = repo.workspace.root
    (root / "problems/s/q/run.sh").chmod(0o755)
    (root / "problems/s/q/link").symlink_to("run.sh")
    tip = commit_by_hand(root, "modes", {})
    directory = repo.export(tip, "problems/s/q", tmp_path / "cache" / "q")
    assert sorted(file.name for file in directory.iterdir()) == ["link", "run.sh"]
    assert (directory / "run.sh").stat().st_mode & stat.S_IXUSR
    assert (directory / "link").readlink() == Path("run.sh")
    (directory / "run.sh").write_text("kept")
    assert repo.export(tip, "problems/s/q", directory) == directory
    assert (directory / "run.sh").read_text() == "kept"
    assert [file.name for file in directory.parent.iterdir()] == ["q"]
    with pytest.raises(RepositoryError, match="there is no directory 'problems/s/none'"):
        repo.export(tip, "problems/s/none", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../secret", "sub/../../up"])
def test_a_link_that_leads_out_is_not_exported(repo: Repo, tmp_path: Path, target: str) -> None:
    root = repo.workspace.root
    (root / "problems/s/q/link").symlink_to(target)
    tip = commit_by_hand(root, "link", {})
    with pytest.raises(UnfitTreeError, match="link is a link that leads out"):
        repo.export(tip, "problems/s/q", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_submodule_is_not_exported(repo: Repo, tmp_path: Path) -> None:
    root = repo.workspace.root
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{repo.tip('main')},problems/s/q/sub")
    git(root, "commit", "-q", "-m", "submodule")
    with pytest.raises(UnfitTreeError, match="sub is a submodule"):
        repo.export(repo.tip("main"), "problems/s/q", tmp_path / "out")


def test_an_unsuitable_repository_is_reported(workspace: Workspace) -> None:
    assert requirements(workspace) == []
    for key, value in {"extensions.refStorage": "reftable", "core.bare": "true"}.items():
        git(workspace.root, "config", key, value)
    git(workspace.root, "config", "core.repositoryFormatVersion", "1")
    (first, second) = requirements(workspace)
    assert "reftable" in first
    assert "bare" in second


def test_git_that_hangs_is_ended_and_named(workspace: Workspace) -> None:
    hanging = Git(workspace.git_common_dir)
    with pytest.raises(RepositoryError, match=r"git did not answer within 0\.2 s: .*sleep 60"):
        hanging.ask("-c", "alias.hang=!sleep 60", "hang", deadline_s=0.2)


@pytest.mark.parametrize(
    "message",
    [
        "One",
        "One\nline more\n\nBody: x\n\nRun: main\nWorker: w01",
        "\n\n  Ünïcode  \n\nKey: a: b\nno trailer\n",
        "A\n\n\nB",
    ],
)
def test_commits_read_as_objects_are_those_of_git_log(repo: Repo, message: str) -> None:
    root, base = repo.workspace.root, repo.tip("main")
    for number in range(3):
        commit_by_hand(root, message, {"a": str(number)})
    line = repo.line_of_commits(repo.tip("main"), base)
    assert line is not None
    assert len(line) == 3
    for commit in line:
        form = "--format=%T%x00%P%x00%ct%x00%s%x00%B"
        tree, parents, at, subject, body = git(root, "log", "-1", form, commit.id).split("\0")
        assert commit == Commit(commit.id, tree, tuple(parents.split()), int(at), trailers_of(body), subject)
        assert commit == repo.commit(commit.id)
    assert repo.line_of_commits(repo.tip("main"), base, max_commits=2) is None


def test_a_history_that_is_no_line_is_left_to_git(repo: Repo) -> None:
    root, base = repo.workspace.root, repo.tip("main")
    git(root, "checkout", "-q", "-b", "side")
    side = commit_by_hand(root, "side", {"s": "1"})
    git(root, "checkout", "-q", "main")
    other_commit = commit_by_hand(root, "other", {"o": "1"})
    git(root, "merge", "-q", "--no-edit", side)
    assert repo.line_of_commits(repo.tip("main"), base) is None
    assert {side, other_commit} < {commit.id for commit in repo.new_commits(repo.tip("main"), base)}
    assert repo.line_of_commits(other_commit, side) is None


@pytest.mark.parametrize(("encoding", "subject"), [("ISO-8859-1", "café"), ("no encoding", "caf\udce9")])
def test_a_message_in_another_encoding_is_read(repo: Repo, encoding: str, subject: str) -> None:
    root, base = repo.workspace.root, repo.tip("main")
    git(root, "config", "i18n.commitEncoding", encoding)
    message = root / ".git" / "message"
    message.write_bytes("café".encode("latin-1"))
    git(root, "commit", "-q", "--allow-empty", "-F", str(message))
    (commit,) = repo.new_commits(repo.tip("main"), base)
    assert (commit.subject, commit.trailers) == (subject, {})


def test_a_branch_that_moves_is_seen_by_the_reader_that_runs(repo: Repo) -> None:
    root = repo.workspace.root
    tips = [repo.tip("main")]
    for number in range(3):
        tips.append(commit_by_hand(root, "next", {"a": str(number)}))
        assert repo.tip("main") == tips[-1]
        git(root, "pack-refs", "--all", "--prune")
        assert repo.tip("main") == tips[-1]
    git(root, "branch", "-q", "other")
    assert repo.tip("other") == tips[-1]
    git(root, "branch", "-q", "-D", "other")
    with pytest.raises(RepositoryError, match="there is no branch other"):
        repo.tip("other")
