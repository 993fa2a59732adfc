"""Win branches: one commit on top of the main branch that puts a champion's tree in its place. Plumbing only.

The tree is made in a private index and the branch by compare-and-swap: neither the person's checkout nor index moves.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from harness.errors import RepositoryError
from harness.git.branch_commits import resolve
from harness.git.repo import Repo

PUSH_S = 300.0
REPLACED = "refs/harness/replaced/"
"""Namespace of the former commits of merge branches that were made again."""
_SCP = re.compile(r"(?:[^@/]+@)?([^:/]+):(?!//)(.+)")
# What a push needs of the person's own setting: who they are for the remote. Hooks and signing stay out.
_FOR_REMOTES = ("HOME", "XDG_CONFIG_HOME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "GIT_SSH", "GIT_SSH_COMMAND", "GIT_ASKPASS")


@dataclass(frozen=True)
class WinBranch:
    """A champion's branch."""

    name: str
    commit: str
    made: bool
    """False where it stood there already."""


def make_win_branch(
    repo: Repo, name: str, base: str, place: str, tree: str, message: str, *, replace: bool = False
) -> WinBranch:
    """The branch `name` with one commit on top of `base` that has `tree` at `place` and nothing else changed.

    A branch that carries this very tree and message already is left as it is, whatever it stands on.

    Args:
        repo: the workspace's repository.
        name: the branch.
        base: the commit to stand on.
        place: the solution's directory, from the repository's root.
        tree: the candidate's tree id.
        message: the commit's whole message.
        replace: make a branch anew that carries something else; what it carried stays under refs/harness/replaced/.

    Raises:
        RepositoryError: the tree is not in the repository, or the branch carries something else.
    """
    if repo.tree_of(tree) != tree:
        raise RepositoryError(
            f"the tree {tree} of the champion is not in this repository",
            remedy="fetch the branch of its worker; `harness audit` says what else is gone",
        )
    tip = resolve(repo.git, f"refs/heads/{name}")
    if tip is not None and repo.tree_of(tip, place) == tree and text_of(repo, tip).strip() == message.strip():
        return WinBranch(name, tip, made=False)
    if tip is not None and not replace:
        raise RepositoryError(
            f"{name} is there and carries another champion or commits of a person",
            where=tip[:12],
            remedy="look with `git log -p " + name + "`; `--replace` makes it anew",
        )
    commit = _commit(repo, base, place, tree, message)
    moves = f"start\nupdate refs/heads/{name} {commit} {tip or '0' * 40}\n"
    if tip is not None:
        moves += f"update {REPLACED}{name}/{tip} {tip}\n"
    repo.git.run("update-ref", "-m", "harness pr", "--stdin", stdin=f"{moves}prepare\ncommit\n".encode())
    return WinBranch(name, commit, made=True)


def _commit(repo: Repo, base: str, place: str, tree: str, message: str) -> str:
    scratch = repo.workspace.state / "git"
    scratch.mkdir(parents=True, exist_ok=True)
    private = scratch / f"index.{secrets.token_hex(6)}"
    git = repo.git.using(index_file=private)
    try:
        git.run("read-tree", base)
        inside = git.run("ls-files", "-z", "--", f"{place}/").stdout
        git.run("update-index", "-z", "--force-remove", "--stdin", stdin=inside)
        git.run("read-tree", f"--prefix={place}/", tree)
        made = git.run("write-tree").text
    finally:
        private.unlink(missing_ok=True)
    return repo.git.run("commit-tree", made, "-p", base, stdin=message.encode()).text


def text_of(repo: Repo, commit: str) -> str:
    """A commit's whole message."""
    return repo.git.run("log", "--max-count=1", "--format=%B", "--no-show-signature", "--no-notes", commit).text


def diff(repo: Repo, old: str | None, new: str) -> str:
    """The difference of two trees as text; of everything in `new` where `old` is None."""
    empty = repo.git.run("hash-object", "-t", "tree", "--stdin").text
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--find-renames")
    return repo.git.run("diff", *plain, old or empty, new).text


def changed_paths(repo: Repo, base: str, head: str) -> tuple[str, frozenset[str]]:
    """Return the merge base, and every path that a commit of `head` since then changed, alone or in sum.

    Raises:
        RepositoryError: they have no commit in common.
    """
    found = repo.git.ask("merge-base", base, head)
    if found.code:
        raise RepositoryError(f"{head[:12]} has no commit in common with {base[:12]}")
    fork = found.text.split()[0]
    together = repo.git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", fork, head).text
    plain = ("--no-merges", "--no-renames", "--no-show-signature", "--name-only", "-z", "--format=")
    apart = repo.git.run("log", *plain, f"{base}..{head}", "--").text
    names = (name.strip("\n") for name in (*together.split("\0"), *apart.split("\0")))
    return fork, frozenset(name for name in names if name)


def remotes(repo: Repo) -> dict[str, str]:
    """Remote -> URL, as the repository's own configuration has them."""
    answer = repo.git.ask("config", "--local", "--get-regexp", r"^remote\..*\.url$")
    pairs = (line.partition(" ")[::2] for line in answer.text.splitlines())
    return {key.removeprefix("remote.").removesuffix(".url"): url for key, url in pairs}


def default_branch(repo: Repo, remote: str | None) -> str | None:
    """Return the remote's main branch, where this repository knows it and has a branch of that name."""
    answer = repo.git.ask("symbolic-ref", "--quiet", f"refs/remotes/{remote}/HEAD") if remote else None
    name = answer.text.removeprefix(f"refs/remotes/{remote}/") if answer and answer.code == 0 else None
    return name if name and resolve(repo.git, f"refs/heads/{name}") else None


def push(repo: Repo, remote: str, branches: Mapping[str, bool]) -> None:
    """Push branches to a remote in this order; branch -> whether it may replace what is there.

    Raises:
        RepositoryError: the remote refused; the message has its words and what to do.
    """
    extra = {name: os.environ[name] for name in _FOR_REMOTES if name in os.environ}
    if "HOME" in extra:
        extra["GIT_CONFIG_GLOBAL"] = f"{extra['HOME']}/.gitconfig"  # credential helpers, `insteadOf`, `sshCommand`
    here = repo.git.using(work_tree=repo.workspace.root)  # a remote's relative path is meant from the checkout
    for branch, replace in branches.items():
        refspec = f"{'+' if replace else ''}refs/heads/{branch}:refs/heads/{branch}"
        answer = here.ask("push", "--quiet", remote, refspec, extra=extra, deadline_s=PUSH_S)
        if answer.code:
            behind = "fetch first" in answer.stderr or "non-fast-forward" in answer.stderr
            raise RepositoryError(
                f"{remote} did not take {branch}: {' '.join(answer.stderr.split())[:400]}",
                remedy=f"take up what was merged there, `git pull --no-rebase {remote} {branch}`, and try again"
                if behind
                else f"see that `git push {remote} {branch}` works",
            )


def web_address(url: str) -> str | None:
    """The https address of a remote on a web host, `https://github.com/owner/name`; None for paths and the like."""
    scp = _SCP.fullmatch(url)
    host, path = scp.groups() if scp else ((urlsplit(url).hostname or ""), urlsplit(url).path)
    if "." not in host or (not scp and urlsplit(url).scheme not in {"https", "http", "ssh", "git"}):
        return None
    return f"https://{host}/{path.strip('/').removesuffix('.git')}"
