"""Directories and files of one workspace. This module only computes paths: it reads no file and does not call git."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.errors import ConfigurationError
from harness.model.paths import PROBLEMS, WORKTREES, worktree_path

CONFIG_NAME = "harness.yaml"
COORDINATION_NAME = "COORDINATION.md"


@dataclass(frozen=True)
class Workspace:
    """A git checkout with harness.yaml at its root.

    `derived` can be deleted at any time. `state` cannot; it is in the git common directory, which all worktrees share.
    """

    root: Path

    @classmethod
    def find(cls, start: Path | None = None) -> Workspace:
        """Return the workspace that contains `start` (default: the current directory).

        Raises:
            ConfigurationError: neither the directory nor one above it holds harness.yaml and is a git checkout.
        """
        resolved = (start or Path.cwd()).resolve()
        for directory in (resolved, *resolved.parents):
            if (directory / CONFIG_NAME).is_file() and (directory / ".git").exists():
                return cls(directory)
        raise ConfigurationError(
            f"no workspace here: neither {resolved} nor a directory above it is a git checkout with {CONFIG_NAME}",
            remedy="make one with `harness init DIR`, or change into one",
        )

    @cached_property
    def git_common_dir(self) -> Path:
        """The repository's own directory, also if the checkout is a linked worktree."""
        dot_git = self.root / ".git"
        if dot_git.is_dir():
            return dot_git
        gitdir = (self.root / dot_git.read_text().removeprefix("gitdir:").strip()).resolve()
        common = gitdir / "commondir"
        return (gitdir / common.read_text().strip()).resolve() if common.is_file() else gitdir

    @property
    def config_file(self) -> Path:
        """harness.yaml."""
        return self.root / CONFIG_NAME

    @property
    def problems(self) -> Path:
        """problems/ in the user's checkout. The judge measures the problems of the coordination branch instead."""
        return self.root / PROBLEMS

    @property
    def worktrees(self) -> Path:
        """workspaces/: `<worker>/<suite>/<name>/`, one git worktree each."""
        return self.root / WORKTREES

    @property
    def state(self) -> Path:
        """State that is not derived (spool, locks of the repository), in the git common directory."""
        return self.git_common_dir / "harness"

    @property
    def spool(self) -> Path:
        """Ledger documents on disk that the coordination branch does not hold yet."""
        return self.state / "spool"

    @property
    def start_lock(self) -> Path:
        """The lock of a running `harness start`."""
        return self.state / "start.lock"

    @property
    def derived(self) -> Path:
        """.harness/: caches, index, logs, status records, crash reports. Can be deleted at any time."""
        return self.root / ".harness"

    @property
    def index_file(self) -> Path:
        """The derived SQLite index of the ledger."""
        return self.derived / "index.sqlite"

    @property
    def cache(self) -> Path:
        """Content-addressed snapshots of problems and candidates, and build artefacts."""
        return self.derived / "cache"

    @property
    def logs(self) -> Path:
        """Log files, one for each process."""
        return self.derived / "logs"

    @property
    def status(self) -> Path:
        """Status records of the running processes; only `harness.workspace.status` opens them."""
        return self.derived / "status"

    @property
    def crashes(self) -> Path:
        """Crash reports, one text file for each unexpected exception."""
        return self.derived / "crashes"

    def outcome_file(self, problem: str, target: str, tree: str) -> Path:
        """Return the file in which the daemon writes a candidate's entry, as JSON, for its worker.

        Args:
            tree: git tree id of the candidate's solution directory.
        """
        return self.derived / "outcomes" / problem / f"{target}-{tree}.json"

    def worktree(self, worker: str, problem: str) -> Path:
        """Return the directory of a worker's worktree on a problem."""
        return self.root / worktree_path(worker, problem)


def user_cache() -> Path:
    """Return the directory for derived data that belongs to no workspace. It can be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kernel-harness"
