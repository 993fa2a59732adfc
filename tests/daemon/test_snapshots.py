"""Snapshots equal the committed tree, and are made again when they differ."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from harness.daemon.snapshots import Snapshots
from harness.errors import HarnessError
from harness.git.repo import Repo
from tests.site import Site, git, write_problem


@pytest.fixture
def repo(site: Site) -> Iterator[Repo]:
    with Repo(site.workspace) as opened:
        yield opened


def test_a_snapshot_that_was_damaged_is_made_again(site: Site, repo: Repo) -> None:
    tip = repo.tip("main")
    first = Snapshots(site.workspace, repo).problem(tip, "t/one")
    (first.directory / "workload.jsonl").write_text("damaged")
    second_problem = Snapshots(site.workspace, repo).problem(tip, "t/one")
    assert second_problem == first
    assert "damaged" not in (second_problem.directory / "workload.jsonl").read_text()


def test_a_snapshot_that_was_deleted_is_made_again(site: Site, repo: Repo) -> None:
    tip, snapshots = repo.tip("main"), Snapshots(site.workspace, repo)
    first = snapshots.problem(tip, "t/one")
    shutil.rmtree(first.directory)
    assert snapshots.problem(tip, "t/one").directory.is_dir()


def test_what_a_killed_daemon_left_half_is_not_used(site: Site, repo: Repo) -> None:
    tip = repo.tip("main")
    half = site.workspace.cache / "problems" / f"incoming-{repo.tree_of(tip, 'problems/t/one')}"
    half.mkdir(parents=True)
    (half / "definition.json").write_text("half")
    assert Snapshots(site.workspace, repo).problem(tip, "t/one").definition.name == "one"
    assert not half.exists()


def test_solutions_merged_into_the_problem_do_not_change_it(site: Site, repo: Repo) -> None:
    before = Snapshots(site.workspace, repo).problem(repo.tip("main"), "t/one")
    merged = site.submit("w01", "t/one", "champion")
    after = Snapshots(site.workspace, repo).problem(merged.id, "t/one")
    assert after.directory == before.directory
    assert not (after.directory / "solutions").exists()


def test_a_problem_that_is_not_there_or_malformed_is_an_error_each_time(site: Site, repo: Repo) -> None:
    snapshots = Snapshots(site.workspace, repo)
    with pytest.raises(HarnessError, match="no problem t/three"):
        snapshots.problem(repo.tip("main"), "t/three")
    write_problem(site.root, "t/one", workloads=0)
    git(site.root, "commit", "--quiet", "-am", "Empty")
    for _ in range(2):
        with pytest.raises(HarnessError, match="no workload"):
            snapshots.problem(repo.tip("main"), "t/one")
