"""Creation of a workspace: a git repository with the files that the harness needs; a person's files stay unchanged."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from harness.errors import ConfigurationError, RepositoryError
from harness.formats.ledger_heads import HEADER
from harness.git.environment import Git
from harness.git.repo import Repo
from harness.ledger.coordination import default_text
from harness.model.paths import HEADS, PROBLEMS, WORKTREES
from harness.workspace.configuration import DEFAULT_YAML
from harness.workspace.directories import CONFIG_NAME, COORDINATION_NAME, Workspace
from harness.workspace.files import unwritable
from harness.workspace.shipped_files import STARTER, proof_workflow, shipped_problems

_WORKTREES_README = f"{WORKTREES}/README.md"
_IGNORED = (f"/{WORKTREES}/*", f"!/{_WORKTREES_README}", "/.harness/", "report.html")
"""The last one is written by `harness report`, in its working directory."""
_NEEDED_BYTES = 10_000_000


@dataclass(frozen=True)
class Creation:
    """The result of `create_workspace`."""

    workspace: Workspace
    branch: str
    added: tuple[str, ...]
    """Written paths, relative to the root; a directory for a whole suite."""
    restored: tuple[str, ...] = ()
    """Paths that the branch had and the checkout lacked."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Problem -> reason why it was not copied."""


def create_workspace(
    directory: Path, *, suites: Sequence[str] = (STARTER,), small: bool = False, github: bool = False
) -> Creation:
    """Create a workspace, or add its missing files, and commit them on the checked-out branch.

    A file that is committed and only missing in the checkout is restored as it is committed.

    Args:
        directory: becomes a git repository if it is none.
        suites: shipped suites to copy, or `all`; an existing suite is not changed.
        small: scale the workloads of the copied problems by the profile `small`.
        github: add the workflow that checks pull requests with `harness proof`.

    Raises:
        ConfigurationError: a path is in the way, or there is no such suite.
        RepositoryError: no branch is checked out, or git refuses.
    """
    root = directory.resolve()
    shipped = shipped_problems(suites, small=small)
    if root.exists() and not root.is_dir():
        raise ConfigurationError("is in the way: expected a directory", where=str(root))
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(root, error) from error
    free = shutil.disk_usage(root).free
    if free < _NEEDED_BYTES:  # git would print several lines, and leave an incomplete repository
        raise ConfigurationError(
            f"the disk is full: {free / 1e6:.1f} MB are free, a new workspace needs {_NEEDED_BYTES / 1e6:.0f} MB",
            where=str(root),
            remedy="free some space on that disk",
        )
    branch = _checked_out_branch(root)
    workspace = Workspace(root)
    files: dict[str, bytes] = {
        CONFIG_NAME: DEFAULT_YAML.format(branch=branch).encode(),
        COORDINATION_NAME: default_text().encode(),
        HEADS: HEADER,
        _WORKTREES_README: resources.files("harness.ledger").joinpath("WORKSPACES.md").read_bytes(),
    }
    if github:
        files[".github/workflows/proof.yml"] = proof_workflow()
    suite_names = dict.fromkeys(name.partition("/")[0] for name in shipped.files)
    with Repo(workspace) as repo:
        restored = _restore(repo, branch, [*files, ".gitignore", *(f"{PROBLEMS}/{suite}/" for suite in suite_names)])
        new_files = {name: content for name, content in files.items() if not (root / name).exists()}
        ignore = _ignore_lines(root / ".gitignore")
        if ignore is not None:
            new_files[".gitignore"] = ignore
        added = sorted(new_files)
        for suite in suite_names:
            if not (root / PROBLEMS / suite).exists():
                files_of_suite = (name for name in shipped.files if name.startswith(f"{suite}/"))
                new_files |= {f"{PROBLEMS}/{name}": shipped.files[name] for name in files_of_suite}
                added.append(f"{PROBLEMS}/{suite}/")
        if new_files:
            repo.commit_files(branch, new_files, "Set up the workspace")
            if outdated := repo.checkout_state(branch):
                raise RepositoryError(
                    f"the files are committed on {branch}, but not checked out: {outdated[0]}", where=str(root)
                )
    return Creation(workspace, branch, tuple(added), restored, shipped.left_out)


def _restore(repo: Repo, branch: str, paths: Sequence[str]) -> tuple[str, ...]:
    """Restore the paths that a branch has and its checkout lacks; return them."""
    root, tip = repo.workspace.root, repo.tip(branch)
    lost = tuple(path for path in paths if not (root / path).exists() and repo.tree_of(tip, path.rstrip("/")))
    if lost:
        repo.restore(branch, lost)
    return lost


def _checked_out_branch(root: Path) -> str:
    """Return the checked-out branch; create a missing repository and its first commit.

    Raises:
        RepositoryError: HEAD is detached, or git refuses.
    """
    if not (root / ".git").exists():
        Git(root / ".git", root).run("init", "--quiet", "--template=", "--initial-branch=main")
    git = Git(Workspace(root).git_common_dir)
    head = git.ask("symbolic-ref", "--quiet", "--short", "HEAD")
    if head.code:
        raise RepositoryError(
            "no branch is checked out (HEAD is detached)",
            where=str(root),
            remedy="check out the branch that is to hold COORDINATION.md and the ledger: git checkout main",
        )
    branch = head.text
    if git.ask("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}").code:
        empty = git.run("hash-object", "-t", "tree", "-w", "--stdin").text
        first = git.run("commit-tree", empty, "-m", "Start the repository").text
        git.run("update-ref", f"refs/heads/{branch}", first, "")
    return branch


def _ignore_lines(path: Path) -> bytes | None:
    """Return .gitignore with its missing lines, or None if none is missing."""
    text = path.read_text() if path.exists() else ""
    missing = [line for line in _IGNORED if line not in text.splitlines()]
    if not missing:
        return None
    if text and not text.endswith("\n"):
        text += "\n"
    return (text + "".join(f"{line}\n" for line in missing)).encode()
