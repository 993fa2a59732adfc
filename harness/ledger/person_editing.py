"""Detection of a person who is editing COORDINATION.md in the checkout."""

from __future__ import annotations

from harness.git.repo import Repo
from harness.workspace.directories import COORDINATION_NAME, Workspace

_SWAP_FILES = tuple(
    form.format(COORDINATION_NAME) for form in (".{}.swp", ".{}.swo", ".#{}", "#{}#", ".{}.kate-swp", ".~lock.{}#")
)
"""Files that editors write beside an open file: Vim and nano, Emacs (lock and auto-save), Kate, LibreOffice."""


def editing(workspace: Workspace, repo: Repo, branch: str) -> str | None:
    """Return the sign that a person edits the file: an editor's swap file, or changes that are not committed.

    Args:
        workspace: the workspace of the checkout.
        repo: the workspace's repository.
        branch: the coordination branch; a checkout of another branch shows another file.
    """
    for name in _SWAP_FILES:
        path = workspace.root / name
        if path.exists() or path.is_symlink():  # Emacs' lock is a dangling link
            return f"an editor has it open ({name})"
    if repo.is_edited(branch, COORDINATION_NAME):
        return "it has changes that are not committed"
    return None
