"""Directories as content: the files of a candidate, a problem and its data, each named by the hash of its bytes.

The head creates manifests; a judge host creates the same directories from them. Only bytes, names and hashes are sent.
The cache of a judge host has blobs by the hash of their bytes, and directories that are made of them. Several judges of
one host share it. Received bytes are checked against their hash before they get their final name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

from pydantic import Field, field_validator

from harness.errors import FormatError, HostFaultError
from harness.formats.bounded import load_json
from harness.formats.tensors import find_tensor_file
from harness.model.base_models import StrictModel

CACHE_BYTES = 20_000_000_000
"""Least recently used directories are removed beyond this."""
LEAST_FREE_BYTES = 1_000_000_000
"""A host with less free space takes no work: a build needs some of it."""


class ManifestFile(StrictModel):
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


class Manifest(StrictModel):
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


class Parcel(StrictModel):
    """The directories that one request names, under the request's keys."""

    problem_dir: Manifest
    solution_dir: Manifest | None = None
    data_root: Manifest | None = None
    """Files of the data root that the problem's workloads read."""

    @property
    def manifests(self) -> dict[str, Manifest]:
        """Key of the request -> manifest, of those that are present."""
        return {name: manifest for name, manifest in self if manifest is not None}


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
    for path in directory.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(directory).as_posix()


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
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class ContentStore:
    """Blobs and directories below `root`.

    Args:
        root: on the host's disk; derived, so it may be deleted while no judge runs.
    """

    def __init__(self, root: Path) -> None:
        self._root, self._part = root, os.getpid()

    def require_space(self, least_bytes: int) -> None:
        """Check that the disk has room.

        Raises:
            HostFaultError: the disk has no room or cannot be used.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self._root).free
        except OSError as error:
            raise _unusable(self._root, error) from error
        if free < least_bytes:
            raise HostFaultError(
                f"the disk is full: {free / 1e9:.1f} GB are free, a judge needs {least_bytes / 1e9:.0f} GB",
                where=str(self._root),
                remedy="free some space on that disk",
            )

    def missing(self, manifest: Manifest) -> list[str]:
        """Return the sha256 of the blobs that must be sent before the directory can be made."""
        if self.directory(manifest).is_dir():
            return []
        return [sha256 for sha256 in manifest.blobs if not self._blob(sha256).is_file()]

    def store(self, sha256: str, offset: int, data: bytes, *, last: bool) -> None:
        """Write a part of a blob at a byte offset; after the `last` part, give the blob its final name.

        Args:
            offset: byte offset of the part.
            data: bytes of the part.
            last: true for the part at the end.

        Raises:
            HostFaultError: the disk cannot be written.
            FormatError: the bytes do not have this hash.
        """
        incoming = self._root / "incoming" / f"{sha256}.{self._part}"
        try:
            incoming.parent.mkdir(parents=True, exist_ok=True)
            with incoming.open("r+b" if offset else "wb") as file:
                file.seek(offset)
                file.write(data)
            if not last:
                return
            if hash_file(incoming) != sha256:
                incoming.unlink(missing_ok=True)
                message = f"the bytes that arrived for {sha256} have another hash"
                raise FormatError(message, remedy="they are sent again")
            blob = self._blob(sha256)
            blob.parent.mkdir(parents=True, exist_ok=True)
            incoming.replace(blob)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            raise _unusable(self._root, error) from error

    def directory(self, manifest: Manifest) -> Path:
        """Return the path of a manifest's directory, which may not exist yet."""
        return self._root / "trees" / manifest.digest

    @contextmanager
    def locked_directory(self, manifest: Manifest) -> Iterator[Path]:
        """Create a manifest's directory from stored blobs; within the block it is not removed.

        Raises:
            HostFaultError: the disk cannot be written, or a blob is missing.
        """
        directory = self.directory(manifest)
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            lock = _lock_file(directory)
        except OSError as error:
            raise _unusable(self._root, error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._make(manifest, directory)
            yield directory

    def _make(self, manifest: Manifest, directory: Path) -> None:
        incoming = directory.with_name(f"incoming-{directory.name}.{self._part}")
        try:
            if not directory.is_dir():
                shutil.rmtree(incoming, ignore_errors=True)
                for file in manifest.files:
                    self._place(file, incoming / file.path)
                incoming.mkdir(parents=True, exist_ok=True)
                _rename_first(incoming, directory)
            os.utime(directory)
        except OSError as error:
            raise _unusable(self._root, error) from error
        finally:
            shutil.rmtree(incoming, ignore_errors=True)

    def _place(self, file: ManifestFile, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.link is not None:
            if leads_outside(file.path, file.link):
                raise FormatError(f"the link {file.path} leads out of its directory")
            place.symlink_to(file.link)
            return
        shutil.copyfile(self._blob(file.sha256), place)
        place.chmod(0o755 if file.executable else 0o644)

    def trim(self, max_bytes: int = CACHE_BYTES) -> None:
        """Remove blobs, then directories, the least recently used first, until the cache has at most `max_bytes`."""
        trees = sorted((self._root / "trees").glob("*[0-9a-f]"), key=_used_at)
        blobs = sorted((self._root / "blobs").glob("*/*"), key=_used_at)
        size = sum(map(_bytes, [*trees, *blobs]))
        for path in [*blobs, *trees]:
            if size <= max_bytes:
                return
            size -= _bytes(path) if self._remove(path) else 0

    def _remove(self, path: Path) -> bool:
        """Remove a blob, or a directory that no process has locked."""
        if path.is_file():
            path.unlink(missing_ok=True)
            return True
        with _lock_file(path) as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            return True
        return False

    def _blob(self, sha256: str) -> Path:
        return self._root / "blobs" / sha256[:2] / sha256


def _lock_file(directory: Path) -> IO[str]:
    return Path(f"{directory}.lock").open("a")


def _rename_first(incoming: Path, directory: Path) -> None:
    """Rename, unless another judge of this host has made the same directory in the meantime."""
    try:
        incoming.rename(directory)
    except OSError:
        if not directory.is_dir():
            raise


def _unusable(root: Path, error: OSError) -> HostFaultError:
    return HostFaultError(
        f"the cache of this judge host cannot be written: {error.strerror or error}",
        where=str(root),
        remedy="free some space on that disk, or make it writable",
    )


def _used_at(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    with suppress(OSError):
        return sum(file.lstat().st_size for file in files if file.is_file())
    return 0
