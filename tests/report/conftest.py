"""A complete run: three problems with confirmed champions, failed candidates, a bare remote, and a person's clone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.git.repo import Repo
from tests.site import Commit, Site, git, make_site, write_problem

PROBLEMS = ("t/one", "t/two", "t/three")


@dataclass
class Story:
    """The workspace, its remote, a person's clone, and each problem's champion."""

    site: Site
    remote: Path
    clone: Path
    champions: dict[str, Commit]
    losers: dict[str, Commit]

    def person(self, *arguments: str) -> str:
        """Run git in the person's clone and return its output."""
        return git(self.clone, *arguments)

    def git(self, *arguments: str) -> str:
        """Run git in the workspace and return its output."""
        return git(self.site.root, *arguments)

    def repo(self) -> Repo:
        return Repo(self.site.workspace)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    directory = tmp_path
    site = Site(directory / "work space", directory / "scratch")
    make_site(site.root, PROBLEMS)
    write_problem(site.root, "t/never")
    git(site.root, "add", "--all")
    git(site.root, "commit", "--quiet", "-m", "Add a problem without a solution")
    try:
        champions = {
            "t/one": site.submit("w01", "t/one", "stub: speedup=1.5"),
            "t/two": site.submit("w02", "t/two", "stub: speedup=2.0"),
            "t/three": site.submit("w01", "t/three", "stub: speedup=1.2"),
        }
        losers = {
            "wrong": site.submit("w03", "t/one", "stub: verdict=INCORRECT_NUMERICAL"),
            "slow": site.submit("w03", "t/two", "stub: speedup=0.8"),
            "suspect": site.submit("w04", "t/three", "stub: verdict=SUSPECT"),
            "special": site.submit("w05", "t/one", "if (n == 128) stub: speedup=1.1"),
            "never": site.submit("w04", "t/never", "stub: speedup=0.7"),
        }
        completed = site.call("daemon", "--once")
        assert completed.returncode == 0, completed.stdout
        remote = directory / "remote.git"
        git(directory, "init", "--quiet", "--bare", "--initial-branch=main", str(remote))
        git(site.root, "remote", "add", "origin", str(remote))
        clone = directory / "clone"
        yield Story(site, remote, clone, champions, losers)
    finally:
        site.close()
