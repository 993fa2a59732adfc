"""Export of a commit's subtree to a directory, completely or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.errors import RepositoryError
from harness.git.branch_commits import check_path
from harness.git.object_reader import ObjectReader
from harness.git.objects import tree_entries_of


class UnfitTreeError(RepositoryError):
    """A tree that cannot be judged: it holds a submodule, or a link that leads out of it."""


def name_in(commit: str, path: str) -> str:
    """Return the revision expression of the object at `path` in a commit.

    Args:
        commit: a commit id or revision expression.
        path: relative to the repository's root; "" is the root tree.
    """
    if not path:
        return f"{commit}^{{tree}}"
    check_path(path.rstrip("/"))
    return f"{commit}:{path.rstrip('/')}"


def export_tree(objects: ObjectReader, commit: str, path: str, destination: Path) -> Path:
    """Write the subtree at `path` of a commit to `destination`; see `Repo.export`.

    Args:
        commit: a commit id or revision expression.
        path: the subtree's directory, relative to the repository's root.
        destination: the directory to write; one that exists is not changed.

    Returns:
        `destination`.

    Raises:
        RepositoryError: there is no such subtree.
        UnfitTreeError: the subtree holds a submodule or a link that leads out of it.
    """
    if destination.is_dir():
        return destination
    entries = _subtree(objects, commit, path)
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
    try:
        for name, (mode, oid) in entries.items():
            _write_entry(objects, temporary, name, mode, oid)
        temporary.chmod(0o755)
        with suppress(OSError):  # another process wrote the same content first
            temporary.rename(destination)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if not destination.is_dir():
        raise RepositoryError("cannot be written", where=str(destination))
    return destination


def _subtree(objects: ObjectReader, commit: str, path: str) -> dict[str, tuple[str, str]]:
    """Return path below `path` -> (mode, id) of every entry that is not a directory."""
    entries: dict[str, tuple[str, str]] = {}
    pending = [("", name_in(commit, path))]
    while pending:
        prefix, name = pending.pop()
        tree = objects.read(name)
        if tree is None or tree.kind != "tree":
            raise RepositoryError(f"there is no directory {path!r} in commit {commit[:12]}")
        for entry_name, mode, oid in tree_entries_of(tree.content):
            if mode == "040000":
                pending.append((f"{prefix}{entry_name}/", oid))
            else:
                entries[f"{prefix}{entry_name}"] = mode, oid
    return entries


def _write_entry(objects: ObjectReader, root: Path, name: str, mode: str, oid: str) -> None:
    check_path(name)
    if mode == "160000":
        raise UnfitTreeError(f"{name} is a submodule: only plain files can be judged")
    blob = objects.read(oid)
    if blob is None:
        raise RepositoryError(f"object {oid} of {name} is missing", remedy="see `git fsck`")
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if mode == "120000":
        link = os.fsdecode(blob.content)
        target = os.path.normpath(os.path.join(os.path.dirname(name), link))  # noqa: PTH118, PTH120
        if os.path.isabs(target) or target.split("/")[0] == "..":  # noqa: PTH117 - links are text, not paths
            raise UnfitTreeError(f"{name} is a link that leads out of its directory")
        file.symlink_to(link)
        return
    file.write_bytes(blob.content)
    if mode == "100755":
        file.chmod(file.stat().st_mode | 0o111)
