"""Win branches: one commit on top of the main branch that replaces a solution with the champion's tree.

The tree is written with a private index and the branch by compare-and-swap, so the user's checkout and index do not
change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.errors import RepositoryError
from harness.git.branch_commits import resolve
from harness.git.environment import Git, scratch_index
from harness.git.repo import Repo

PUSH_TIMEOUT_S = 300.0
REPLACED = "refs/harness/replaced/"
"""Namespace of the former commits of win branches that were replaced."""
_SCP = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")
# The user's variables that a push needs to authenticate at the remote. Hooks and signing are disabled.
_FOR_REMOTES = ("HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS")


@dataclass(frozen=True)
class WinBranch:
    """A champion's branch."""

    name: str
    commit: str
    is_new: bool
    """False if the branch existed with this content."""


def make_win_branch(
    repo: Repo, name: str, base: str, path: str, tree: str, message: str, *, replace: bool = False
) -> WinBranch:
    """Create the branch `name` with one commit on top of `base` that changes only the solution directory.

    A branch that already has this tree and message is not changed, even if its base is another commit.

    Args:
        base: the parent of the commit.
        path: the solution directory, relative to the repository's root.
        tree: the candidate's tree id.
        replace: replace a branch with other content; its former commit is kept below refs/harness/replaced/.

    Raises:
        RepositoryError: the tree is not in the repository, or the branch has other content.
    """
    if repo.tree_of(tree) != tree:
        raise RepositoryError(
            f"the tree {tree} of the champion is not in this repository",
            remedy="fetch the branch of its worker; `harness audit` lists all missing objects",
        )
    tip = resolve(repo.git, f"refs/heads/{name}")
    if tip is not None and repo.tree_of(tip, path) == tree and text_of(repo, tip).strip() == message.strip():
        return WinBranch(name, tip, is_new=False)
    if tip is not None and not replace:
        raise RepositoryError(
            f"{name} exists, with another champion or commits of a person",
            where=tip[:12],
            remedy=f"inspect it with `git log -p {name}`; `--replace` replaces it",
        )
    commit = _commit(repo, base, path, tree, message)
    moves = f"start\nupdate refs/heads/{name} {commit} {tip or '0' * 40}\n"
    if tip is not None:
        moves += f"update {REPLACED}{name}/{tip} {tip}\n"
    repo.git.run("update-ref", "-m", "harness pr", "--stdin", stdin=f"{moves}prepare\ncommit\n".encode())
    return WinBranch(name, commit, is_new=True)


def _commit(repo: Repo, base: str, path: str, tree: str, message: str) -> str:
    scratch = repo.workspace.state / "git"
    scratch.mkdir(parents=True, exist_ok=True)
    with scratch_index(repo.git, scratch) as git:
        git.run("read-tree", base)
        inside = git.run("ls-files", "-z", "--", f"{path}/").stdout
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=inside)
        git.run("read-tree", f"--prefix={path}/", tree)
        root_tree = git.run("write-tree").text
    return repo.git.run("commit-tree", root_tree, "-p", base, stdin=message.encode()).text


def text_of(repo: Repo, commit: str) -> str:
    """Return the complete message of a commit."""
    return repo.git.run("log", "--max-count=1", "--format=%B", "--no-show-signature", "--no-notes", commit).text


def diff(repo: Repo, old: str | None, new: str) -> str:
    """Return the diff of two trees as text.

    Args:
        old: a tree id; None for the empty tree.
        new: a tree id.
    """
    empty = repo.git.run("hash-object", "-t", "tree", "--stdin").text
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
    return repo.git.run("diff", *plain, old or empty, new).text


def changed_paths(repo: Repo, base: str, head: str) -> frozenset[str]:
    """Return all paths that differ between the merge base and `head`, or that a commit of `head` changes.

    Args:
        base: id of a commit.
        head: id of a commit.

    Raises:
        RepositoryError: the commits have no common ancestor.
    """
    merge_base = repo.git.ask("merge-base", base, head)
    if merge_base.code:
        raise RepositoryError(f"{head[:12]} has no commit in common with {base[:12]}")
    fork = merge_base.text.split()[0]
    total_change = repo.git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", fork, head).text
    plain = ("--no-merges", "--no-renames", "--no-show-signature", "--name-only", "-z", "--format=")
    single_changes = repo.git.run("log", *plain, f"{base}..{head}", "--").text
    names = (name.strip("\n") for name in (*total_change.split("\0"), *single_changes.split("\0")))
    return frozenset(filter(None, names))


def remotes(repo: Repo) -> dict[str, str]:
    """Return remote -> URL from the repository's configuration."""
    answer = repo.git.ask("config", "--local", "--get-regexp", r"^remote\..*\.url$")
    pairs = (line.partition(" ")[::2] for line in answer.text.splitlines())
    return {key.removeprefix("remote.").removesuffix(".url"): url for key, url in pairs}


def push(repo: Repo, remote: str, branches: Mapping[str, bool]) -> None:
    """Push branches to a remote in the given order.

    Args:
        branches: branch -> True to force the push.

    Raises:
        RepositoryError: the remote refused; the error has its message and the fix.
    """
    extra = {name: os.environ[name] for name in _FOR_REMOTES if name in os.environ}
    if "HOME" in extra:
        extra["GIT_CONFIG_GLOBAL"] = f"{extra['HOME']}/.gitconfig"  # credential helpers, `insteadOf`, `sshCommand`
    git = Git(repo.git.git_dir, repo.workspace.root)  # a remote's relative path is relative to the checkout
    for branch, replace in branches.items():
        refspec = f"{'+' if replace else ''}refs/heads/{branch}:refs/heads/{branch}"
        answer = git.ask("push", "--quiet", remote, refspec, extra=extra, deadline_s=PUSH_TIMEOUT_S)
        if answer.code:
            behind = "fetch first" in answer.stderr or "non-fast-forward" in answer.stderr
            raise RepositoryError(
                f"{remote} refused {branch}: {' '.join(answer.stderr.split())[:400]}",
                remedy=f"merge its new commits, `git pull --no-rebase {remote} {branch}`, and try again"
                if behind
                else f"make `git push {remote} {branch}` work",
            )


def web_address(url: str) -> str | None:
    """Return the https address of a remote on a web host, `https://github.com/owner/name`; None for other remotes."""
    scp = _SCP.fullmatch(url)
    host, path = scp.groups() if scp else ((urlsplit(url).hostname or ""), urlsplit(url).path)
    if "." not in host or (not scp and urlsplit(url).scheme not in {"https", "http", "ssh", "git"}):
        return None
    return f"https://{host}/{path.strip('/').removesuffix('.git')}"
