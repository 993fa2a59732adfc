"""Directories as content: the files of a candidate, a problem and its data, each named by the hash of its bytes.

The head creates manifests; a judge host creates the same directories from them. Only bytes, names and hashes are sent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harness.errors import FormatError
from harness.formats.bounded import load_json
from harness.formats.tensors import find_tensor_file

_READ_BYTES = 1 << 20


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ManifestFile(_Content):
    """One file or symbolic link of a directory."""

    path: str
    """Relative to the directory, with `/`."""
    sha256: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Hash of its bytes; empty for a link."""
    size: int = Field(default=0, ge=0)
    executable: bool = False
    link: str | None = None
    """Target of a symbolic link, inside the directory."""

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        if not _is_inside(PurePosixPath(path)) or path in {"", "."}:
            raise ValueError(f"the path {path!r} leaves its directory")
        return path


class Manifest(_Content):
    """A directory's files, ordered by path."""

    files: tuple[ManifestFile, ...]

    @property
    def digest(self) -> str:
        """The sha256 that names the whole directory."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def blobs(self) -> dict[str, int]:
        """sha256 of each different file -> its bytes."""
        return {file.sha256: file.size for file in self.files if file.link is None}


class Parcel(_Content):
    """The directories that one request names."""

    problem: Manifest
    solution: Manifest | None = None
    data: Manifest | None = None
    """Files of the data root that the problem's workloads read."""

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests that are present."""
        return tuple(item for item in (self.problem, self.solution, self.data) if item is not None)


def manifest_of(directory: Path, paths: Iterable[str] | None = None) -> Manifest:
    """Return the manifest of a directory.

    Args:
        directory: its root.
        paths: relative paths of the files to take; by default all of them.

    Raises:
        FormatError: a symbolic link leads out of it.
        OSError: a file cannot be read.
    """
    names = sorted(_all_files(directory) if paths is None else set(paths))
    return Manifest(files=tuple(_file(directory, name, follow=paths is not None) for name in names))


def data_files(problem_dir: Path, data_root: Path) -> list[str]:
    """Return the relative paths of the files of a data root that a problem's workloads read.

    Args:
        problem_dir: the problem's directory.
        data_root: directory of data files that problems share.

    Raises:
        FormatError: a path leaves its directory, or names no file.
    """
    paths: set[str] = set()
    workloads = problem_dir / "workload.jsonl"
    for line in workloads.read_text().splitlines():
        inputs = load_json(line, where=str(workloads)).get("inputs", {}) if line.strip() else {}
        paths |= {value["path"] for value in inputs.values() if value.get("type") == "safetensors"}
    files = {path: find_tensor_file(path, [problem_dir, data_root]) for path in sorted(paths)}
    return [path for path, file in files.items() if file == data_root / PurePosixPath(path)]


def leads_outside(path: str, link: str) -> bool:
    """Return true if a symbolic link leads out of its directory.

    Args:
        path: path of the link, relative to the directory.
        link: target of the link.
    """
    target = PurePosixPath(link)
    joined = os.path.normpath(str(PurePosixPath(path).parent / target))
    return target.is_absolute() or not _is_inside(PurePosixPath(joined))


def _is_inside(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts and "\0" not in str(path)


def _all_files(directory: Path) -> Iterator[str]:
    for root, directories, files in os.walk(directory):
        links = [name for name in directories if (Path(root) / name).is_symlink()]
        for name in (*files, *links):
            yield (Path(root) / name).relative_to(directory).as_posix()


def _file(directory: Path, name: str, *, follow: bool) -> ManifestFile:
    file = directory / name
    if file.is_symlink() and not follow:
        link = str(file.readlink())
        if leads_outside(name, link):
            raise FormatError(f"the link {name} leads out of its directory", where=str(directory))
        return ManifestFile(path=name, link=link)
    facts = file.stat()
    digest = _sha256(file, facts.st_size, facts.st_mtime_ns, facts.st_ino)
    return ManifestFile(path=name, sha256=digest, size=facts.st_size, executable=bool(facts.st_mode & 0o100))


@lru_cache(maxsize=10_000)
def _sha256(file: Path, size: int, mtime_ns: int, inode: int) -> str:
    """Return the hash of a file's bytes. It is cached: data of a problem may have gigabytes and does not change."""
    del size, mtime_ns, inode
    return hash_file(file)


def hash_file(file: Path) -> str:
    """Return the sha256 of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(_READ_BYTES):
            digest.update(part)
    return digest.hexdigest()
