"""The cache of a judge host: blobs by the hash of their bytes, and directories that are made of them.

Several judges of one host share it. Received bytes are checked against their hash before they get
their final name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.cluster.manifests import Manifest, ManifestFile, hash_file, leads_outside
from harness.errors import FormatError, HostFaultError

CACHE_BYTES = 20_000_000_000
"""Least recently used directories are removed beyond this."""
LEAST_FREE_BYTES = 1_000_000_000
"""A host with less free space takes no work: a build needs some of it."""


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
                f"the disk is full: {free / 1e9:.1f} GB are free, a judge needs {least_bytes / 1e9:.0f}",
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
            sha256: hash of the whole blob.
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
            if last:
                self._accept(incoming, sha256)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            raise _unusable(self._root, error) from error

    def _accept(self, incoming: Path, sha256: str) -> None:
        if hash_file(incoming) != sha256:
            incoming.unlink(missing_ok=True)
            raise FormatError(f"the bytes that arrived for {sha256} have another hash", remedy="they are sent again")
        blob = self._blob(sha256)
        blob.parent.mkdir(parents=True, exist_ok=True)
        incoming.replace(blob)

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
            lock = os.open(f"{directory}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise _unusable(self._root, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
            self._make(manifest, directory)
            yield directory
        finally:
            os.close(lock)

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
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    def _blob(self, sha256: str) -> Path:
        return self._root / "blobs" / sha256[:2] / sha256


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
