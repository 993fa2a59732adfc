"""The repository: refs, objects, and commits on branches that people use too.

Commands run through `harness.git.environment`, without the user's configuration, hooks and variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from harness.errors import RepositoryError
from harness.git import branch_commits, checkout
from harness.git.branch_commits import BranchBusyError
from harness.git.checkout import LocalChange
from harness.git.environment import Git
from harness.git.object_reader import ObjectReader
from harness.git.objects import Commit, commit_of
from harness.git.tree_export import UnfitTreeError, export_tree, name_in
from harness.git.worktree_places import git_dir_of
from harness.workspace.directories import Workspace

__all__ = ["BranchBusyError", "Commit", "Repo", "UnfitTreeError"]


@dataclass(frozen=True)
class Blob:
    """Object id and size of a file in git."""

    id: str
    bytes: int


class Repo:
    """A workspace's git repository. Safe to use from several threads; `close` (or `with`) ends its git processes."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.git = Git(workspace.git_common_dir)
        self._scratch = workspace.state / "git"
        self._objects = ObjectReader(self.git)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the persistent git processes."""
        self._objects.close()

    # --- refs ---

    def tip(self, branch: str) -> str:
        """Return the commit that a branch is at.

        Raises:
            RepositoryError: there is no such branch.
        """
        oid = self._objects.id_of(f"refs/heads/{branch}^{{commit}}")
        if oid is None:
            raise RepositoryError(f"there is no branch {branch}", where=str(self.workspace.root))
        return oid

    def check_coordination_branch(self, branch: str) -> None:
        """Check that the branch with the ledger exists.

        Raises:
            RepositoryError: there is no such branch; the message lists branches.
        """
        # The name must be exact: as a revision, `main~1` would have a commit too.
        if self.git.ask("show-ref", "--verify", "--quiet", f"refs/heads/{branch}").code == 0:
            return
        branches = ", ".join(sorted(self.branches())[:5]) or "none"
        raise RepositoryError(
            f"there is no branch {branch}; branches: {branches}",
            where="`coordination_branch` in harness.yaml",
            remedy=f"git branch {branch}    # or name another branch in harness.yaml",
        )

    def branches(self, prefix: str = "") -> dict[str, str]:
        """Return branch -> commit, of the branches whose names start with `prefix`."""
        return self.refs("refs/heads/", prefix)

    def refs(self, space: str, prefix: str = "") -> dict[str, str]:
        """Return the commits of the refs below a directory, by their names without it.

        Args:
            space: the directory, such as `refs/remotes/`.
            prefix: the beginning of the names.
        """
        pattern = space + prefix.rpartition("/")[0]
        listing = self.git.run("for-each-ref", "--format=%(objectname) %(refname)", pattern.rstrip("/")).text
        pairs = (line.split(" ", 1) for line in listing.splitlines())
        return {name.removeprefix(space): oid for oid, name in pairs if name.startswith(space + prefix)}

    # --- objects ---

    def has_object(self, oid: str) -> bool:
        """Return whether the repository holds an object."""
        return self._objects.id_of(oid) is not None

    def tree_of(self, commit: str, path: str = "") -> str | None:
        """Return the id of the tree or blob at a path of a commit, or None.

        Args:
            commit: a commit id or revision expression.
            path: relative to the repository's root; "" is the root tree.
        """
        return self._objects.id_of(name_in(commit, path))

    def read(self, commit: str, path: str) -> bytes | None:
        """Return a file's content in a commit, or None if there is no file at the path.

        Args:
            commit: a commit id or revision expression.
            path: relative to the repository's root.
        """
        blob = self._objects.read(name_in(commit, path))
        return blob.content if blob and blob.kind == "blob" else None

    def read_many(self, commit: str, paths: Sequence[str]) -> dict[str, bytes]:
        """Return path -> content, of those of `paths` that are files in a commit.

        Args:
            commit: a commit id or revision expression.
        """
        contents = ((path, self.read(commit, path)) for path in paths)
        return {path: content for path, content in contents if content is not None}

    def files(self, commit: str, path: str = "") -> list[str]:
        """Return every file below `path` in a commit, as paths from the repository's root, sorted.

        Args:
            commit: a commit id or revision expression.
            path: a directory relative to the repository's root; "" is the root.
        """
        return list(checkout.tree_entries(self.git, commit, path))

    def blobs(self, commit: str, path: str) -> dict[str, Blob]:
        """Return every file below `path` in a commit, with its object id and size.

        Args:
            commit: a commit id or revision expression.
            path: a directory relative to the repository's root.
        """
        answer = self.git.run("ls-tree", "-r", "-l", "-z", "--full-tree", commit, "--", f"{path.rstrip('/')}/")
        heads = (line.partition("\t") for line in answer.text.split("\0") if line)
        fields = ((name, head.split()) for head, _, name in heads)
        return {name: Blob(oid, int(size)) for name, (_, kind, oid, size) in fields if kind == "blob"}

    def export(self, commit: str, path: str, destination: Path) -> Path:
        """Write the subtree at `path` of a commit to `destination`, completely or not at all.

        A destination that exists is not changed: callers name it by its content.

        Args:
            commit: a commit id or revision expression.
            path: the subtree's directory, relative to the repository's root.

        Returns:
            `destination`.

        Raises:
            RepositoryError: there is no such subtree.
            UnfitTreeError: the subtree holds a submodule or a link that leads out of it.
        """
        return export_tree(self._objects, commit, path, destination)

    def is_ancestor(self, old: str, new: str) -> bool:
        """Return whether `old` is `new` or an ancestor of it.

        Args:
            old: the presumed ancestor.
            new: the commit whose history is searched.
        """
        return self.git.ask("merge-base", "--is-ancestor", old, new).code == 0

    def new_commits(self, branch_commit: str, base: str) -> list[Commit]:
        """Return the commits that `branch_commit` has and `base` lacks, oldest first.

        Args:
            branch_commit: the newer commit.
            base: the commit whose history is excluded.
        """
        line = self.line_of_commits(branch_commit, base)
        if line is not None:
            return line
        ids = self.git.run("rev-list", "--reverse", "--topo-order", branch_commit, f"^{base}").text.split()
        return [self.commit(oid) for oid in ids]

    def line_of_commits(self, newer: str, older: str, *, max_commits: int = 8) -> list[Commit] | None:
        """Return the commits after `older` up to `newer`, oldest first, if they form a line without merges.

        It reads objects and starts no process: a worker's branch moves by one commit at a time.

        Args:
            newer: the last commit of the line.
            older: the commit before the first one of the line.
            max_commits: the longest line to return.

        Returns:
            None if a commit has several parents or none, or if there are more than `max_commits`.
        """
        line: list[Commit] = []
        oid = newer
        while oid != older:
            commit = self._commit(oid) if len(line) < max_commits else None
            if commit is None or len(commit.parents) != 1:
                return None
            line.append(commit)
            oid = commit.parents[0]
        return line[::-1]

    def history(self, commit: str, path: str) -> Sequence[str]:
        """Return every commit up to `commit` that changed something at `path`, newest first, including merged commits.

        Args:
            commit: a commit id or revision expression.
            path: relative to the repository's root.
        """
        return self.git.run("rev-list", "--full-history", commit, "--", path.rstrip("/")).text.split()

    def commit(self, oid: str) -> Commit:
        """Return a commit.

        Raises:
            RepositoryError: the repository does not hold it.
        """
        commit = self._commit(oid)
        if commit is None:
            raise RepositoryError(f"there is no commit {oid}", where=str(self.workspace.root))
        return commit

    def _commit(self, oid: str) -> Commit | None:
        raw = self._objects.read(oid)
        return commit_of(oid, raw.content) if raw and raw.kind == "commit" else None

    # --- commits on branches that people use too ---

    def commit_files(self, branch: str, files: Mapping[str, bytes | None], message: str) -> str:
        """Write files on top of a branch.

        Only objects and the ref are changed, by compare-and-swap, with retries if the branch moved. If the workspace's
        checkout is on that branch, it is refreshed, except for files that a person has changed.

        Args:
            branch: the branch's short name.
            files: path -> content; None removes the file.

        Returns:
            The new commit's id; the tip's id if nothing changes.

        Raises:
            BranchBusyError: a person is rebasing the branch.
            RepositoryError: git refused.
        """
        return branch_commits.commit(self._writer(), branch, branch_commits.Change(writes=files), message)

    def commit_built(
        self,
        branch: str,
        build: branch_commits.Build,
        message: str,
        *,
        before_move: branch_commits.BeforeMove | None = None,
    ) -> str:
        """Commit like `commit_files`, with a change that `build` makes from the branch's content at each attempt.

        Args:
            branch: the branch's short name.
            build: returns the change from the content of the branch.
            before_move: called with the files that are appended to, before the branch moves.
        """
        return branch_commits.commit(self._writer(), branch, build, message, before_move=before_move)

    def refresh_checkout(self, branch: str) -> None:
        """Refresh the files of the checkout that could not be refreshed when `branch` was committed to."""
        branch_commits.refresh_checkout(self._writer(), branch)

    def restore(self, branch: str, paths: Sequence[str]) -> None:
        """Write paths of a branch to the checkout and its index, over what is there.

        Args:
            branch: the branch's short name.
            paths: files or directories of the branch, relative to the repository's root.
        """
        self._checkout().git.run("checkout", "--quiet", branch, "--", *paths)

    def checkout_state(self, branch: str) -> list[str]:
        """Return a sentence for each part of `branch` that the checkout lacks, with the command that fixes it."""
        return checkout.state(self._checkout(), branch, self.tip(branch))

    def is_edited(self, branch: str, path: str) -> bool:
        """Return whether a person changed the content of a file of the checkout; a deleted file does not count.

        Args:
            branch: the branch's short name; while another one is checked out, no file counts as changed.
            path: relative to the repository's root.
        """
        return checkout.is_edited(self._checkout(), branch, path, self.tree_of(self.tip(branch), path))

    def local_changes(self, branch: str, directory: str) -> list[LocalChange]:
        """Return the changes of a person below a directory of the checkout since the tip of its branch.

        Args:
            branch: the branch's short name; the result is [] while another one is checked out.
            directory: relative to the repository's root, with a slash at its end.
        """
        return branch_commits.local_changes(self._writer(), branch, directory)

    def lost_appends(self, branch: str) -> list[str]:
        """Return the ledger files whose ends a reset of the branch cut off; the harness' next commit restores them."""
        return sorted(branch_commits.lost_appends(self._writer(), branch, self.tip(branch)))

    def _writer(self) -> branch_commits.Writer:
        return branch_commits.Writer(self.git, self._checkout(), self._scratch, self.read)

    def _checkout(self) -> checkout.Checkout:
        root = self.workspace.root
        git_dir = git_dir_of(root)
        return checkout.Checkout(Git(git_dir, root), root, git_dir / "harness-checkout.json")


def requirements(workspace: Workspace) -> list[str]:
    """Return a sentence for each setting of the repository that the harness cannot work with."""
    # Read as a file: git refuses to open a repository with an unknown extension.
    file = str(workspace.git_common_dir / "config")
    answer = Git(workspace.git_common_dir).ask("config", "--file", file, "--get-regexp", r"^extensions\.|^core\.bare$")
    settings = dict(line.lower().partition(" ")[::2] for line in answer.text.splitlines())
    reftable = "refs are stored as reftable, which cannot be watched: `git refs migrate --ref-format=files` (git 2.46)"
    sha256 = "object ids are SHA-256, which GitPython cannot read: create the workspace in a SHA-1 repository"
    problems = {
        reftable: settings.get("extensions.refstorage", "files") != "files",
        sha256: settings.get("extensions.objectformat", "sha1") != "sha1",
        "the repository is bare: the workspace needs a checkout": settings.get("core.bare") == "true",
    }
    return [sentence for sentence, applies in problems.items() if applies]
